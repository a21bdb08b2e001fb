"""Find where pods that move have room, or whose end would make room for them (pure).

Both are measured once for each shape and node, and again where the first state has changed.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Any, Final, Generic, TypeVar

from gpushare.defragment.model import Movable
from gpushare.defragment.state import State, has_room
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.rank import rank
from gpushare.planning.shapes import Shape

NODES_A_STEP: Final = 16

# The first values sort: those first that the extender prefers, or that find a place most easily.
Room = tuple[Any, ...]  # ends with the node
Instead = tuple[int, str, str, Movable]  # units, uid, node

T = TypeVar("T", Room, Instead)
Measure = Callable[[State, Shape, str], list[T]]


@dataclass(slots=True, eq=False)
class _Measured(Generic[T]):
    """``all`` is what was found on each node, in order."""

    seen: int = -1
    by_node: dict[str, list[T]] = field(default_factory=dict)
    all: list[T] = field(default_factory=list)


class Index:
    """The nodes ``names`` of the state ``first``. The states asked about are copies of it."""

    def __init__(self, first: State, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self._first = first
        self._rooms: dict[Shape, _Measured[Room]] = {}
        self._instead: dict[Shape, _Measured[Instead]] = {}

    def rooms(self, state: State, shape: Shape) -> Generator[None, None, Iterator[Room]]:
        """Return the nodes with room for a pod that moves, in the order of the extender."""
        known = self._rooms.setdefault(shape, _Measured())
        return (yield from self._found(state, shape, known, _rooms))

    def instead(self, state: State, shape: Shape) -> Generator[None, None, Iterator[Instead]]:
        """Return the pods in whose place there would be room, on nodes that have none.

        Those come first that use the fewest units.
        """
        known = self._instead.setdefault(shape, _Measured())
        return (yield from self._found(state, shape, known, _instead))

    def _found(
        self, state: State, shape: Shape, known: _Measured[T], measure: Measure[T]
    ) -> Generator[None, None, Iterator[T]]:
        first, changes = self._first, self._first.changes
        changed = changes.since(known.seen) if known.seen >= 0 else None
        due = sorted(self.names if changed is None else self.names.intersection(changed))
        known.seen = changes.now
        for number, name in enumerate(due):
            if number % NODES_A_STEP == NODES_A_STEP - 1:
                yield
            known.by_node[name] = measure(first, shape, name)
        if due:
            known.all = sorted(each for found in known.by_node.values() for each in found)
        others = state.changed
        if not others:
            return iter(known.all)
        fresh = sorted(each for name in others & self.names for each in measure(state, shape, name))
        return merge(fresh, (each for each in known.all if _node_of(each) not in others))


def _node_of(found: Room | Instead) -> str:
    last = found[-1]
    return last.node if isinstance(last, Movable) else str(last)


def _rooms(state: State, shape: Shape, name: str) -> list[Room]:
    account = state.open_account(name)
    if shape.request is None or account is None or not state.may_take(shape, name, account):
        return []
    found = rank(FreeCards(account), shape.request, state.world.policies, name)
    return [found] if found is not None else []


def _instead(state: State, shape: Shape, name: str) -> list[Instead]:
    account, free = state.open_account(name), state.free(name)
    movables = state.movable_on(name)
    if not movables or account is None or free is None:
        return []
    if not state.eligible(shape, name, account) or has_room(account, free, shape, ()):
        return []
    return [
        (each.units, each.uid, name, each)
        for each in movables
        if has_room(account, free, shape, (each,))
    ]
