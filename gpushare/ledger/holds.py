"""Holds and claims: resources kept for pods that have no decision yet (pure values)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """Resources for one pod: ``units`` of each of ``cards``, and CPU and memory of their node.

    ``pod_uid`` pins the slot to a pod: it does not count against that pod, what the pod reserves on
    the same cards is counted once, and it ends when the pod is bound, has ended or is deleted.
    """

    node: str
    cards: tuple[str, ...]
    units: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Free resources kept for ``owner`` (a pod's uid or a gang's name); no other pod gets them.

    All slots are kept, replaced and dropped together. ``expires_at`` is in seconds of a monotonic
    clock.
    """

    owner: str
    slots: tuple[Slot, ...]
    expires_at: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Resources that current users are about to leave, promised to ``owner``.

    A claim counts against pods of ``priority`` or lower; a pod of higher priority may still get the
    resources. It never makes a card overcommitted.
    """

    owner: str
    slots: tuple[Slot, ...]
    expires_at: float
    priority: int


@dataclass(frozen=True, slots=True)
class NodeResources:
    """Amounts of a node other than GPU memory."""

    cpu_milli: int = 0
    memory_bytes: int = 0


Kept = Hold | Claim


def counts(kept: Kept, priority: int | None) -> bool:
    """Return whether it counts against a pod of this priority; None is below all others."""
    return isinstance(kept, Hold) or priority is None or kept.priority >= priority


def where(cards: tuple[str, ...], here: set[str]) -> Iterable[str]:
    """Return the cards of ``here`` that a decision for ``cards`` may use."""
    # A decision from before the node renamed its cards may use any of them.
    return cards if here.issuperset(cards) else here


def add_units(
    kept: Iterable[Kept],
    here: set[str],
    besides: str,
    counted: dict[tuple[str, str], int],
    sums: dict[str, int],
) -> None:
    """Add the units that slots keep of each card to ``sums``; skip those of the pod ``besides``.

    Of slots pinned to a pod, only units beyond ``counted`` (its units by uid and card so far) are
    added: a pod with a slot, then also a reserve, then only the slot again finds the same units
    free each time. ``counted`` grows accordingly.
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
