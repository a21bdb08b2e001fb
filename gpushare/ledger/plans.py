"""Find holds and claims by owner, by pod and by priority (pure).

A change costs what its slots cost, never what all slots of a gang cost: a gang of a thousand pods
is bound one pod at a time.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.ledger.holds import (
    HOLD_PRIORITY,
    Claim,
    Hold,
    Holder,
    Kept,
    Slot,
    SlotKey,
    holder_of,
)
from gpushare.ledger.overlay import Overlay, is_own

Change = Callable[[Holder, SlotKey, Slot], None]
_PlanKey = tuple[type[Kept], str]
_KINDS: Final[tuple[type[Kept], ...]] = (Hold, Claim)
_NOBODY: Final[frozenset[_PlanKey]] = frozenset()


@dataclass(slots=True)
class _Plan:
    holder: Holder
    expires_at: float
    slots: dict[SlotKey, Slot]

    @property
    def kept(self) -> Kept:
        return self.holder.kept(self.slots.values(), self.expires_at)


@dataclass(frozen=True, slots=True)
class PlanMaps:
    plans: MutableMapping[_PlanKey, _Plan] = field(default_factory=dict)
    owners: MutableMapping[tuple[type[Kept], str], str] = field(default_factory=dict)  # by pod
    ranked: MutableMapping[int, frozenset[_PlanKey]] = field(default_factory=dict)  # by priority

    def overlay(self) -> "PlanMaps":
        return PlanMaps(Overlay(self.plans), Overlay(self.owners), Overlay(self.ranked))


class Plans:
    """All holds and claims. Each slot that begins or ends is told to ``put`` or ``take``.

    A pod has one slot at most in all holds, and one in all claims: the last one counts.
    """

    def __init__(self, maps: PlanMaps, put: Change, take: Change) -> None:
        self.maps = maps
        self._plans, self._owners, self._ranked = maps.plans, maps.owners, maps.ranked
        self._put, self._take = put, take

    def keep(self, kept: Kept, bound: Container[str]) -> None:
        """Replace the owner's hold or claim; slots of pods in ``bound`` are left out."""
        holder = holder_of(kept)
        new = _keyed(kept.owner, (slot for slot in kept.slots if slot.pod_uid not in bound))
        before = self._plans.get((holder.kind, holder.owner))
        same: dict[SlotKey, Slot] = {}
        if before is not None:
            old = before.slots
            if before.holder == holder:
                holder = before.holder  # all slots have the same one
                same = {key: slot for key, slot in old.items() if new.get(key) == slot}
            for key, slot in old.items():
                if key not in same:
                    self._leave(before.holder, key, slot)
            if not new or not same:
                self._delete(before.holder)
        if not new:
            return
        plan = _Plan(holder, kept.expires_at, new)
        if not same:
            self._add(plan)
        else:
            self._plans[holder.kind, holder.owner] = plan
        for key, slot in new.items():
            if key not in same:
                self._enter(holder, key, slot)

    def put_slot(self, owner: str, slot: Slot) -> None:
        """Add a pinned slot to a hold that there is, or replace the pod's slot in it."""
        plan = self._own((Hold, owner))
        before = plan.slots.get(slot.pod_uid)
        if before == slot:
            return
        if before is not None:
            self._leave(plan.holder, slot.pod_uid, before)
        plan.slots[slot.pod_uid] = slot
        self._enter(plan.holder, slot.pod_uid, slot)

    def drop_pod(self, uid: str) -> None:
        """End the slots pinned to a pod."""
        for kind in _KINDS:
            self._end(kind, uid)

    def drop(self, kind: type[Kept], owner: str) -> Kept | None:
        plan = self._plans.get((kind, owner))
        if plan is None:
            return None
        for key, slot in plan.slots.items():
            self._leave(plan.holder, key, slot)
        self._delete(plan.holder)
        return plan.kept

    def renew(self, owner: str, expires_at: float) -> bool:
        """Set when a hold expires; return whether there is one."""
        if not self.has(Hold, owner):
            return False
        self._own((Hold, owner)).expires_at = expires_at
        return True

    def make_firm(self, owner: str) -> set[str]:
        """Let a hold count against all pods; return the nodes where that is new."""
        plan = self._plans.get((Hold, owner))
        if plan is None or plan.holder.priority == HOLD_PRIORITY:
            return set()
        self._unrank(plan.holder)
        plan.holder.priority = HOLD_PRIORITY
        return {slot.node for slot in plan.slots.values()}

    def expired(self, now: float) -> list[Holder]:
        return [plan.holder for plan in self._plans.values() if plan.expires_at <= now]

    def get(self, kind: type[Kept], owner: str) -> Kept | None:
        plan = self._plans.get((kind, owner))
        return plan.kept if plan is not None else None

    def count(self, kind: type[Kept], owner: str) -> int:
        plan = self._plans.get((kind, owner))
        return len(plan.slots) if plan is not None else 0

    def has(self, kind: type[Kept], owner: str) -> bool:
        return (kind, owner) in self._plans

    def pins(self, uid: str) -> bool:
        """Return whether a slot is pinned to the pod."""
        return (Hold, uid) in self._owners or (Claim, uid) in self._owners

    def expires_at(self, holder: Holder) -> float:
        return self._plans[holder.kind, holder.owner].expires_at

    def slot_of(self, kind: type[Kept], uid: str) -> Slot | None:
        owner = self._owners.get((kind, uid))
        return self._plans[kind, owner].slots[uid] if owner is not None else None

    def slots_of(self, uid: str) -> list[Slot]:
        """Return the slots of a pod: of a hold, of a claim, or both."""
        found = (self.slot_of(kind, uid) for kind in _KINDS)
        return [slot for slot in found if slot is not None]

    def outranked(self, priority: int) -> set[str]:
        """Return the nodes with holds and claims below this priority; without any it is free."""
        return {
            slot.node
            for below, keys in self._ranked.items()
            if below < priority
            for key in keys
            for slot in self._plans[key].slots.values()
        }

    def holders(self) -> list[Holder]:
        return [plan.holder for plan in self._plans.values()]

    def __iter__(self) -> Iterator[Kept]:
        return (plan.kept for plan in self._plans.values())

    def _end(self, kind: type[Kept], uid: str) -> None:
        owner = self._owners.get((kind, uid))
        if owner is None:
            return
        plan = self._own((kind, owner))
        self._leave(plan.holder, uid, plan.slots.pop(uid))
        if not plan.slots:
            self._delete(plan.holder)

    def _enter(self, holder: Holder, key: SlotKey, slot: Slot) -> None:
        if slot.pod_uid:
            self._end(holder.kind, slot.pod_uid)  # of another owner
            self._owners[holder.kind, slot.pod_uid] = holder.owner
        self._put(holder, key, slot)

    def _leave(self, holder: Holder, key: SlotKey, slot: Slot) -> None:
        if slot.pod_uid:
            del self._owners[holder.kind, slot.pod_uid]
        self._take(holder, key, slot)

    def _add(self, plan: _Plan) -> None:
        holder = plan.holder
        self._plans[holder.kind, holder.owner] = plan
        if holder.priority < HOLD_PRIORITY:
            keys = self._ranked.get(holder.priority, _NOBODY)
            self._ranked[holder.priority] = keys | {(holder.kind, holder.owner)}

    def _delete(self, holder: Holder) -> None:
        del self._plans[holder.kind, holder.owner]
        if holder.priority < HOLD_PRIORITY:
            self._unrank(holder)

    def _unrank(self, holder: Holder) -> None:
        keys = self._ranked[holder.priority] - {(holder.kind, holder.owner)}
        if keys:
            self._ranked[holder.priority] = keys
        else:
            del self._ranked[holder.priority]

    def _own(self, key: _PlanKey) -> _Plan:
        """Return a plan to be changed: an overlay changes a copy."""
        plan = self._plans[key]
        if not is_own(self._plans, key):
            plan = _Plan(plan.holder, plan.expires_at, dict(plan.slots))
            self._plans[key] = plan
        return plan


def _keyed(owner: str, slots: Iterable[Slot]) -> dict[SlotKey, Slot]:
    found: dict[SlotKey, Slot] = {}
    equal: Counter[Slot] = Counter()
    for slot in slots:
        if slot.pod_uid:
            found[slot.pod_uid] = slot
            continue
        found[owner, slot, equal[slot]] = slot
        equal[slot] += 1
    return found
