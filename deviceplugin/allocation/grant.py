"""What a container is given: the cards on its pod's record and its environment (pure).

The record is what the extender's ledger believes, too, read by the same function: so what a
container sees and what is counted cannot part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from deviceplugin.errors import Reason, Refused
from gpushare.annotations.pod_annotations import (
    amounts_of,
    check_annotations,
    contradicts_decision,
    share_of,
)
from gpushare.cards.model import Card, Inventory, Request
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
    ENV_POD_UNITS,
    ENV_VISIBLE_DEVICES,
    NO_CARD,
)
from gpushare.errors import RequestError
from gpushare.objects.model import Pod

Injection = Literal["cdi", "runtime", "runtime-cdi"]
INJECTIONS: Final[tuple[Injection, ...]] = (BY_CDI, BY_RUNTIME, BY_RUNTIME_CDI)


@dataclass(frozen=True, slots=True)
class Grant:
    """The cards of one pod, in index order."""

    pod: Pod
    request: Request
    cards: tuple[Card, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(card.uuid for card in self.cards)

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(card.tag for card in self.cards)

    def environment(self, container: str, injection: Injection = BY_RUNTIME) -> dict[str, str]:
        """The variables that one container gets; Refused if the pod has no such container.

        Where NVIDIA's own CDI edits open the cards to it, NVIDIA's runtime must not.
        """
        units = next((c.units for c in self.request.containers if c.name == container), 0)
        if not units:
            raise Refused(f"pod {self.pod.key}: container {container!r} asks for no share")
        visible: dict[Injection, str] = {
            BY_CDI: NO_CARD,
            BY_RUNTIME: ",".join(self.uuids),
            BY_RUNTIME_CDI: ",".join(f"{CDI_KIND_RUNTIME}={uuid}" for uuid in self.uuids),
        }
        return {
            ENV_VISIBLE_DEVICES: visible[injection],
            ENV_CARD_UUID: ",".join(self.uuids),
            ENV_INDEX: ",".join(str(card.index) for card in self.cards),
            ENV_POD_UNITS: str(self.request.units),
            ENV_CONTAINER_UNITS: str(units),
            ENV_CARD_UNITS: ",".join(str(card.units) for card in self.cards),
        }


def has_decision(pod: Pod) -> bool:
    return bool(pod.annotations.get(ANNOTATION_INDEX) or pod.annotations.get(ANNOTATION_CARDS))


def check_own_variable(request: Request, pod: Pod) -> None:
    """Refused if a container sets NVIDIA_VISIBLE_DEVICES.

    That wins over the plugin without CDI, and on CRI-O always.
    """
    names = [container.name for container in request.containers if container.sets_cards]
    if names:
        raise Refused(
            f"pod {pod.key}: container {', '.join(names)} sets {ENV_VISIBLE_DEVICES} itself, which "
            f"wins over the card decided on where early binding runs, and on CRI-O: take the "
            f"variable out of the pod, or run it where containerd has CDI on",
            pod=pod,
            reason=Reason.SETS_CARDS,
        )


def without_decision(pod: Pod) -> Refused:
    return Refused(
        f"no card was decided on for pod {pod.key}: kube-scheduler is not using the gpushare "
        f"extender for this pod (annotation {ANNOTATION_INDEX} is missing; see the extender's "
        f"part in kube-scheduler's configuration, and the pod's schedulerName)",
        pod=pod,
        reason=Reason.NO_DECISION,
    )


def grant_of(pod: Pod, inventory: Inventory | None) -> Grant:
    """What ``pod`` may use; Refused, saying why, if that cannot be told or is not here."""
    if not has_decision(pod):
        raise without_decision(pod)
    if inventory is None:
        raise Refused(f"pod {pod.key}: the cards of this node are not known yet")
    try:
        check_annotations(pod)
        request = amounts_of(pod)
    except RequestError as err:
        raise _unreadable(pod, f"pod {pod.key}: {err}") from err
    if contradicts_decision(pod):
        raise _unreadable(
            pod,
            f"pod {pod.key}: annotations {ANNOTATION_CARDS} and {ANNOTATION_RUNNING_ON} name "
            f"different cards, so somebody changed one of them: delete the pod",
        )
    share = share_of(pod, inventory)
    if share is None:
        raise Refused(f"pod {pod.key} holds no share: it is not bound, or it has ended")
    if share.is_unplaced and not _is_placed_anywhere(pod):
        raise _unreadable(pod, f"pod {pod.key}: its card cannot be told: {share.why_unplaced}")
    if share.is_unplaced:
        raise Refused(
            f"pod {pod.key}: {share.why_unplaced}: was it replaced, or the node made anew?",
            pod=pod,
            reason=Reason.CARD_GONE,
        )
    cards = [card for card in inventory.cards if card.uuid in share.cards]
    if len(cards) != request.card_count:
        raise _unreadable(
            pod,
            f"pod {pod.key} asks for {request.card_count} cards, and {len(cards)} are on its "
            f"record",
        )
    return Grant(pod, request, tuple(cards))


def _is_placed_anywhere(pod: Pod) -> bool:
    """Whether its decision can be read and names cards by UUID, be they here or not."""
    share = share_of(pod, None)
    return share is not None and not share.is_unplaced


def _unreadable(pod: Pod, text: str) -> Refused:
    return Refused(text, pod=pod, reason=Reason.DECISION_UNREADABLE)


def visible_cards(envs: Mapping[str, str], inventory: Inventory | None) -> frozenset[str]:
    """UUIDs that an environment makes visible; the older plugin wrote the driver's minor number."""
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


def off_card(device_ids: Sequence[str], tags: Sequence[str], tag_length: int) -> int:
    """How many of the IDs lie on cards other than those with ``tags``."""
    own = frozenset(tags)
    return sum(text[:tag_length] not in own for text in device_ids)
