"""What must hold for gangs at any moment, and once all faults have ended."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Final

from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_GANG, GANG_COMPLETING, GANG_WHOLE
from gpushare.ledger.holds import Hold
from gpushare.objects.model import Node, Pod
from tests.unit.extender.gangs.replica import Replica
from tests.unit.extender.gangs.world import (
    COMPLETE_SECONDS,
    ZONE,
    World,
    cards_of,
    gang_of,
    units_of,
)

MENDED_SECONDS: Final = 1.0  # in which the leader has looked at every hold


class Promises:
    """``whole`` are the gangs whose minimum has been bound at one time.

    A new leader may not know that of a gang that has lost members since. Nor does it know of pods
    that have succeeded and are deleted: a leader that has counted them may count them still.
    """

    def __init__(self, world: World) -> None:
        self._world, self._store = world, world.store
        self.whole: set[str] = set()
        self._known_whole: set[str] = set()
        self._once_whole: set[str] = set()
        self._succeeded: dict[str, set[str]] = {}  # uids by gang, also of deleted pods
        self._wrong: list[str] = []
        self._begun_at: dict[str, float] = {}
        self._wrong_since: dict[str, float] = {}
        self._store.begins, self._store.evicts = self._binding_begins, self._evicts
        self._store.listeners.append(self._happened)
        world.taken_over = self._taken_over

    def check(self) -> None:
        """Check everything that must hold at any moment."""
        errors = (error for each in self._world.replicas for error in each.errors)
        wrong = [*self._wrong, *self._world.errors, *errors]
        assert not wrong, "\n".join(wrong)
        self._check_cards()
        self._check_zones()
        self._check_holds()

    def why_not_settled(self) -> str:
        """Why it is not true that each gang is whole, or keeps nothing and fits nowhere."""
        world = self._world
        if world.is_busy or world.leader is None:
            return "somebody is busy"
        for gang in world.gangs:
            if gang in self.whole:
                continue
            if any(map(units_of, world.bound(gang))):
                names = [pod.metadata.name for pod in world.bound(gang)]
                return f"{gang} is bound in part: {names}"
            if world.leader.ledger.hold_of(f"default/labels/{gang}"):
                return f"{gang} keeps something"
            if self._fits(gang, world.leader):
                return f"{gang} would fit and is not bound"
        return ""

    def _happened(self, item: Pod | Node, _: bool) -> None:
        if not isinstance(item, Pod):
            return
        gang = gang_of(item)
        bound = self._world.bound(gang)
        if any(map(units_of, bound)):
            self._begun_at.setdefault(gang, self._world.loop.now)
        succeeded = self._succeeded.setdefault(gang, set())
        if item.status.phase == "Succeeded":
            succeeded.add(item.uid)
        if not self._world.members(gang):
            succeeded.clear()
        minimum = self._world.gangs[gang]["minimum"]
        if self._world.minimum_is_bound(gang):
            self._known_whole.add(gang)
        elif not bound:
            self._known_whole.discard(gang)
        if bound and len(bound) + len(succeeded) >= minimum:
            self.whole.add(gang)
            self._once_whole.add(gang)
        elif not bound and not succeeded:
            self.whole.discard(gang)  # others with this name are a new gang

    def _binding_begins(self, pod: Pod, node: str) -> None:
        """A Binding reaches the API server: judge it by what its sender knows."""
        gang, leader = gang_of(pod), self._world.leader
        group = leader.groups.of(pod.uid) if leader is not None else None
        if leader is None or group is None or gang in self.whole:
            return
        if leader.is_behind and gang in self._once_whole:
            return  # it does not know that this is a new gang
        slots = {each.uid: leader.ledger.slot_of(each.uid) for each in group.present()}
        there = sum(bool(each.node) or slots[each.uid] is not None for each in group.present())
        minimum = self._world.gangs[gang]["minimum"]
        if there + len(self._succeeded[gang]) < minimum:
            self._wrong.append(f"{pod.key} is bound while only {there} of {minimum} have room")
        slot = slots.get(pod.uid)
        if slot is not None and slot.node != node:
            self._wrong.append(f"{pod.key} is bound to {node}, and its slot is on {slot.node}")

    def _evicts(self, pod: Pod) -> None:
        gang = gang_of(pod)
        if gang in self._known_whole:
            self._wrong.append(f"{pod.key} of a whole gang is evicted")
        # A pod without a node waits for room in a zone, and is evicted before its gang begins.
        if pod.node and self._world.loop.now - self._begun_at[gang] < COMPLETE_SECONDS - 1:
            self._wrong.append(f"{pod.key} is evicted too early")
        self._world.loop.call_soon(self._world.replace, pod)

    def _taken_over(self, replica: Replica, completable: Collection[str]) -> None:
        lost = set(completable) - replica.completable() - replica.whole()
        if lost:
            self._wrong.append(f"{lost} cannot be completed any more after a takeover")
        # It may know whether a gang was whole only by its pods and what was written with Bindings.
        for gang in self._world.gangs:
            with_gpu = filter(units_of, self._world.bound(gang))
            said = {pod.annotations.get(ANNOTATION_GANG) for pod in with_gpu}
            if GANG_COMPLETING in said and not self._world.minimum_is_bound(gang):
                self.whole.add(gang)  # if one has gone: the others count as its successors
            if GANG_WHOLE not in said and not self._world.minimum_is_bound(gang):
                self._known_whole.discard(gang)

    def _check_cards(self) -> None:
        used: Counter[tuple[str, str]] = Counter()
        for pod in self._store.pods.values():
            if pod.node and not pod.is_terminal and (units := units_of(pod)):
                used[pod.node, pod.annotations[ANNOTATION_CARDS]] += units
        has = {
            (name, card.uuid): card.units
            for name, well in self._world.well.items()
            for card in cards_of(well)
        }
        assert all(units <= has[key] for key, units in used.items()), used
        for replica in self._world.replicas:
            for name in replica.ledger.nodes():
                for each in replica.ledger.account(name).cards:
                    assert each.free >= 0, (name, each)

    def _check_zones(self) -> None:
        for gang, how in self._world.gangs.items():
            bound = {pod.node for pod in self._world.bound(gang) if units_of(pod)}
            bound &= self._store.nodes.keys()
            if how["in_zone"] and len(self._zones(bound)) > 1:
                raise AssertionError(f"{gang} is bound in two zones: {bound}")

    def _zones(self, nodes: Iterable[str]) -> set[str]:
        return {self._world.well[name].labels[ZONE] for name in nodes}

    def _check_holds(self) -> None:
        now, begun = self._world.loop.now, {}
        for replica in self._world.replicas:
            for kept in list(replica.ledger.kept()):
                assert isinstance(kept, Hold)
                assert replica.leads or self._world.leader is None, f"a follower keeps {kept}"
                group = replica.groups.named(kept.owner)
                assert group is not None, kept
                record = replica.gangs.known(group)
                assert record is not None, kept
                assert record.plan, f"without a plan: {kept}"
                wrong = []
                # After it was whole, a slot is for one member, and expires by itself.
                is_one = record.is_whole
                may_let_go = not (is_one or group.begun or replica.gangs.is_binding(group))
                if may_let_go and replica.gangs.lacking(group, record):
                    wrong.append(f"{kept.owner} keeps slots without having all")
                if group.zone_key and len(self._zones(slot.node for slot in kept.slots)) > 1:
                    wrong.append(f"{kept.owner} has slots in two zones")
                begun |= {why: self._wrong_since.get(why, now) for why in wrong}
        self._wrong_since = begun
        late = [why for why, at in begun.items() if now - at > MENDED_SECONDS]
        assert not late, late

    def _fits(self, gang: str, leader: Replica) -> bool:
        """Whether the minimum can be placed, by trying everything."""
        world = self._world
        how, bound, live = world.gangs[gang], world.bound(gang), world.live(gang)
        waiting = [units_of(pod) or 0 for pod in live if not pod.node]
        # Those that have succeeded count only while there are too few others.
        placed = len(bound) + min(world.succeeded(gang), max(0, how["minimum"] - len(live)))
        missing = max(0, how["minimum"] - placed)
        zones = {world.well[pod.node].labels[ZONE] for pod in bound if units_of(pod)}
        for zone in (zones or {"x", "y"}) if how["in_zone"] else [None]:
            free = [
                each.free
                for name in leader.ledger.nodes()
                if zone in (None, world.well[name].labels[ZONE])
                for each in leader.ledger.account(name).cards
            ]
            chosen = combinations(sorted(waiting, reverse=True), missing)
            if free and any(_packs(each, free) for each in chosen):
                return True
        return False


def _packs(sizes: Sequence[int], free: Sequence[int]) -> bool:
    if not sizes:
        return True
    for place, units in enumerate(free):
        left = [*free[:place], units - sizes[0], *free[place + 1 :]]
        if left[place] >= 0 and _packs(sizes[1:], left):
            return True
    return False
