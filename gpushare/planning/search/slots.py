"""Turn what a search has found into slots (pure)."""

from collections.abc import Generator, Sequence

from gpushare.planning.draft import Fit
from gpushare.planning.first_fit import FirstFit
from gpushare.planning.search.node_search import Move
from gpushare.planning.search.node_states import LeftCard, NodeStates
from gpushare.planning.search.packing import Packed
from gpushare.planning.search.problem import Problem


def add_packed(found: Fit, problem: Problem, packed: Packed) -> Generator[None, None, bool]:
    """Add slots for all members of the problem; False if other resources are not enough for it.

    Of cards with equally much left, members get one of the node with most other resources left.
    """
    cards: dict[int, list[tuple[str, int]]] = {}
    for node in reversed(problem.nodes):
        for number, (free, _) in node.cards.items():
            cards.setdefault(free, []).append((node.name, number))
    left, sizes = list(problem.counts), list(problem.sizes())
    for free, members in sorted(packed, key=lambda each: -sum(each[1])):
        yield
        one = max(cards[free], key=lambda each: problem.slack(found.draft.open(each[0]).free))
        cards[free].remove(one)
        for size, count in zip(sizes, members, strict=True):
            for _ in range(count):
                kind = _take_one(found, problem, left, size, one)
                if kind is None:
                    return False
                left[kind] -= 1
    for kind, count in enumerate(left):
        more = yield from FirstFit(found.draft, problem.here[kind]).some(count)
        found.slots[problem.groups[kind]] += more
        if len(more) < count:
            return False
    return True


def _take_one(
    found: Fit, problem: Problem, left: Sequence[int], size: int, card: tuple[str, int]
) -> int | None:
    """Add a slot on a card for a member of this size, with the most other resources that fit."""
    name, number = card
    kinds = [kind for kind, each in enumerate(problem.kinds) if left[kind] and each.units == size]
    for kind in sorted(kinds, key=lambda kind: problem.kinds[kind].amounts, reverse=True):
        slot = found.draft.take_cards(problem.here[kind].group.shape, name, {number})
        if slot is not None:
            found.slots[problem.groups[kind]].append(slot)
            return kind
    return None


def add_moved(
    found: Fit, problem: Problem, states: NodeStates, moves: Sequence[Move]
) -> Generator[None, None, bool]:
    """Add slots for the moves, and for all members of the last kind; False if that fails."""
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
        slot = found.draft.take_cards(shape, node.name, numbers)
        if slot is None:
            return False
        found.slots[problem.groups[move.kind]].append(slot)
    more = yield from FirstFit(found.draft, problem.here[-1]).some(problem.counts[-1])
    found.slots[problem.groups[-1]] += more
    return len(more) == problem.counts[-1]


def _take(cards: dict[int, LeftCard], chosen: Sequence[LeftCard], units: int) -> set[int]:
    """Use units of cards with these values; return the cards' indexes."""
    found: set[int] = set()
    for value in chosen:
        found.add(next(n for n, each in cards.items() if each == value and n not in found))
    for number in found:
        free, may = cards[number]
        cards[number] = free - units, may
    return found
