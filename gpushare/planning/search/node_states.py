"""What a node has left, as a value: nodes with equal values are interchangeable (pure)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from gpushare.planning.capacity import sets_of_cards

MOST_WAYS: Final = 100  # to choose cards for one member
STEPS_A_KIND: Final = 3  # of a new state

# A card's free units, and the kinds of members that may use it, as bits.
LeftCard = tuple[int, int]
# The kinds of members that may go there, as bits; cards in rising order; other resources.
LeftNode = tuple[int, tuple[LeftCard, ...], tuple[int, ...]]
Way = tuple[int, tuple[LeftCard, ...]]  # the number of the next state, and the cards used


@dataclass(frozen=True, slots=True)
class Kind:
    """What one member takes: ``units`` of each of ``card_count`` cards, and other resources."""

    units: int
    card_count: int
    amounts: tuple[int, ...]


class NodeStates:
    """All states of nodes that a search has met, by number."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.is_partial = False  # not all ways to choose cards were returned
        self.steps = 0  # for a budget
        self._kinds = kinds
        self._numbers: dict[LeftNode, int] = {}
        self._states: list[LeftNode] = []
        self._takes: list[tuple[int, ...]] = []
        self._ways: dict[tuple[int, int], list[Way]] = {}

    def number(self, state: LeftNode) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
            self.steps += STEPS_A_KIND * len(self._kinds)
            self._takes.append(tuple(self._count(state, n) for n in range(len(self._kinds))))
        return found

    def takes(self, number: int) -> tuple[int, ...]:
        """Return how many members of each kind fit if there are no others."""
        return self._takes[number]

    def ways(self, number: int, kind: int) -> list[Way]:
        """Return the states of the node with one more member, which must fit."""
        found = self._ways.get((number, kind))
        if found is None:
            found = self._ways[number, kind] = list(self._find_ways(number, kind))
        return found

    def _count(self, state: LeftNode, kind: int) -> int:
        mask, cards, free = state
        if not mask >> kind & 1:
            return 0
        wanted = self._kinds[kind]
        most = min(have // asked for have, asked in zip(free, wanted.amounts, strict=True) if asked)
        if not wanted.card_count or most <= 0:
            return max(0, most)
        units = [much for much, may in cards if may >> kind & 1]
        return min(most, sets_of_cards(units, wanted.units, wanted.card_count))

    def _find_ways(self, number: int, kind: int) -> Iterator[Way]:
        mask, cards, free = self._states[number]
        wanted = self._kinds[kind]
        left = tuple(have - asked for have, asked in zip(free, wanted.amounts, strict=True))
        alike = [(card, len(list(same))) for card, same in groupby(cards)]
        fitting = [(c, n) for c, n in alike if c[0] >= wanted.units and c[1] >> kind & 1]
        for ways, chosen in enumerate(_choices(fitting, wanted.card_count)):
            if ways == MOST_WAYS:
                self.is_partial = True
                return
            rest = list(cards)
            for card in chosen:
                rest.remove(card)
                rest.append((card[0] - wanted.units, card[1]))
            yield self.number((mask, tuple(sorted(rest)), left)), chosen


def _choices(cards: Sequence[tuple[LeftCard, int]], count: int) -> Iterator[tuple[LeftCard, ...]]:
    """Return the different ways to choose ``count`` cards, of which many may be alike."""
    if not count:
        yield ()
        return
    for place, (card, number) in enumerate(cards):
        for more in range(min(number, count), 0, -1):
            for rest in _choices(cards[place + 1 :], count - more):
                yield (card,) * more + rest
