"""Holds and claims: resources kept for pods that have no decision yet (pure values)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from gpushare.contract import RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.objects.pod_requests import Requests


class Slot(msgspec.Struct, gc=False, frozen=True):
    """Resources for one pod: ``units`` of each of ``cards``, and ``requests`` of their node.

    ``cards`` are UUIDs; a pod without GPU memory has none. ``requests`` has all that
    kube-scheduler counts, also GPU memory, and one of ``pods``.

    ``pod_uid`` pins the slot to a pod: it does not count against that pod, what the pod reserves on
    the same cards is counted once, and it ends when the pod is bound, has ended or is deleted.
    """

    node: str
    cards: tuple[str, ...]
    units: int
    pod_uid: str = ""
    requests: Requests = ()


HOLD_PRIORITY: Final = 2**31  # above every pod's: such a hold counts against all


@dataclass(frozen=True, slots=True)
class Hold:
    """Free resources kept for ``owner`` (a pod's uid or a gang's name).

    They count against pods of ``priority`` or lower. Code that gives them to a pod of higher
    priority drops the hold. ``expires_at`` is in seconds of a monotonic clock.
    """

    owner: str
    slots: tuple[Slot, ...]
    expires_at: float
    priority: int = HOLD_PRIORITY


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


Kept = Hold | Claim

_COUNTED_BY_CARD: Final = frozenset({RESOURCE_MEMORY, RESOURCE_COUNT})

# The uid of the pod that a slot is pinned to; else owner, slot and the number of equal ones so far.
SlotKey = str | tuple[str, Slot, int]


class Holder(msgspec.Struct, gc=False):
    """Whose a slot is; all slots of a hold or claim share one holder."""

    kind: type[Kept]
    owner: str
    priority: int

    def counts(self, priority: int | None) -> bool:
        """Return whether it counts against a pod of this priority; None is below all others."""
        return priority is None or self.priority >= priority

    def kept(self, slots: Iterable[Slot], expires_at: float) -> Kept:
        return self.kind(self.owner, tuple(slots), expires_at, self.priority)


def holder_of(kept: Kept) -> Holder:
    return Holder(type(kept), kept.owner, kept.priority)


def requests_kept(kind: type[Kept], slot: Slot) -> Requests:
    """Return the requests of a slot that count in the sums of its node.

    The GPU memory of a claim counts on its cards only, where it overcommits none: in a sum it would
    count on top of what the current users of these cards still use.
    """
    if kind is Hold:
        return slot.requests
    return tuple([each for each in slot.requests if each[0] not in _COUNTED_BY_CARD])
