"""Plan where all members of a gang fit together (pure)."""

from collections.abc import Collection, Generator, Mapping, Sequence
from heapq import nlargest
from typing import Final

from gpushare.errors import RequestError
from gpushare.ledger.gone import NOBODY, Gone
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.placement.trial import World
from gpushare.planning.areas import Area, areas_of
from gpushare.planning.ask import MOST_ROOMS, Ask, NoPlan, Plan, ZoneRoom
from gpushare.planning.checking import Checker, by_node
from gpushare.planning.draft import Besides, Fit
from gpushare.planning.elastic import enough
from gpushare.planning.first_fit import largest_first
from gpushare.planning.fit import fit, greedy, ranks_to_place
from gpushare.planning.index import ShapeIndexes
from gpushare.planning.reasons import (
    NO_ROLE,
    NO_ROOM_FOR_GANG,
    NO_ZONE_FOR_GANG,
    NO_ZONES,
    TOO_MANY_KINDS,
    UNREADABLE_MEMBER,
)
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import EqualMembers, Reader, Shape, grouped
from gpushare.planning.work import Seen, changed_of, is_too_much, seen_now
from gpushare.process.sorting import sorted_in_steps

JUDGED_A_STEP: Final = 64
SLOTS_A_STEP: Final = 128
NODES_A_STEP: Final = 16
AREAS_A_STEP: Final = 16
ATTEMPTS: Final = 3  # when the cluster changes while a plan is made


class Planner:
    """Plans for one world. It keeps what it measured of the nodes until they change."""

    def __init__(self, world: World) -> None:
        self.indexes = ShapeIndexes(world)
        self._world = world
        self._last: tuple[Sequence[Slot], Seen] = (), (0, 0)  # slots that all could be used then

    def plan(self, ask: Ask, gone: Gone = NOBODY) -> Generator[None, None, Plan | NoPlan]:
        """Return slots for the members, or why there are none, in steps of at most 2 ms.

        Pods that are ``gone`` do not count. Room that is held or claimed for less important pods is
        used only if the members do not fit without it. The cluster may change between steps. The
        slots fit at the moment at which they are returned, so take them before anything else runs.
        """
        if ask.least > len(ask.members):
            raise ValueError(f"{ask.least} slots for {len(ask.members)} members: ask for fewer")
        reader = Reader(self._world)
        groups, unreadable = yield from grouped(reader, ask.members, ask.avoid)
        if len(ask.members) - unreadable < ask.least:
            return NoPlan(UNREADABLE_MEMBER)
        if not groups:
            return Plan((), ask.zone or "")
        if (yield from is_too_much(self._world, self.indexes.names, ask, groups)):
            return NoPlan(TOO_MANY_KINDS, gave_up=True)
        priority = min(pod.priority for pod in ask.members)
        own = self._world.ledger.hold_of(ask.owner)
        if own is not None:  # other members may be less important
            priority = min(priority, own.priority)
        found: Plan | NoPlan
        if self._world.ledger.outranked(priority):
            found = yield from self._planned(ask, groups, gone, None)
            if isinstance(found, Plan):
                return found
        return (yield from self._planned(ask, groups, gone, priority))

    def _planned(
        self, ask: Ask, groups: list[EqualMembers], gone: Gone, priority: int | None
    ) -> Generator[None, None, Plan | NoPlan]:
        for _ in range(ATTEMPTS):
            attempt = Attempt(self._world, ask, groups, gone, priority)
            yield from attempt.measure(self.indexes)
            found = yield from attempt.find()
            yield from attempt.free()
            if isinstance(found, NoPlan):
                return found
            if (yield from attempt.is_current(found)):
                if gone is NOBODY:
                    self._last = found.slots, seen_now(self._world)
                return found
        # The cluster changes faster than a plan is made.
        return NoPlan(NO_ZONE_FOR_GANG if ask.zone_key else NO_ROOM_FOR_GANG, gave_up=True)

    def are_usable(
        self,
        slots: Sequence[Slot],
        pods: Mapping[str, Pod],
        cooling: Collection[str] = (),
        gone: Gone = NOBODY,
    ) -> Generator[None, None, bool]:
        """Return whether all slots can be used now, in short steps; arguments as in ``unusable``.

        If so, and nobody is ``gone``, ``unusable`` then judges only the nodes that change.
        """
        seen, nodes = seen_now(self._world), by_node(slots)
        names = list(nodes)
        for first in range(0, len(names), NODES_A_STEP):
            yield
            some = [slot for name in names[first : first + NODES_A_STEP] for slot in nodes[name]]
            here = {slot.pod_uid: pods[slot.pod_uid] for slot in some}
            if self.unusable(some, here, cooling, gone):
                return False
        if gone is NOBODY:
            self._last = slots, seen
        return True

    def unusable(
        self,
        slots: Sequence[Slot],
        pods: Mapping[str, Pod],
        cooling: Collection[str] = (),
        gone: Gone = NOBODY,
    ) -> dict[str, Reason]:
        """Return why slots cannot be used now, by the uid of their pods.

        ``pods`` are those of the slots to judge, by uid. What holds and claims keep for these pods
        does not count, nor pods that are ``gone``. If not all slots fit together, earlier ones come
        first. The slots of the last plan cost nothing as long as their nodes do not change.
        """
        nodes = by_node([slot for slot in slots if slot.pod_uid in pods])
        if slots is self._last[0]:
            changed = changed_of(self._world, self._last[1], nodes) | set(cooling)
            nodes = {name: here for name, here in nodes.items() if name in changed}
        reader = Reader(self._world)
        shapes: dict[str, Shape] = {}
        for slot in (slot for here in nodes.values() for slot in here):
            try:
                shapes[slot.pod_uid] = reader.shape_of(pods[slot.pod_uid])
            except RequestError:
                continue  # judged as a slot for another request
        priority = min((pod.priority for pod in pods.values()), default=0)
        besides = Besides(self._world, pods.keys(), priority, gone)
        checker = Checker(self._world, besides, shapes, cooling)
        found: dict[str, Reason] = {}
        for name, here in nodes.items():
            found |= checker.why_not(name, here)
        return found


class Attempt:
    """One attempt to place the members in the cluster as it is now, without pods that are gone.

    Claims below ``priority`` do not count; None counts all. ``areas`` are those in which the
    members may be, the best first, once they are measured.
    """

    def __init__(
        self,
        world: World,
        ask: Ask,
        groups: list[EqualMembers],
        gone: Gone,
        priority: int | None,
    ) -> None:
        self._world, self._ask, self._groups = world, ask, groups
        self._shapes = {pod.uid: group.shape for group in groups for pod in group.pods}
        self.besides = Besides(world, self._shapes.keys(), priority, gone)
        self.areas: list[Area] = []
        self._hints = [
            [ask.hints[pod.uid] for pod in group.pods if pod.uid in ask.hints] for group in groups
        ]
        self._seen = (0, 0)
        self.reason = NO_ZONE_FOR_GANG if ask.zone_key else NO_ROOM_FOR_GANG

    def measure(self, indexes: ShapeIndexes) -> Generator[None, None, None]:
        """Find the areas and how many members each node takes."""
        ask = self._ask
        self._seen = seen_now(self._world)
        found = yield from indexes.current([group.shape for group in self._groups])
        pairs = list(zip(self._groups, found, strict=True))
        areas = yield from areas_of(self._world, ask, self.besides, pairs)
        if ask.zone_key and not areas:
            self.reason = NO_ZONES
        if ask.zone_key and ask.zone is None and ask.roles:
            areas = [area for area in areas if _is_for(ask, area.zone)]
            if not areas:
                self.reason = NO_ROLE
        keys = []
        for area in areas:
            yield
            keys.append(self._preference(area))
        by_zone = {area.zone: area for area in areas}
        self.areas = [by_zone[key[2]] for key in (yield from sorted_in_steps(keys))]

    def find(self) -> Generator[None, None, Plan | NoPlan]:
        """Return slots in the first area in which the members fit, or why there is none."""
        ask, budget = self._ask, Budget()
        wanted = [len(group.pods) for group in self._groups]
        if sum(wanted) == len(ask.members):
            for area in self.areas:
                yield
                found = yield from fit(self.besides, area, wanted, self._hints, budget)
                if found is not None:
                    return (yield from self.pinned(area.zone, found))
        if ask.least < len(ask.members):
            budget = Budget()
            plan = yield from self._some(budget)
            if plan is not None or not ask.least:
                return plan or Plan(())
        gave_up = budget.gave_up
        rooms = yield from self._rooms(wanted, budget)
        return NoPlan(self.reason, rooms, gave_up)

    def free(self) -> Generator[None, None, None]:
        """Free the memory in steps: at once it would take longer than a step."""
        while self.areas:
            self.areas.pop()
            if len(self.areas) % AREAS_A_STEP == 0:
                yield

    def is_current(self, plan: Plan) -> Generator[None, None, bool]:
        """Return whether all slots can be used now.

        Only the nodes that have changed are judged: on the others, all that was read still holds.
        """
        checker = Checker(self._world, self.besides, self._shapes, self._ask.cooling)
        here = by_node(plan.slots)
        seen = self._seen
        while changed := changed_of(self._world, seen, here):
            seen = seen_now(self._world)
            judged = 0
            for name in changed:
                if judged >= JUDGED_A_STEP:
                    judged = 0
                    yield
                judged += len(here[name])
                if checker.why_not(name, here[name]):
                    return False
        return True

    def pinned(self, zone: str, found: Fit) -> Generator[None, None, Plan]:
        """Return the slots as those of pods: each gets its hinted node if the group has it."""
        slots: dict[str, Slot] = {}
        hints = self._ask.hints
        for group, planned in zip(self._groups, found.slots, strict=True):
            yield
            pods, mine = group.pods[: len(planned)], planned
            if hints:
                mine = _in_order_of_hints([hints.get(pod.uid, "") for pod in pods], mine)
            for number, (pod, slot) in enumerate(zip(pods, mine, strict=True)):
                if number % SLOTS_A_STEP == 0:
                    yield
                uid = pod.uid
                slots[uid] = Slot(slot.node, slot.cards, slot.units, uid, slot.requests)
        in_order = [slots[pod.uid] for pod in self._ask.members if pod.uid in slots]
        return Plan(tuple(in_order), zone)

    def _some(self, budget: Budget) -> Generator[None, None, Plan | None]:
        """Return slots for some of the members in the area where most of them fit."""
        group_of = {pod.uid: n for n, group in enumerate(self._groups) for pod in group.pods}
        members = [group_of[pod.uid] for pod in self._ask.members if pod.uid in group_of]
        best: tuple[Area, Fit] | None = None
        for area in self.areas:
            yield
            found = yield from enough(self.besides, area, members, self._ask.least, budget)
            if found is not None and (best is None or found.members > best[1].members):
                best = area, found
        return (yield from self.pinned(best[0].zone, best[1])) if best is not None else None

    def _rooms(
        self, wanted: Sequence[int], budget: Budget
    ) -> Generator[None, None, tuple[ZoneRoom, ...]]:
        """Return how many members fit in the areas with most room."""
        areas = []
        for number, area in enumerate(self.areas):
            yield
            most = sum(map(min, (here.room for here in area.candidates), wanted))
            areas.append((most, -number))
        found = []
        for most, number in nlargest(MOST_ROOMS, areas):
            area, members, without = self.areas[-number], most, 0
            if len(wanted) > 1:
                if not budget.may_rank(ranks_to_place(area, sum(wanted))):
                    break
                placed = yield from greedy(self.besides, area, wanted, [()] * len(wanted))
                members = placed.members
                pairs = zip(self._groups, placed.slots, strict=True)
                without = sum(len(slots) for group, slots in pairs if group.shape.request is None)
            found.append(ZoneRoom(area.zone, members, without))
        return tuple(sorted(found, key=lambda room: (-room.members, room.zone)))

    def _preference(self, area: Area) -> tuple[list[int], int, str]:
        """Sort the areas with the least room first: it stays free where there is more."""
        order = largest_first(area.candidates)
        here = area.candidates
        hinted = sum(
            name in here[number].takes for number, names in enumerate(self._hints) for name in names
        )
        return [here[number].room for number in order], -hinted, area.zone


def _in_order_of_hints(hints: Sequence[str], slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots so that as many as possible are on the node of the hint in their place."""
    nodes = by_node(slots)
    chosen = [here.pop(0) if (here := nodes.get(hint)) else None for hint in hints]
    rest = iter([slot for here in nodes.values() for slot in here])
    return [slot if slot is not None else next(rest) for slot in chosen]


def _is_for(ask: Ask, zone: str) -> bool:
    roles = [role for role in ask.roles if role.zone == zone]
    return not roles or any(role.admits(ask.cards) for role in roles)
