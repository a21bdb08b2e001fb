"""Find room for a gang or a pod, or else the pods to evict for it (pure)."""

from collections.abc import Generator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Final

from gpushare.errors import RequestError
from gpushare.ledger.gone import Gone
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask, NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.planning.reasons import NO_ROOM_FOR_GANG, NO_ZONE_FOR_GANG, TOO_MANY_KINDS
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import Reader
from gpushare.preemption.area import VictimArea
from gpushare.preemption.areas import MOST_FITS, VictimAreas
from gpushare.preemption.candidates import candidates_of
from gpushare.preemption.choice import MOST_STEPS, Choice, Chooser, Harm
from gpushare.preemption.model import Preemption, PreemptionWorld, Rules

ATTEMPTS: Final = 3  # when the cluster changes while victims are searched
MOST_IMPROVED: Final = 16  # nodes on which other victims are tried for a single pod
MEMBERS_A_STEP: Final = 32


class VictimSearch:
    """Searches in one world. It keeps what it measured of the nodes until they change."""

    def __init__(self, world: PreemptionWorld) -> None:
        self._world = world
        self._planner = Planner(world)

    def find(
        self, ask: Ask, rules: Rules, part: int = 1
    ) -> Generator[None, None, Preemption | NoPlan]:
        """Return slots for the members and who must go for them, in short steps.

        Without victims the slots are those of a planner, also for members beyond ``ask.least``.
        With victims they are for the first ``ask.least`` members that can be read: nobody is
        evicted for the others.

        The highest priority of the victims is the lowest possible one, and each victim is needed.
        In large clusters this may not hold for members of several shapes, or if budgets permit only
        some of the victims, because the work is limited, to one ``part``th of what is worth it: if
        nothing was found for this reason, the answer has ``gave_up``.

        The cluster may change between steps. The slots fit at the moment at which they are
        returned, once the victims and the pods that are about to end are gone.
        """
        for _ in range(ATTEMPTS):
            found = yield from self._attempt(ask, rules, part)
            if found is not None:
                return found
        # The cluster changes faster than victims are found.
        return NoPlan(NO_ZONE_FOR_GANG if ask.zone_key else NO_ROOM_FOR_GANG, gave_up=True)

    def _attempt(
        self, ask: Ask, rules: Rules, part: int
    ) -> Generator[None, None, Preemption | NoPlan | None]:
        """Return the answer, or None if the cluster changed so that the victims do not suffice."""
        world, planner = self._world, self._planner
        found = yield from planner.plan(ask)
        if isinstance(found, Plan):
            return Preemption(found, is_free=True)
        if found.reason == TOO_MANY_KINDS:
            return found
        candidates = yield from candidates_of(world, ask.members, rules)
        ending = self._gone(candidates.ending)
        if candidates.ending:
            found = yield from planner.plan(ask, ending)
            if isinstance(found, Plan):
                return Preemption(found)
        if not candidates.singles and not candidates.gangs:
            return found
        least = yield from self._least(ask)
        if least is None:
            return found
        areas = VictimAreas(world, least, candidates, ending)
        areas.limit = Budget(MOST_FITS // part)
        yield from areas.measure(planner)
        chooser = Chooser(rules, MOST_STEPS // part)
        choice = yield from _choice(areas, chooser)
        yield from areas.free()
        gave_up = areas.limit.gave_up or chooser.budget.gave_up
        if choice is None or (gave_up and part > 1):  # more work may find less harm
            return replace(found, gave_up=gave_up or found.gave_up)
        gone = {name: set(uids) for name, uids in candidates.ending.items()}
        for each in choice.victims:
            gone.setdefault(each.node, set()).add(each.uid)
        plan = yield from areas.plan(planner, choice, self._gone(gone))
        if not isinstance(plan, Plan):
            return None
        victims = tuple([each.pod for each in choice.victims])
        return Preemption(plan, victims, is_free=not gone)

    def _gone(self, pods: Mapping[str, set[str]]) -> Gone:
        return Gone(self._world.ledger, self._world.requests_used, pods)

    def _least(self, ask: Ask) -> Generator[None, None, Ask | None]:
        """Return the ask for the members that must get slots; None if too few can be read."""
        reader = Reader(self._world)
        members: list[Pod] = []
        for number, pod in enumerate(ask.members):
            if number % MEMBERS_A_STEP == 0:
                yield
            if len(members) == ask.least:
                break
            try:
                reader.shape_of(pod)
            except RequestError:
                continue
            members.append(pod)
        return replace(ask, members=tuple(members)) if len(members) == ask.least else None


def _choice(areas: VictimAreas, chooser: Chooser) -> Generator[None, None, Choice | None]:
    """Return the victims that do the least harm, at the lowest level that has permitted ones."""
    lowest = []
    for area in areas.all:
        level = yield from area.lowest_level()
        if level is not None:
            lowest.append((level, area))
    for level in sorted({level for low, area in lowest for level in area.levels if level >= low}):
        found: list[tuple[Harm, Choice, VictimArea]] = []
        for low, area in lowest:
            if low <= level and level in area.levels:
                choice = yield from chooser.best(area, level)
                if choice is not None:
                    found.append((choice.harm, choice, area))
        if found:
            yield
            found.sort(key=itemgetter(0))
            choices = [choice for _, choice, _ in found[:MOST_IMPROVED]]
            if areas.shape is not None:
                for _, choice, area in found[:MOST_IMPROVED]:
                    choices.append((yield from chooser.better(area, choice, areas.shape)))
            return min(choices, key=lambda each: each.harm)
    return None
