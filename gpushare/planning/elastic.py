"""Place a gang of which only some members have to be placed together (pure)."""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import combinations
from typing import Final

from gpushare.planning.areas import Area
from gpushare.planning.draft import Besides, Draft, Fit
from gpushare.planning.exchange import most_important
from gpushare.planning.first_fit import FirstFit, largest_first
from gpushare.planning.fit import fit, placed, ranks_to_place, requests_are_equal
from gpushare.planning.search.budget import Budget

MOST_TRIED: Final = 8  # members of a gang of which every choice is tried


def enough(
    besides: Besides, area: Area, members: Sequence[int], least: int, budget: Budget
) -> Generator[None, None, Fit | None]:
    """Return slots for at least ``least`` members, and for others as long as they fit.

    ``members`` are their groups, the most important first. Those that have to be placed together
    are the most important ones for which a plan is found. The others are added one by one. None is
    exact unless ``budget.gave_up``.
    """
    candidates = area.candidates
    left = [here.room for here in candidates]
    possible = []  # members that would fit if there were no others
    for group in members:
        if left[group]:
            left[group] -= 1
            possible.append(group)
    if len(possible) < least:
        return None
    if requests_are_equal(candidates):
        counts = yield from most_important(candidates, possible, budget)
        if sum(sum(each.values()) for each in counts) < least:
            return None
        return (yield from placed(besides, candidates, counts))
    for wanted in _choices(area, possible, least):
        found = yield from fit(besides, area, wanted, [()] * len(wanted), budget)
        if found is not None:
            return (yield from _with_others(area, found, possible, budget))
    found = Fit(Draft(besides), len(candidates))
    yield from _with_others(area, found, possible, budget)
    if found.members >= least:
        return found
    if len(possible) > MOST_TRIED:
        budget.gave_up = True
    return None


def _choices(area: Area, possible: Sequence[int], least: int) -> Iterator[list[int]]:
    """Return the numbers of members by group that are tried, the most important members first."""
    if len(possible) <= MOST_TRIED:
        chosen: Iterator[Sequence[int]] = combinations(possible, least)
    else:
        smallest_first = largest_first(area.candidates)[::-1]
        smallest = sorted(possible, key=smallest_first.index)
        chosen = iter((possible[:least], smallest[:least]))
    tried = set()
    for members in chosen:
        counts = Counter(members)
        wanted = tuple(counts[group] for group in range(len(area.candidates)))
        if wanted not in tried:
            tried.add(wanted)
            yield list(wanted)


def _with_others(
    area: Area, found: Fit, possible: Sequence[int], budget: Budget
) -> Generator[None, None, Fit]:
    """Add the members that are not placed yet, as long as they fit."""
    if not budget.may_rank(ranks_to_place(area, len(possible))):
        return found
    first: dict[int, FirstFit] = {}
    placed_already = [len(slots) for slots in found.slots]
    for group in possible:
        yield
        if placed_already[group]:
            placed_already[group] -= 1
            continue
        if group not in first:
            first[group] = FirstFit(found.draft, area.candidates[group])
        slot = first[group].one()
        if slot is not None:
            found.slots[group].append(slot)
    return found
