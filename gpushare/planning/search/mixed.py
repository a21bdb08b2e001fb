"""Search for slots of members with different requests (pure).

Cards first: if these are too few whatever else there is, the members do not fit. Then cards are
packed as if nothing else were used, and if other resources are enough for that it is the plan. Else
nodes are searched.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Final

from gpushare.planning.areas import Candidates
from gpushare.planning.draft import Besides, Draft, Fit
from gpushare.planning.first_fit import FirstFit, largest_first
from gpushare.planning.search.budget import Budget
from gpushare.planning.search.node_search import NodeSearch
from gpushare.planning.search.node_states import NodeStates
from gpushare.planning.search.packing import Packing, does_exceed
from gpushare.planning.search.problem import Problem
from gpushare.planning.search.slots import add_moved, add_packed

MOST_SEARCHED: Final = 64  # members for which nodes are searched
FEW_MEMBERS: Final = 8  # on FEW_NODES: the search goes on until it is exact
FEW_NODES: Final = 8
FEW_STEPS: Final = 2_000_000
MOST_PACKINGS: Final = 8
STEPS_A_MEMBER: Final = 10  # to make slots of a packing


def search(
    besides: Besides, candidates: Sequence[Candidates], wanted: Sequence[int], budget: Budget
) -> Generator[None, None, Fit | None]:
    """Return slots for ``wanted`` members of each group; None if not all fit.

    None is exact unless ``budget.gave_up``.
    """
    problem = Problem(candidates, wanted)
    yield from problem.read(Draft(besides))
    if problem.lacks_resources() or (yield from _lacks_cards(problem)):
        return None
    are_few = sum(wanted) <= FEW_MEMBERS and len(problem.nodes) <= FEW_NODES
    mine = Budget(FEW_STEPS) if are_few else budget
    part = Budget(mine.left if problem.is_only_cards() else mine.left // 2)
    found, packings = yield from _packed(besides, candidates, wanted, part)
    mine.left -= part.used
    if found is not None:
        return found
    if problem.is_only_cards() and not packings:
        budget.gave_up |= part.gave_up
        return None
    if sum(wanted) > MOST_SEARCHED:
        budget.gave_up = True
        return None
    states = NodeStates(problem.kinds)
    nodes = Counter(states.number(node.state) for node in problem.nodes)
    moves = yield from NodeSearch(states, nodes, problem.counts, tries_all=are_few).run(mine)
    budget.gave_up |= mine.gave_up
    found = Fit(Draft(besides), len(wanted))
    if moves is None or not (yield from add_moved(found, problem, states, moves)):
        return None
    return found


def _packed(
    besides: Besides, candidates: Sequence[Candidates], wanted: Sequence[int], budget: Budget
) -> Generator[None, None, tuple[Fit | None, int]]:
    """Return slots of a packing, if other resources are enough for it, and how many were tried.

    Packing is for members with one card, so those with several cards are placed before. Pods may be
    bound between two steps: then the search for a packing begins again with the cards as they are.
    """
    packing: Packing | None = None
    asked: tuple[dict[int, int], Counter[int]] | None = None
    for packings in range(MOST_PACKINGS):
        found = Fit(Draft(besides), len(wanted))
        left = list(wanted)
        for group in largest_first(candidates):
            if candidates[group].group.shape.need.card_count > 1:
                first_fit = FirstFit(found.draft, candidates[group])
                found.slots[group] = yield from first_fit.some(wanted[group])
                left[group] -= len(found.slots[group])
        rest = Problem(candidates, left)
        yield from rest.read(found.draft)
        if not rest.is_only_cards():
            return None, packings
        sizes, bins = now = rest.sizes(), rest.bins()
        if packing is None or now != asked:
            packing, asked = Packing(list(sizes), list(sizes.values()), bins), now
        packed = yield from packing.find(budget)
        if packed is None:
            return None, packings
        if (yield from add_packed(found, rest, packed)):
            return found, packings
        budget.spend(STEPS_A_MEMBER * sum(wanted))
    return None, MOST_PACKINGS


def _lacks_cards(problem: Problem) -> Generator[None, None, bool]:
    sizes = problem.sizes()
    return (yield from does_exceed(list(sizes), list(sizes.values()), problem.bins()))
