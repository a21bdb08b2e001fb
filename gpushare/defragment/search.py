"""Find other places for the pods that have to leave a target, with few other moves (pure).

A pod that moves may take the place of one other pod, which then moves too: at most DEPTH pods in a
chain.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpushare.contract import RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.defragment.index import Index
from gpushare.defragment.model import CardKey, Movable, Move, WantedPlace
from gpushare.defragment.order import Destination, Ordering
from gpushare.defragment.state import State
from gpushare.defragment.targets import Target
from gpushare.objects.model import Pod
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import Shape

DEPTH: Final = 3
MOST_ROOMS: Final = 8  # nodes that are tried for one pod
MOST_INSTEAD: Final = 256  # pods that are tried in whose place one moves
MOST_STEPS: Final = 1000  # of one search
COSTLY_STEPS: Final = 100  # after which a search in vain is not repeated for equal pods

_Try = tuple[str, Movable | None]  # a node, and the pod in whose place another one moves there

_COUNTED_BY_CARD: Final = frozenset({RESOURCE_MEMORY, RESOURCE_COUNT})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Pending pod, and what it asks for."""

    pod: Pod
    shape: Shape


@dataclass(frozen=True, slots=True)
class Found:
    """``moves`` free the target; ``closed`` are the cards that must stay closed from then on."""

    moves: tuple[Move, ...]
    closed: frozenset[CardKey]
    wanted: WantedPlace | None = None


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A pod without a place; ``depth`` is its number in its chain."""

    movable: Movable
    depth: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """``chosen`` are places that were found, in ``state``; the pods ``leaving`` still need one."""

    state: State
    leaving: tuple[_Leaving, ...]
    chosen: tuple[Destination, ...] = ()

    @property
    def moves(self) -> int:
        return len(self.chosen) + len(self.leaving)

    def with_first_on(self, node: str, other: Movable | None) -> "_Draft | None":
        """Return the draft with the first pod on a node, perhaps instead of another one.

        None if it has no room there.
        """
        (first, *rest), state = self.leaving, self.state.copy()
        movable = first.movable
        if other is not None:
            state.remove(other)
            rest.insert(0, _Leaving(other, first.depth + 1))
        place = state.place_of(movable, node)
        if place is None:
            return None
        state.put(movable.pod, movable.shape, place)
        return _Draft(state, tuple(rest), (*self.chosen, Destination(movable, node)))


@dataclass(frozen=True, slots=True)
class _Goal:
    """At most ``most`` moves; ``closed`` are the cards that stay closed from then on."""

    target: Target
    most: int
    closed: frozenset[CardKey]
    wanted: Wanted | None
    budget: Budget


class Search:
    """Searches on the nodes of ``index``, from the state ``first`` as it is at each call.

    ``budget`` limits all searches together. One step takes about 0.2 ms.
    """

    def __init__(self, first: State, index: Index, budget: Budget) -> None:
        self._first, self._index, self._budget = first, index, budget
        # With how many further moves a search was in vain for pods of these shapes.
        self._in_vain: dict[frozenset[Shape], int] = {}

    def find(
        self, target: Target, most: int, closed: frozenset[CardKey], wanted: Wanted | None = None
    ) -> Generator[None, None, Found | None]:
        """Return at most so many moves that free a target; None if none were found.

        ``closed`` are the cards that must stay closed for earlier targets. With ``wanted`` the
        target is room for this pod.
        """
        shapes, more = frozenset([each.shape for each in target.gone]), most - len(target.gone)
        if any(more <= self._in_vain.get(some, -1) for some in (shapes, *_each(shapes))):
            return None
        state = self._first.copy()
        for each in target.gone:
            state.remove(each)
        keeps = frozenset([CardKey(target.node, target.card)])
        if wanted is not None:
            place = state.place_of_wanted(wanted.shape, target.node)
            if place is None:
                return None
            state.put(wanted.pod, wanted.shape, place)
            keeps = place.keys | self._leads_back(target, wanted.shape)
        state.close(keeps)
        budget = Budget(min(MOST_STEPS, self._budget.left))
        goal = _Goal(target, most, closed | keeps, wanted, budget)
        found: Found | None = None
        for leaving in _orders(target):
            found = found or (yield from self._solve(_Draft(state, leaving), goal))
        self._budget.spend(budget.used)
        if found is None and budget.used > COSTLY_STEPS:
            self._in_vain[shapes] = max(more, self._in_vain.get(shapes, -1))
            self._budget.gave_up = True
        return found

    def _leads_back(self, target: Target, shape: Shape) -> frozenset[CardKey]:
        """Return the cards to which pods would return that leave because of other resources."""
        account, free = self._first.account(target.node), self._first.free(target.node) or {}
        if account is None or not target.gone:
            return frozenset()
        others = [each for each in shape.amounts if each[0] not in _COUNTED_BY_CARD]
        if all(free.get(name, 0) >= amount for name, amount in others):
            return frozenset()
        return frozenset([CardKey(target.node, each.card.uuid) for each in account.cards])

    def _solve(self, draft: _Draft, goal: _Goal) -> Generator[None, None, Found | None]:
        """Find places for all that are leaving."""
        if not draft.leaving:
            return (yield from self._ordered(draft.chosen, goal))
        first = draft.leaving[0]
        may_be_more = draft.moves < goal.most and first.depth < DEPTH
        for tries in (self._rooms, self._instead) if may_be_more else (self._rooms,):
            for node, other in (yield from tries(draft.state, first.movable.shape)):
                yield
                if not goal.budget.spend(1):
                    return None
                after = draft.with_first_on(node, other)
                found = (yield from self._solve(after, goal)) if after is not None else None
                if found is not None:
                    return found
        return None

    def _rooms(self, state: State, shape: Shape) -> Generator[None, None, Iterator[_Try]]:
        rooms = yield from self._index.rooms(state, shape)
        return ((room[-1], None) for room in islice(rooms, MOST_ROOMS))

    def _instead(self, state: State, shape: Shape) -> Generator[None, None, Iterator[_Try]]:
        instead = yield from self._index.instead(state, shape)
        return ((node, other) for *_, node, other in islice(instead, MOST_INSTEAD))

    def _ordered(
        self, chosen: tuple[Destination, ...], goal: _Goal
    ) -> Generator[None, None, Found | None]:
        """Return the moves in an order in which they can be made; None without one.

        Those that were found last make the room for the others.
        """
        found = yield from Ordering(self._first, goal.closed).find(chosen[::-1])
        if found is None:
            return None
        moves, after = found
        wanted = goal.wanted
        if wanted is None:
            return Found(moves, goal.closed)
        place = after.place_of_wanted(wanted.shape, goal.target.node)
        if place is None:
            return None
        return Found(moves, goal.closed | place.keys, WantedPlace(wanted.pod, wanted.shape, place))


def _orders(target: Target) -> Iterator[tuple[_Leaving, ...]]:
    """Return the orders in which the pods look for places: the largest first, if that is enough.

    Which cards a node gives to a pod with several of them depends on who came before.
    """
    large_first = sorted(target.gone, key=lambda each: (-each.units, each.uid))
    leaving = tuple([_Leaving(each, 1) for each in large_first])
    yield leaving
    if len(leaving) > 1 and any(each.shape.need.card_count > 1 for each in target.gone):
        yield leaving[::-1]


def _each(shapes: frozenset[Shape]) -> Iterator[frozenset[Shape]]:
    return (frozenset([shape]) for shape in shapes)
