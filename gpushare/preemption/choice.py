"""Choose permitted victims of an area that do the least harm (pure)."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final, NamedTuple

from gpushare.planning.draft import Fit
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import Shape
from gpushare.preemption.area import VictimArea
from gpushare.preemption.candidates import LOWEST, Candidate, exceeded
from gpushare.preemption.model import Rules
from gpushare.preemption.put_back import CANDIDATES_A_STEP, Order, Outcome, put_back

MOST_STEPS: Final = 500_000  # candidates that are let go and put back again, of about 2 us
STEPS_A_TRY: Final = 20
MOST_SETS: Final = 28  # of cards that are tried: all pairs of 8

_NOBODY: Final[frozenset[str]] = frozenset()


class Harm(NamedTuple):
    """What makes victims worse than others, the most important first.

    ``is_slow``: one of them may take longer to end than anybody waits. It comes after the priority:
    no long grace period has more important pods evicted.
    """

    level: int
    is_slow: bool
    pods: int
    units: int
    not_hinted: int
    grace: int
    area: str


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Each of the ``victims`` is needed, and together they are permitted.

    There are none if room came meanwhile, or if a planner did not find that the members fit.
    ``slots`` are those of the members without the victims, if they were planned already.
    """

    area: str
    victims: Sequence[Candidate]
    harm: Harm
    slots: Fit | None


class Chooser:
    """Tries again with some candidates kept if the victims of an area are not permitted together.

    ``budget``, of ``steps``, is for these tries in all areas; the first try of each is free.
    """

    def __init__(self, rules: Rules, steps: int = MOST_STEPS) -> None:
        self.budget, self._improving = Budget(steps), Budget(MOST_STEPS)
        self._rules = rules

    def best(self, area: VictimArea, level: int) -> Generator[None, None, Choice | None]:
        """Return permitted victims up to a level; None if there are none.

        None is exact unless the budget gave up.
        """
        best: Choice | None = None
        tried: set[Order] = set()
        orders = [Order()]
        while orders:
            order = orders.pop()
            if order in tried or (tried and not _has_steps(self.budget, area)):
                continue
            tried.add(order)
            outcome = yield from put_back(area, level, order)
            if outcome is None:
                continue
            yield
            broken = exceeded(outcome.victims, self._rules)
            yield
            if not broken and not outcome.excess:
                found = _choice(area, outcome)
                best = found if best is None or found.harm < best.harm else best
                continue
            scarce = (yield from _selected(area, set(broken))) if broken else _NOBODY
            if scarce <= order.first:
                # One of them has to be kept: any set of victims that is permitted lacks one.
                some = outcome.excess
                if broken:
                    some = [each for each in outcome.victims if each.budget == broken[0]]
                orders += [Order(order.kept | {each.uid}, order.first) for each in some[::-1]]
            else:
                orders.append(Order(order.kept, order.first | scarce))
        return best

    def better(
        self, area: VictimArea, choice: Choice, shape: Shape
    ) -> Generator[None, None, Choice]:
        """Return victims of a single node for one pod that do less harm, if some are found.

        For each choice of cards, those are put back first that are not on them. Victims that an
        earlier search has chosen stay as they are.
        """
        if not choice.harm.not_hinted:
            return choice
        for order in _orders(area, shape):
            if not _has_steps(self._improving, area):
                break
            outcome = yield from put_back(area, choice.harm.level, order)
            if outcome is None or outcome.excess or exceeded(outcome.victims, self._rules):
                continue
            found = _choice(area, outcome)
            choice = found if found.harm < choice.harm else choice
        return choice


def _has_steps(budget: Budget, area: VictimArea) -> bool:
    return budget.spend(STEPS_A_TRY + area.size)


def _choice(area: VictimArea, outcome: Outcome) -> Choice:
    victims = outcome.victims
    level = max((each.level for each in victims), default=LOWEST)
    units = sum(each.units for each in victims)
    not_hinted = sum(not each.is_hinted for each in victims)
    is_slow = any(each.is_slow for each in victims)
    grace = max((each.pod.grace_seconds for each in victims), default=0)
    harm = Harm(level, is_slow, len(victims), units, not_hinted, grace, area.name)
    return Choice(area.name, victims, harm, outcome.slots)


def _orders(area: VictimArea, shape: Shape) -> Iterator[Order]:
    """Return orders in which those are put back last that are on the cards of one choice."""
    (room,) = area.room.nodes.values()
    need = shape.need
    everybody = list(_candidates(area))
    missing: dict[str, int] = {}
    for uuid in room.wanted(shape):
        missing[uuid] = _needed(uuid, room.units_before(uuid), everybody, need.units)
    cheapest = sorted(missing, key=lambda uuid: missing[uuid])
    for cards in islice(combinations(cheapest, need.card_count), MOST_SETS):
        first = frozenset(
            each.uid
            for each in everybody
            if each.share is not None and each.share.cards and not {*cards} & {*each.share.cards}
        )
        yield Order(first=first)
        yield Order(first=first, larger=True)
    yield Order(larger=True)


def _candidates(area: VictimArea) -> Iterator[Candidate]:
    for classes in area.singles.values():
        for here in classes.values():
            yield from here
    for each in area.gangs:
        yield from each.here


def _selected(area: VictimArea, budgets: set[str]) -> Generator[None, None, frozenset[str]]:
    """Return the uids of the candidates that one of the budgets selects."""
    found = set()
    for number, each in enumerate(_candidates(area)):
        if number % CANDIDATES_A_STEP == 0:
            yield
        if each.budget in budgets:
            found.add(each.uid)
    return frozenset(found)


def _needed(uuid: str, free: int, candidates: Sequence[Candidate], wanted: int) -> int:
    """Return how many candidates must go at least so that a card has so many units free."""
    units = sorted(
        (each.share.units for each in candidates if each.share and uuid in each.share.cards),
        reverse=True,
    )
    for number, much in enumerate(units):
        if free >= wanted:
            return number
        free += much
    return len(units) if free >= wanted else len(candidates) + 1
