"""Search for slots of members with different requests, if they do not fit one after the other.

First the cards are packed, as if nothing else were used: if even that is impossible, the members do
not fit. If other resources are enough for that packing, it is the plan. Else nodes are searched.
(pure)
"""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Final

from gpushare.ledger.holds import Slot
from gpushare.planning.areas import Candidates
from gpushare.planning.budget import Budget
from gpushare.planning.draft import Besides, Draft, Fit
from gpushare.planning.first_fit import FirstFit
from gpushare.planning.node_search import Move, NodeSearch
from gpushare.planning.node_states import LeftCard, NodeStates
from gpushare.planning.packing import Packed, does_exceed, pack
from gpushare.planning.problem import Problem

MOST_SEARCHED: Final = 64  # members for which nodes are searched
FEW_MEMBERS: Final = 8  # on FEW_NODES: the search goes on until it is exact
FEW_NODES: Final = 8
FEW_STEPS: Final = 2_000_000


def search(
    besides: Besides, candidates: Sequence[Candidates], wanted: Sequence[int], budget: Budget
) -> Generator[None, None, Fit | None]:
    """Return slots for ``wanted`` members of each group; None if not all fit.

    None is exact unless ``budget.gave_up``.
    """
    problem = Problem(candidates, wanted)
    yield from problem.read(besides)
    sizes, bins = problem.sizes(), problem.bins()
    needed = list(sizes), list(sizes.values())
    if sizes and problem.is_only_cards():
        part = Budget(budget.left)
        packed = yield from pack(*needed, bins, part)
        budget.left -= part.used
        if packed is None:
            budget.gave_up |= part.gave_up
            return None
        found = yield from _on_cards(besides, problem, wanted, packed)
        if found is not None:
            return found
    elif sizes and (yield from does_exceed(*needed, bins)):
        return None
    total = sum(wanted)
    if total > MOST_SEARCHED:
        budget.gave_up = True
        return None
    are_few = total <= FEW_MEMBERS and len(problem.nodes) <= FEW_NODES
    part = Budget(FEW_STEPS if are_few else budget.left)
    states = NodeStates(problem.kinds)
    nodes = Counter(states.number(node.state) for node in problem.nodes)
    moves = yield from NodeSearch(states, nodes, problem.counts, tries_all=are_few).run(part)
    if not are_few:
        budget.left -= part.used
    budget.gave_up |= part.gave_up
    if moves is None:
        return None
    return (yield from _as_moved(besides, problem, wanted, states, moves))


def _on_cards(
    besides: Besides, problem: Problem, wanted: Sequence[int], packed: Packed
) -> Generator[None, None, Fit | None]:
    """Return the slots of a packing; None if resources other than cards are not enough."""
    draft, slots = Draft(besides), [list[Slot]() for _ in wanted]
    cards: dict[int, list[tuple[str, int]]] = {}
    for node in reversed(problem.nodes):
        for number, (free, _) in node.cards.items():
            cards.setdefault(free, []).append((node.name, number))
    left = list(problem.counts)
    sizes = list(problem.sizes())
    for free, members in packed:
        yield
        name, number = cards[free].pop()
        for size, count in zip(sizes, members, strict=True):
            for _ in range(count):
                kind = next(
                    kind
                    for kind, each in enumerate(problem.kinds)
                    if each.card_count and each.units == size and left[kind]
                )
                left[kind] -= 1
                slot = draft.take_cards(problem.here[kind].group.shape, name, {number})
                if slot is None:
                    return None
                slots[problem.groups[kind]].append(slot)
    for kind, count in enumerate(left):
        more = yield from FirstFit(draft, problem.here[kind]).some(count)
        if len(more) < count:
            return None
        slots[problem.groups[kind]] += more
    return Fit(draft, slots)


def _as_moved(
    besides: Besides,
    problem: Problem,
    wanted: Sequence[int],
    states: NodeStates,
    moves: Sequence[Move],
) -> Generator[None, None, Fit | None]:
    """Return the slots of the moves, and those of the last kind."""
    draft, slots = Draft(besides), [list[Slot]() for _ in wanted]
    at: dict[int, list[int]] = {}
    for place, node in reversed(list(enumerate(problem.nodes))):
        at.setdefault(states.number(node.state), []).append(place)
    for move in moves:
        yield
        place = at[move.before].pop()
        at.setdefault(move.after, []).append(place)
        node = problem.nodes[place]
        numbers = _take(node.cards, move.cards, problem.kinds[move.kind].units)
        shape = problem.here[move.kind].group.shape
        slot = draft.take_cards(shape, node.name, numbers)
        if slot is None:
            return None
        slots[problem.groups[move.kind]].append(slot)
    more = yield from FirstFit(draft, problem.here[-1]).some(problem.counts[-1])
    slots[problem.groups[-1]] += more
    return Fit(draft, slots) if len(more) == problem.counts[-1] else None


def _take(cards: dict[int, LeftCard], chosen: Sequence[LeftCard], units: int) -> set[int]:
    """Use units of cards with these values; return the cards' indexes."""
    found: set[int] = set()
    for value in chosen:
        number = next(n for n, each in cards.items() if each == value and n not in found)
        found.add(number)
    for number in found:
        free, may = cards[number]
        cards[number] = free - units, may
    return found
