"""Divide nodes and candidates into the areas of which one has to have room for all members (pure).

A single pod may be on any node, and kube-scheduler evicts pods of one node only, so each node is an
area. With a zone key each zone is one.
"""

from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Final

from gpushare.ledger.gone import Gone
from gpushare.planning.areas import Area
from gpushare.planning.ask import Ask, NoPlan, Plan
from gpushare.planning.checking import by_node
from gpushare.planning.planner import Attempt, Planner
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import Reader, Shape, grouped
from gpushare.preemption.area import GangHere, VictimArea
from gpushare.preemption.candidates import Candidates
from gpushare.preemption.choice import Choice
from gpushare.preemption.model import PreemptionWorld
from gpushare.preemption.node_room import NodeRoom
from gpushare.preemption.rooms import OneShape, Room, SeveralShapes

MOST_FITS: Final = 4_000_000  # steps of about 1 us in all, to place members of several shapes
NODES_A_STEP: Final = 16


class VictimAreas:
    """``all`` are the areas with candidates.

    ``shape`` is that of a single pod if each node is an area. ``limit`` is for all questions
    whether members of several shapes fit.
    """

    def __init__(
        self, world: PreemptionWorld, ask: Ask, candidates: Candidates, ending: Gone
    ) -> None:
        self.all: list[VictimArea] = []
        self.shape: Shape | None = None
        self.limit = Budget(MOST_FITS)
        self._world, self._ask = world, ask
        self._attempt: Attempt | None = None
        self._candidates, self._ending = candidates, ending
        self._gangs: dict[str, dict[int, GangHere]] = {}  # by node and number of the gang

    def measure(self, planner: Planner) -> Generator[None, None, None]:
        """Read what the eligible nodes have left."""
        groups, _ = yield from grouped(Reader(self._world), self._ask.members, self._ask.avoid)
        priority = min(pod.priority for pod in self._ask.members)
        attempt = Attempt(self._world, self._ask, groups, self._ending, priority)
        yield from attempt.measure(planner.indexes)
        self._attempt = attempt
        yield from self._sort_gangs()
        if len(self._ask.members) == 1 and not self._ask.zone_key:
            self.shape = groups[0].shape
        for area in attempt.areas:
            yield from self._add(area, attempt)

    def plan(
        self, planner: Planner, choice: Choice, gone: Gone
    ) -> Generator[None, None, Plan | NoPlan | None]:
        """Return the slots of a choice, or something else if they do not fit any more."""
        ask = self._ask
        if choice.slots is not None and self._attempt is not None:
            plan = yield from self._attempt.pinned(choice.area, choice.slots)
            pods = {pod.uid: pod for pod in ask.members}
            for slots in by_node(plan.slots).values():
                yield
                if planner.unusable(slots, pods, ask.cooling, gone):
                    return None
            return plan
        if self.shape is not None:
            ask = replace(ask, only=frozenset({choice.area}))
        elif ask.zone_key:
            ask = replace(ask, zone=choice.area)
        return (yield from planner.plan(ask, gone))

    def free(self) -> Generator[None, None, None]:
        """Free the memory in steps: at once it would take longer than a step."""
        for number, area in enumerate(self.all):
            if number % NODES_A_STEP == 0:
                yield
            yield from area.free()
        if self._attempt is not None:
            yield from self._attempt.free()
        for number, classes in enumerate(self._candidates.singles.values()):
            if number % NODES_A_STEP == 0:
                yield
            classes.clear()
        while self._gangs:
            yield
            self._gangs.popitem()
        while self._candidates.gangs:
            yield
            self._candidates.gangs.pop()

    def _sort_gangs(self) -> Generator[None, None, None]:
        for number, gang in enumerate(self._candidates.gangs):
            yield
            for each in gang.members:
                here = self._gangs.setdefault(each.node, {})
                here.setdefault(number, GangHere(gang, [])).here.append(each)

    def _add(self, area: Area, attempt: Attempt) -> Generator[None, None, None]:
        singles, names = self._candidates.singles, set[str]()
        for each in area.candidates:
            yield
            names.update(each.takes)
        rooms = {}
        for number, name in enumerate(names):
            if number % NODES_A_STEP == 0:
                yield
            account, free = attempt.besides.left(name)
            if free is not None and (self.shape is None or name in singles or name in self._gangs):
                rooms[name] = NodeRoom(account, free)
        if self.shape is None:
            yield
            gangs = yield from self._gangs_in(rooms)
            here = {name: singles[name] for name in rooms if name in singles}
            of_all = yield from self._room(area, rooms)
            self.all.append(VictimArea(area.zone, of_all, here, gangs))
            return
        for number, (name, room) in enumerate(rooms.items()):
            if number % NODES_A_STEP == 0:
                yield
            here = {name: singles[name]} if name in singles else {}
            gangs = list(self._gangs.get(name, {}).values())
            self.all.append(VictimArea(name, OneShape({name: room}, self.shape, 1), here, gangs))

    def _room(self, area: Area, rooms: dict[str, NodeRoom]) -> Generator[None, None, Room]:
        if len(area.candidates) == 1:
            (here,) = area.candidates
            return OneShape(rooms, here.group.shape, here.wanted)
        found = SeveralShapes(self._world, rooms, area, self.limit)
        yield from found.read()
        return found

    def _gangs_in(self, nodes: Iterable[str]) -> Generator[None, None, list[GangHere]]:
        found: dict[int, GangHere] = {}
        for name in nodes:
            for number, each in self._gangs.get(name, {}).items():
                yield
                found.setdefault(number, GangHere(each.gang, [])).here.extend(each.here)
        return [found[number] for number in sorted(found)]
