"""Which GPUs a container is assigned by its pod's annotations, and its environment (pure).

The extender's ledger reads the same annotations with the same function, so what a container sees
and what is counted cannot differ.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from deviceplugin.errors import Reason, Refused
from deviceplugin.isolation.variables import Enforcement, own_variables
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.annotations.edited_decisions import contradicts_decision
from gpushare.annotations.pod_annotations import check_annotations
from gpushare.cards.model import Card, Inventory, Request
from gpushare.cards.placement_policy import requires_limit
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_RUNNING_ON,
    BY_CDI,
    BY_RUNTIME,
    BY_RUNTIME_CDI,
    CDI_KIND_RUNTIME,
    ENV_CARD_UNITS,
    ENV_CARD_UUID,
    ENV_CONTAINER_UNITS,
    ENV_INDEX,
    ENV_MEMORY_LIMIT,
    ENV_MEMORY_REQUEST,
    ENV_POD_UNITS,
    ENV_VISIBLE_DEVICES,
    NO_CARD,
    RESOURCE_MEMORY,
)
from gpushare.errors import RequestError
from gpushare.objects import model
from gpushare.text.amounts import free_gib, needed_gib

Injection = Literal["cdi", "runtime", "runtime-cdi"]
INJECTIONS: Final[tuple[Injection, ...]] = (BY_CDI, BY_RUNTIME, BY_RUNTIME_CDI)


@dataclass(frozen=True, slots=True)
class Grant:
    """The GPUs of one pod, in index order, and the MiB of a unit."""

    pod: NodePod
    request: Request
    cards: tuple[Card, ...]
    unit_mib: int

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(card.uuid for card in self.cards)

    def reads_variables(self, names: Sequence[str]) -> bool:
        """Whether one of these containers has variables by ``envFrom``, which nobody reads here."""
        return any(each.env_from for each in self._named(names))

    def share_mib(self, units: int) -> int:
        """Return the MiB of each GPU of a container that asks for so many units."""
        return units * self.unit_mib // len(self.cards)

    def environment(
        self,
        names: Sequence[str],
        injection: Injection,
        enforcement: Enforcement,
        told: Mapping[str, str],
        *,
        is_served: bool = True,
    ) -> dict[str, str]:
        """Return the variables of containers that ask for the same amount.

        ``told`` and ``is_served`` are as in ``Enforcement.variables``. Where NVIDIA's own CDI edits
        give access to the GPUs, NVIDIA's runtime must not. Refused if the pod has no such
        containers.
        """
        units = next((c.units for c in self.request.containers if c.name in names), 0)
        if not units:
            raise Refused(f"pod {self.pod.key}: container {', '.join(names)} requests no share")
        uuids = self.uuids
        visible: dict[Injection, str] = {
            BY_CDI: NO_CARD,
            BY_RUNTIME: ",".join(uuids),
            BY_RUNTIME_CDI: ",".join(f"{CDI_KIND_RUNTIME}={uuid}" for uuid in uuids),
        }
        own = {name for each in self._named(names) for name in own_variables(each)}
        return {
            ENV_VISIBLE_DEVICES: visible[injection],
            ENV_CARD_UUID: ",".join(uuids),
            ENV_INDEX: ",".join(str(card.index) for card in self.cards),
            ENV_POD_UNITS: str(self.request.units),
            ENV_CONTAINER_UNITS: str(units),
            ENV_CARD_UNITS: ",".join(str(card.units) for card in self.cards),
            **enforcement.variables(
                self.cards, self.share_mib(units), own, told, is_served=is_served
            ),
        }

    def _named(self, names: Sequence[str]) -> list[model.Container]:
        containers = self.pod.all_containers
        return [each for each in containers if each.name in names]


def grant_of(pod: NodePod, inventory: Inventory | None) -> Grant:
    """Return the GPUs that ``pod`` may use; Refused, with the reason, if there are none here."""
    annotations = pod.annotations
    if not (annotations.get(ANNOTATION_INDEX) or annotations.get(ANNOTATION_CARDS)):
        raise Refused(
            f"no GPU was chosen for pod {pod.key}: kube-scheduler is not using the gpushare "
            f"extender for this pod (annotation {ANNOTATION_INDEX} is missing; check the extender "
            f"in kube-scheduler's configuration, and the pod's schedulerName)",
            pod=pod,
            reason=Reason.NO_DECISION,
        )
    if inventory is None:
        raise Refused(f"pod {pod.key}: the GPUs of this node are not known yet")
    try:
        check_annotations(pod)
    except RequestError as err:
        raise _unreadable(pod, str(err)) from err
    if pod.request is None:
        raise _unreadable(pod, pod.fault or f"no container requests {RESOURCE_MEMORY}")
    if contradicts_decision(pod):
        raise _unreadable(
            pod,
            f"annotations {ANNOTATION_CARDS} and {ANNOTATION_RUNNING_ON} name different GPUs, so "
            f"one of them was changed: delete the pod",
        )
    share = pod.share(inventory)
    if share is None:
        raise Refused(f"pod {pod.key} has no share: it is not bound, or it has ended")
    if share.is_unplaced:
        anywhere = pod.share(None)
        if anywhere is None or anywhere.is_unplaced:
            raise _unreadable(pod, f"its GPU is not known: {share.why_unplaced}")
        raise Refused(
            f"pod {pod.key}: {share.why_unplaced}: was the GPU replaced, or the node recreated?",
            pod=pod,
            reason=Reason.CARD_GONE,
        )
    cards = tuple(card for card in inventory.cards if card.uuid in share.cards)
    if len(cards) != pod.request.card_count:
        raise _unreadable(
            pod, f"it requests {pod.request.card_count} GPUs, and its annotations name {len(cards)}"
        )
    return Grant(pod, pod.request, cards, inventory.unit_mib)


def _unreadable(pod: NodePod, text: str) -> Refused:
    return Refused(f"pod {pod.key}: {text}", pod=pod, reason=Reason.DECISION_UNREADABLE)


def check_own_variable(grant: Grant) -> None:
    """Refuse a pod of which a container sets NVIDIA_VISIBLE_DEVICES.

    That variable overrides the plugin's without CDI, and on CRI-O always.
    """
    names = [container.name for container in grant.request.containers if container.sets_cards]
    if names:
        raise Refused(
            f"pod {grant.pod.key}: container {', '.join(names)} sets {ENV_VISIBLE_DEVICES} itself, "
            f"which overrides the chosen GPU with early binding, and on CRI-O: remove the "
            f"variable from the pod, or run it where containerd has CDI enabled",
            pod=grant.pod,
            reason=Reason.SETS_CARDS,
        )


def check_own_limits(grant: Grant) -> None:
    """Refuse a pod of which a container sets a memory limit or request for NVIDIA's hook itself.

    The hook obeys the first of equal names, and the runtimes order variables differently.
    """
    names = [container.name for container in grant.request.containers if container.sets_limits]
    if names:
        raise Refused(
            f"pod {grant.pod.key}: container {', '.join(names)} sets {ENV_MEMORY_REQUEST} or "
            f"{ENV_MEMORY_LIMIT} itself, which would take memory from other pods: remove the "
            f"variable from the pod",
            pod=grant.pod,
            reason=Reason.SETS_LIMITS,
        )


def check_isolation(grant: Grant, enforcement: Enforcement, *, is_served: bool = True) -> None:
    """Refuse a pod whose memory the driver must limit, where that is not promised.

    ``is_served``: what Allocate has answered lets the container get what is promised now.
    """
    if not (enforcement.is_required or requires_limit(grant.pod.annotations)):
        return
    limited = f"pod {grant.pod.key}: the driver must limit its memory"
    if enforcement.why_not_promised:
        raise Refused(
            f"{limited}, and does not on GPU {', '.join(grant.uuids)}: "
            f"{enforcement.why_not_promised}",
            pod=grant.pod,
            reason=Reason.NOT_LIMITED,
        )
    if not is_served:
        raise Refused(
            f"{limited}, and what the container was allocated does not allow it: the kubelet keeps "
            f"that answer for the pod's lifetime, so delete the pod",
            pod=grant.pod,
            reason=Reason.ANSWER_STALE,
        )


def check_capacity(
    grant: Grant,
    pods: Iterable[NodePod],
    inventory: Inventory | None,
    let_start: Container[str],
) -> None:
    """Refuse a pod that does not fit on its GPUs next to the pods that run there.

    The extender ensures that it fits. This catches what bypassed the extender: a pod bound by hand
    with annotations of its own, or a GPU that has shrunk.

    ``pods`` are those of this node. A pod counts if the kubelet reports that a container with
    devices has run, or if its uid is in ``let_start``. Annotations prove no start, because users
    can write them; nor does a container without devices. A pod that has run is never refused.
    """
    own = grant.pod
    if own.has_run or own.uid in let_start:
        return
    used: dict[str, int] = {}
    for pod in pods:
        if pod.uid == own.uid:
            if pod.has_run:
                return
        elif pod.uid in let_start or pod.has_run:
            share = pod.share(inventory)
            for uuid in share.cards if share is not None else ():
                used[uuid] = used.get(uuid, 0) + (share.units if share is not None else 0)
    wanted = grant.request.units_per_card
    for card in grant.cards:
        others = used.get(card.uuid, 0)
        if others + wanted > card.units:
            raise Refused(
                f"pod {own.key}: it requests {_amount(needed_gib, wanted, inventory)} on GPU "
                f"{card.uuid}, which has {_amount(free_gib, card.units, inventory)}, and pods that "
                f"run there use {_amount(needed_gib, others, inventory)}",
                pod=own,
                reason=Reason.CARD_TOO_FULL,
            )


def _amount(written: Callable[[int], str], units: int, inventory: Inventory | None) -> str:
    return f"{units} units" if inventory is None else written(units * inventory.unit_mib)


def visible_cards(envs: Mapping[str, str], inventory: Inventory | None) -> frozenset[str]:
    """Return the UUIDs that an environment makes visible.

    Aliyun gpushare's device plugin wrote the driver's minor numbers, which are looked up.
    """
    found = set()
    for part in (envs.get(ENV_CARD_UUID) or envs.get(ENV_VISIBLE_DEVICES, "")).split(","):
        text = part.strip()
        is_minor = text.isascii() and text.isdigit() and len(text) <= 4  # noqa: PLR2004
        card = inventory.by_minor(int(text)) if is_minor and inventory is not None else None
        if card is not None:
            found.add(card.uuid)
        elif text and text not in {NO_CARD, "none", "all"}:
            found.add(text)
    return frozenset(found)
