"""Find what blocks a migration from Aliyun gpushare's extender and device plugin (pure).

Aliyun gpushare's plugin has two units, GiB and MiB. It offers for each GPU as much as the first
one has, rounded down, and reserves nothing for the driver. It writes on a pod that it has its GPU
only if it could tell the pod from others of the same size; that GPU is then the one of IDX.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.annotations import inventory
from gpushare.annotations.pod_annotations import asks_for_share, containers_of, share_of
from gpushare.cards.model import Card, Inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARD_UNITS,
    ANNOTATION_INVENTORY,
    ANNOTATION_RUNNING_ON,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import RecordError, RequestError
from gpushare.objects.model import Node, Pod
from gpushare.objects.quantity import parse_units

LABEL_MEMORY: Final = "nvidia.com/gpu.memory"  # MiB of a GPU, by NVIDIA's feature discovery
UNITS_MIB: Final = {"GiB": 1024, "MiB": 1}
_LEAST_MIB: Final = 1024  # no shared GPU has less; none has as many GiB
_ANOTHER_UNIT: Final = 100  # times as large: rounding and reserves explain far less


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that blocks; ``pod`` is empty if it concerns the node."""

    why: str
    cure: str
    pod: str = ""


@dataclass(frozen=True, slots=True)
class NodeMigration:
    """The state of a node. ``unit`` is empty, and the amounts 0, if unknown.

    ``plugin`` is ``older`` for Aliyun gpushare, or ``gpushare``. ``is_default_runtime``: a pod
    without a RuntimeClass runs there, so NVIDIA's runtime is the default.
    """

    node: str
    plugin: str
    unit: str = ""
    cards: int = 0
    units_per_card: int = 0
    pods: int = 0
    obstacles: tuple[Obstacle, ...] = ()
    is_default_runtime: bool = False


@dataclass(frozen=True, slots=True)
class Migration:
    """``memory_unit`` and ``reserved`` are the flags that keep the totals.

    Without the component default-runtime (``is_default_runtime``), pods would need a RuntimeClass.
    """

    nodes: tuple[NodeMigration, ...]
    obstacles: tuple[Obstacle, ...] = ()
    memory_unit: str = ""
    reserved: str = "none"
    steps: tuple[str, ...] = ()
    is_default_runtime: bool = False

    @property
    def is_free(self) -> bool:
        return not self.obstacles and not any(each.obstacles for each in self.nodes)


def migration(nodes: Iterable[Node], pods: Iterable[Pod]) -> Migration:
    """Judge all nodes and all pods."""
    on_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.node and asks_for_share(pod) and not pod.is_terminal:
            on_node.setdefault(pod.node, []).append(pod)
    sharing = [node for node in nodes if _shares(node)]
    standings = tuple(
        _status(node, sorted(on_node.get(node.name, ()), key=lambda pod: pod.key))
        for node in sorted(sharing, key=lambda node: node.name)
    )
    units = {each.unit for each in standings if each.unit}
    obstacles = []
    if len(units) > 1:
        units_of = [f"{each.node} counts in {each.unit}" for each in standings if each.unit]
        obstacles.append(
            Obstacle(
                f"a cluster has one unit, and these nodes have several: {', '.join(units_of)}",
                "drain the nodes of one unit, and restart Aliyun gpushare's plugin there with the "
                "other",
            )
        )
    unit = next(iter(units)) if len(units) == 1 else ""
    return Migration(
        standings,
        tuple(obstacles),
        unit,
        steps=_steps(standings),
        is_default_runtime=any(each.is_default_runtime for each in standings),
    )


def _steps(standings: Sequence[NodeMigration]) -> tuple[str, ...]:
    """Return the steps in order; the manual has the commands."""
    left = [each.node for each in standings if each.plugin == "older"]
    extender = (
        "the extender: remove Aliyun gpushare's, apply daemonset/overlays/migrating, and start "
        "kube-scheduler with daemonset/scheduler/config.yaml"
    )
    return (
        "fix what blocks the migration, if anything",
        extender,
        f"the device plugin, node by node; left: {', '.join(left) or 'none'}",
        "check again: every node must be migrated, and nothing may block",
        "the policies: apply your own kustomization, with --reserved=none",
    )


def _shares(node: Node) -> bool:
    offered = str(node.capacity.get(RESOURCE_MEMORY, "0"))
    return ANNOTATION_INVENTORY in node.annotations or offered not in {"0", ""}


def _status(node: Node, pods: Sequence[Pod]) -> NodeMigration:
    is_ours = ANNOTATION_INVENTORY in node.annotations
    plugin = "gpushare" if is_ours else "older"
    try:
        found = inventory.of_node(node, unit_mib=1)
    except RecordError as err:
        cure = "see `gpushare doctor`" if is_ours else "restart Aliyun gpushare's plugin there"
        why = Obstacle(str(err), cure)
        return NodeMigration(node.name, plugin, pods=len(pods), obstacles=(why,))
    if found is None:
        text = f"the node has {RESOURCE_MEMORY} and no {RESOURCE_COUNT}: its GPUs are unknown"
        why = Obstacle(text, "restart Aliyun gpushare's plugin there: it writes that at its start")
        return NodeMigration(node.name, plugin, pods=len(pods), obstacles=(why,))
    largest = max((card.units for card in found.cards), default=0)
    if is_ours:
        unit = next((n for n, mib in UNITS_MIB.items() if mib == found.unit_mib), "")
        unit = unit or f"{found.unit_mib}MiB"
        obstacles = [*_of_pods(pods, found), *_overfull(pods, found)]
    else:
        unit = "MiB" if largest >= _LEAST_MIB else "GiB"
        unplaced = _of_pods(pods, found)
        known = {pod.key for pod in pods}.difference(each.pod for each in unplaced)
        obstacles = [*_of_totals(node, found, unit), *unplaced]
        obstacles += [e for pod in pods if pod.key in known for e in _of_older_pod(pod, largest)]
        obstacles += _overfull(pods, found)
    return NodeMigration(
        node.name,
        plugin,
        unit,
        len(found.cards),
        largest,
        len(pods),
        tuple(obstacles),
        is_default_runtime=_is_default_runtime(found, pods),
    )


def _is_default_runtime(found: Inventory, pods: Iterable[Pod]) -> bool:
    """Return whether NVIDIA's runtime is the default of the node."""
    if not found.is_legacy:
        return "" in found.runtime_classes
    return any(pod.status.phase == "Running" and not pod.spec.runtime_class_name for pod in pods)


def _of_totals(node: Node, found: Inventory, unit: str) -> list[Obstacle]:
    """Check the totals that Aliyun gpushare's plugin has put on its node."""
    total, count = parse_units(node.capacity[RESOURCE_MEMORY]), len(found.cards)
    each = total // count
    if total % count:
        return [
            Obstacle(
                f"{total} units are not {count} equal GPUs, as Aliyun gpushare offers them",
                "restart Aliyun gpushare's plugin there, and check that only one runs",
            )
        ]
    written = node.labels.get(LABEL_MEMORY, "")
    mib = _whole(written) if len(written) < 10 else 0  # noqa: PLR2004 - a PiB
    real = mib // UNITS_MIB[unit]
    if mib and real != each:
        return [
            Obstacle(
                f"it offers {each} {unit} of each GPU, and by label {LABEL_MEMORY} a GPU has "
                f"{real}: gpushare's plugin measures each GPU, so sizes will change",
                f"before the node migrates, let pods use at most {min(real, each)} units of a GPU",
            )
        ]
    return []


def _of_pods(pods: Iterable[Pod], found: Inventory) -> list[Obstacle]:
    obstacles = []
    for pod in pods:
        share = share_of(pod, found)
        if share is not None and share.is_unplaced:
            text = f"its GPU is unknown: {share.why_unplaced}"
            cure = "delete it, its owner creates another; until then its units count on every GPU"
            obstacles.append(Obstacle(text, cure, pod.key))
    return obstacles


def _of_older_pod(pod: Pod, card_units: int) -> list[Obstacle]:
    """Check what Aliyun gpushare's plugin may have done with a pod whose GPU is known."""
    obstacles = []
    is_known = bool(pod.annotations.get(ANNOTATION_RUNNING_ON))
    if _asking(pod) > 1:
        text = "several of its containers request GPU memory, and Aliyun gpushare gave none a GPU"
        obstacles.append(Obstacle(text, "delete it; its owner creates another", pod.key))
    elif pod.annotations.get(ANNOTATION_ASSIGNED) != "true" and not is_known:
        if pod.runs or pod.status.phase == "Running":
            text = (
                "it runs, and Aliyun gpushare's plugin never wrote that it has its GPU: it mistook "
                "another pod of the same size for this one, so the recorded GPU may be wrong"
            )
            cure = "delete it; its owner creates another"
        else:
            text = "it is bound, and its containers have not got their GPU yet"
            cure = "wait until it runs; delete it if it never does"
        obstacles.append(Obstacle(text, cure, pod.key))
    decided = _whole(pod.annotations.get(ANNOTATION_CARD_UNITS, ""))
    large, small = max(decided, card_units), min(decided, card_units)
    if small and large >= _ANOTHER_UNIT * small:
        text = (
            f"its request is in another unit: its GPU had {decided} units at the decision, and has "
            f"{card_units} now"
        )
        cure = "delete it, and create it again in the present unit"
        obstacles.append(Obstacle(text, cure, pod.key))
    return obstacles


def _asking(pod: Pod) -> int:
    try:
        return sum(bool(each.units) for each in containers_of(pod))
    except RequestError:
        return 0  # its GPU is unknown, too


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0  # noqa: PLR2004


def _overfull(pods: Iterable[Pod], found: Inventory) -> list[Obstacle]:
    held = {card.uuid: 0 for card in found.cards}
    for pod in pods:
        share = share_of(pod, found)
        for uuid in share.cards if share is not None else ():
            held[uuid] += share.units if share is not None else 0
    return [
        Obstacle(
            f"pods use {held[card.uuid]} units of {_name(card, found)}, which has {card.units}",
            "delete one of them"
            if found.is_legacy
            else "start gpushare's plugin with --reserved=none, or delete one",
        )
        for card in found.cards
        if held[card.uuid] > card.units
    ]


def _name(card: Card, found: Inventory) -> str:
    return f"GPU {card.minor}" if found.is_legacy else f"GPU {card.index} ({card.uuid})"
