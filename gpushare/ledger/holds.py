"""Room that is kept for pods that are not decided on yet: holds and claims (pure values)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one pod: ``units`` of each of ``cards``, and CPU and memory of their node.

    ``pod_uid`` pins it: it never stands in that pod's own way, what that pod reserves on the same
    cards is counted once, and it ends when that pod is seen bound, ended or gone.
    """

    node: str
    cards: tuple[str, ...]
    units: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Free room, kept for ``owner`` (a pod's uid, later a gang's name) against everybody.

    All slots are taken, replaced and let go of together. ``expires_at`` is in seconds of a
    monotonic clock.
    """

    owner: str
    slots: tuple[Slot, ...]
    expires_at: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Room whose present users are about to go, promised to ``owner``.

    Counted against pods of ``priority`` or lower that look for room; a higher one may still take
    it. Never counted against what runs: a card is not over its size for a promise.
    """

    owner: str
    slots: tuple[Slot, ...]
    expires_at: float
    priority: int


@dataclass(frozen=True, slots=True)
class Room:
    """What a node's pods take besides GPU memory."""

    cpu_milli: int = 0
    memory_bytes: int = 0


Kept = Hold | Claim


def counts(kept: Kept, priority: int | None) -> bool:
    """Whether it counts against a pod of this priority; None stands for one below all others."""
    return isinstance(kept, Hold) or priority is None or kept.priority >= priority


def where(cards: tuple[str, ...], here: set[str]) -> Iterable[str]:
    """The cards of ``here`` that what was decided for ``cards`` may land on."""
    # Decided when the node still named its cards otherwise: it may land on any of them.
    return cards if here.issuperset(cards) else here


def add_units(
    kept: Iterable[Kept],
    here: set[str],
    besides: str,
    counted: dict[tuple[str, str], int],
    sums: dict[str, int],
) -> None:
    """Add to ``sums`` what slots keep of each card, but for those of the pod ``besides``.

    Of what is pinned to a pod only that counts which goes beyond ``counted``, its units by uid and
    card so far: one that had a slot, then a reserve, then the slot alone again finds the same room
    each time. ``counted`` grows by it.
    """
    pinned: dict[tuple[str, str], int] = {}
    for slot in (slot for each in kept for slot in each.slots):
        if besides and slot.pod_uid == besides:
            continue
        for uuid in where(slot.cards, here):
            if slot.pod_uid:
                at = slot.pod_uid, uuid
                pinned[at] = pinned.get(at, 0) + slot.units
            else:
                sums[uuid] = sums.get(uuid, 0) + slot.units
    for at, units in pinned.items():
        more = max(0, units - counted.get(at, 0))
        sums[at[1]] = sums.get(at[1], 0) + more
        counted[at] = counted.get(at, 0) + more
