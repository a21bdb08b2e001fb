"""Find an order in which moves can be made: each has room when it is its turn (pure)."""

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from gpushare.defragment.model import CardKey, Movable, Move
from gpushare.defragment.state import State

MOST_TRIED: Final = 64  # moves, before one order is given up


class Destination(NamedTuple):
    movable: Movable
    node: str


class Ordering:
    """Tries orders of ``moves`` in the state ``first``; ``closed`` are closed to all of them."""

    def __init__(self, first: State, closed: frozenset[CardKey]) -> None:
        self._first, self._closed = first, closed
        self._tries = MOST_TRIED

    def find(
        self, moves: Sequence[Destination]
    ) -> Generator[None, None, tuple[tuple[Move, ...], State] | None]:
        """Return the moves in an order that works, and the state after them; None if none does."""
        state = self._first.copy()
        state.close(self._closed)
        return (yield from self._next(state, tuple(moves), ()))

    def _next(
        self, state: State, left: tuple[Destination, ...], made: tuple[Move, ...]
    ) -> Generator[None, None, tuple[tuple[Move, ...], State] | None]:
        if not left:
            return made, state
        for number, (movable, node) in enumerate(left):
            yield
            self._tries -= 1
            if self._tries < 0:
                return None
            after = state.copy()
            after.remove(movable)
            place = after.place_of(movable, node)
            if place is None:
                continue
            after.put(movable.pod, movable.shape, place)
            move = Move(movable, place, self._closed | movable.place.keys)
            rest = (*left[:number], *left[number + 1 :])
            found = yield from self._next(after, rest, (*made, move))
            if found is not None:
                return found
        return None
