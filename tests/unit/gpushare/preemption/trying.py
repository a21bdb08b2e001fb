"""Compare the answer of a search with every set of victims that is permitted."""

from gpushare.planning.ask import NoPlan
from gpushare.preemption.model import Preemption
from tests.unit.gpushare.preemption.brute_force import BruteForce
from tests.unit.gpushare.preemption.states import State
from tests.unit.gpushare.preemption.worlds import find


def answer(state: State) -> str:
    """Return what the search answers; raise AssertionError if that is wrong."""
    found = find(state.world, state.ask, state.rules)
    every = BruteForce(state.world, state.ask, state.rules)
    members, least = len(state.ask.members), state.ask.least
    ending = every.ending
    is_free = every.fits_without((), members, least)
    is_soon = every.fits_without(ending, members, least)
    if is_free or is_soon:
        assert isinstance(found, Preemption)
        assert not found.victims
        assert found.is_free == is_free
        return "free" if is_free else "ending"
    lowest = next(
        (
            level
            for level, gone in sorted(every.sets(), key=lambda each: each[0])
            if every.fits_without(gone | ending, least, least)
        ),
        None,
    )
    if isinstance(found, NoPlan):
        assert lowest is None
        assert not found.gave_up
        return "none"
    victims = frozenset(each.uid for each in found.victims)
    assert every.permits(victims)
    assert not found.is_free
    assert max(map(every.level, victims)) == lowest
    for _, fewer in every.sets():
        if fewer < victims:
            assert not every.fits_without(fewer | ending, least, least)
    return "victims"
