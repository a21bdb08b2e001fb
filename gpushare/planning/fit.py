"""Find slots for some members of each group in one area (pure)."""

from collections.abc import Generator, Sequence

from gpushare.planning.areas import Area, Candidates
from gpushare.planning.draft import Besides, Draft, Fit
from gpushare.planning.exchange import Counts, spread_out
from gpushare.planning.first_fit import FirstFit, largest_first, on_hinted_nodes
from gpushare.planning.search.budget import Budget
from gpushare.planning.search.mixed import search

Hints = Sequence[Sequence[str]]  # by group: the nodes that its members had


def fit(
    besides: Besides, area: Area, wanted: Sequence[int], hints: Hints, budget: Budget
) -> Generator[None, None, Fit | None]:
    """Return slots for ``wanted`` members of each group; None if not all fit.

    None is exact unless ``budget.gave_up``.
    """
    candidates = area.candidates
    if any(here.room < count for here, count in zip(candidates, wanted, strict=True)):
        return None
    ranks = ranks_to_place(area, sum(wanted))
    if any(hints) and budget.may_rank(ranks):
        found = yield from greedy(besides, area, wanted, hints)
        if found.members == sum(wanted):
            return found
    if not budget.may_rank(ranks):
        return None
    found = yield from greedy(besides, area, wanted, [()] * len(wanted))
    if found.members == sum(wanted):
        return found
    if len(wanted) == 1:
        return None
    if requests_are_equal(candidates):
        counts = yield from spread_out(candidates, wanted, budget)
        return (yield from placed(besides, candidates, counts)) if counts is not None else None
    return (yield from search(besides, candidates, wanted, budget))


def greedy(
    besides: Besides, area: Area, wanted: Sequence[int], hints: Hints
) -> Generator[None, None, Fit]:
    """Return slots for as many members as fit, placed one after the other, the largest first."""
    candidates = area.candidates
    found = Fit(Draft(besides), len(candidates))
    for number in largest_first(candidates):
        hinted = hints[number][: wanted[number]]
        found.slots[number] += yield from on_hinted_nodes(found.draft, candidates[number], hinted)
    for number in largest_first(candidates):
        yield
        more = wanted[number] - len(found.slots[number])
        first_fit = FirstFit(found.draft, candidates[number])
        found.slots[number] += yield from first_fit.some(more)
    return found


def ranks_to_place(area: Area, members: int) -> int:
    """Return how many ranks it takes at most to place so many members one after the other.

    For each group all nodes are ranked again that members of others are on; on average half of all.
    """
    if len(area.candidates) == 1:
        return 0  # a node takes as many as it says, so this is done once
    nodes = max(len(here.takes) for here in area.candidates)
    return members + len(area.candidates) * min(members, nodes) // 2


def requests_are_equal(candidates: Sequence[Candidates]) -> bool:
    """Return whether a node has room for equally many members of each group that it may take."""
    return len({here.group.shape.need for here in candidates}) == 1


def placed(
    besides: Besides, candidates: Sequence[Candidates], counts: Counts
) -> Generator[None, None, Fit | None]:
    """Return the slots of so many members of each group on each node."""
    found = Fit(Draft(besides), len(candidates))
    for here, by_node, slots in zip(candidates, counts, found.slots, strict=True):
        for name in sorted(by_node):
            for _ in range(by_node[name]):
                yield
                slot = found.draft.take(here.group.shape, name)
                if slot is None:
                    return None  # the node changed since it was measured
                slots.append(slot)
    return found
