"""What the pods of each namespace use, and the view of one namespace (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gpushare.answers.inspect import Device, NodeView, PodUse, UnplacedPod
from gpusharectl.inspect.waiting import WaitingPod


class NamespaceUse(msgspec.Struct):
    """``used`` units of the ``pods`` of a namespace; ``share`` of all units, from 0 to 1.

    ``waiting`` is the number of Pending pods, None if they are not known.
    """

    namespace: str
    used: int
    share: float
    pods: int
    waiting: int | None


def sums(
    nodes: Iterable[NodeView], unit_mib: int, waiting: Sequence[WaitingPod] | None
) -> list[NamespaceUse]:
    """Sum up the nodes with the cluster's unit by namespace, in falling order of use."""
    counted = [node for node in nodes if node.unit_mib == unit_mib]
    total = sum(node.total for node in counted)
    used: Counter[str] = Counter()
    pods: Counter[str] = Counter()
    for node in counted:
        for pod in (use for card in node.devices for use in card.pods):
            used[pod.namespace] += pod.used
        for unplaced in node.unplaced:
            used[unplaced.namespace] += unplaced.units
        pods.update(namespace for namespace, _ in _pods_on(node))
    pending = Counter(each.namespace for each in waiting or ())
    return sorted(
        (
            NamespaceUse(
                name,
                used[name],
                used[name] / total if total else 0.0,
                pods[name],
                pending[name] if waiting is not None else None,
            )
            for name in {*used, *pending}
        ),
        key=lambda each: (-each.used, -(each.waiting or 0), each.namespace),
    )


def of(
    found: Iterable[NamespaceUse], namespace: str, waiting: Sequence[WaitingPod] | None
) -> NamespaceUse:
    """Return the sum of one namespace, also if it has no pods."""
    nothing = NamespaceUse(namespace, 0, 0.0, 0, 0 if waiting is not None else None)
    return next((each for each in found if each.namespace == namespace), nothing)


def only(nodes: Iterable[NodeView], namespace: str) -> list[NodeView]:
    """Return the nodes and GPUs that pods of this namespace use, with only its use and pods.

    What is free and reserved on these GPUs does not change.
    """
    found = []
    for node in nodes:
        devices = [
            _device(card, mine)
            for card in node.devices
            if (mine := [pod for pod in card.pods if pod.namespace == namespace])
        ]
        unplaced = [pod for pod in node.unplaced if pod.namespace == namespace]
        if devices or unplaced:
            found.append(_node(node, devices, unplaced))
    return found


def _device(card: Device, pods: list[PodUse]) -> Device:
    return msgspec.structs.replace(card, pods=pods, used=sum(pod.used for pod in pods))


def _node(node: NodeView, devices: list[Device], unplaced: list[UnplacedPod]) -> NodeView:
    used = sum(card.used for card in devices) + sum(pod.units for pod in unplaced)
    return msgspec.structs.replace(node, devices=devices, unplaced=unplaced, used=used)


def _pods_on(node: NodeView) -> set[tuple[str, str]]:
    """Return namespace and name of each pod on a node, also if it uses several GPUs."""
    uses = {(pod.namespace, pod.name) for card in node.devices for pod in card.pods}
    return uses | {(pod.namespace, pod.name) for pod in node.unplaced}
