"""Search node by node where members of several kinds go (pure).

Members are placed one after the other, each where the others lose the least room. Where a kind has
too little room left the search goes back. The last kind is counted, which is exact.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from operator import mul
from typing import Final, NamedTuple

from gpushare.planning.search.budget import Budget
from gpushare.planning.search.node_states import LeftCard, NodeStates

MOST_OPTIONS: Final = 32  # for one member, unless all are tried
STEPS_A_TRY: Final = 20


class Move(NamedTuple):
    """One member of a kind on some node of one state, which gets another state by that."""

    kind: int
    before: int
    after: int
    cards: tuple[LeftCard, ...]


class NodeSearch:
    """``nodes`` is the number of nodes by state, ``counts`` the members of each kind.

    ``tries_all``: no option is left out, so that the search is exact if it ends.
    """

    def __init__(
        self,
        states: NodeStates,
        nodes: Counter[int],
        counts: Sequence[int],
        *,
        tries_all: bool,
    ) -> None:
        self._states, self._nodes, self._left = states, Counter(nodes), list(counts)
        self._changes: Counter[int] = Counter()
        self._most = 10**9 if tries_all else MOST_OPTIONS
        self._room = [0] * len(counts)
        for state, number in nodes.items():
            for kind, takes in enumerate(states.takes(state)):
                self._room[kind] += takes * number
        self._moves: list[Move] = []
        self._is_partial = False

    def run(self, budget: Budget) -> Generator[None, None, list[Move] | None]:
        """Return moves of all members but those of the last kind, for which there is room then.

        None if there are none, or ``budget.gave_up``.
        """
        if self._is_dead():
            return None
        if self._is_done():
            return []
        options = [(yield from self._options(budget))]
        failed: set[tuple[int, ...]] = set()
        while options:
            yield
            if not budget.spend(STEPS_A_TRY):
                return None
            move = next(options[-1], None)
            if move is None:
                failed.add(self._key())
                options.pop()
                if self._moves:
                    self._apply(self._moves.pop(), -1)
                continue
            self._apply(move, 1)
            if self._is_dead() or self._key() in failed:
                self._apply(move, -1)
                continue
            self._moves.append(move)
            if self._is_done():
                return self._moves
            options.append((yield from self._options(budget)))
        budget.gave_up = self._is_partial or self._states.is_partial
        return None

    def _next_kind(self) -> int:
        """Return the kind of the member to place next."""
        return next(kind for kind, count in enumerate(self._left) if count)

    def _is_done(self) -> bool:
        """Return whether only members of the last kind are left, which have room."""
        return not any(self._left[:-1])

    def _is_dead(self) -> bool:
        return any(map(int.__lt__, self._room, self._left))

    def _key(self) -> tuple[int, ...]:
        """Return what decides whether the members that are left fit."""
        changes = sorted(item for item in self._changes.items() if item[1])
        return (*self._left, *(number for item in changes for number in item))

    def _apply(self, move: Move, sign: int) -> None:
        takes = self._states.takes
        for state, change in ((move.before, -sign), (move.after, sign)):
            self._nodes[state] += change
            self._changes[state] += change
            for kind, number in enumerate(takes(state)):
                self._room[kind] += change * number
        self._left[move.kind] -= sign

    def _options(self, budget: Budget) -> Generator[None, None, Iterator[Move]]:
        """Return what can be done with the next member, first what costs the others least."""
        kind, states = self._next_kind(), self._states
        found: list[tuple[float, Move]] = []
        weights = [
            1 / (room - left + 1) if left else 0.0
            for room, left in zip(self._room, self._left, strict=True)
        ]
        nodes = [state for state, number in self._nodes.items() if number]
        for state in sorted(nodes, key=lambda state: states.takes(state)[kind]):
            takes = states.takes(state)
            if not takes[kind]:
                continue
            if len(found) >= self._most or budget.left <= 0:
                self._is_partial = True
                break
            yield
            before = states.steps
            for after, cards in states.ways(state, kind):
                lost = map(int.__sub__, takes, states.takes(after))
                found.append((sum(map(mul, weights, lost)), Move(kind, state, after, cards)))
            budget.spend(states.steps - before + STEPS_A_TRY)
        found.sort()
        return iter([move for _, move in found])
