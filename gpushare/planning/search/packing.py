"""Pack members that each use one card into cards: bin packing with bins of any size (pure).

A packing is searched card by card: each gets one of the fullest sets of the members that are left
(bin completion). It is enough to try sets to which no other member can be added. The search goes
back where the members that are left need more than the cards that are left. If that takes long, it
begins again with another order of the cards: most gangs that fit are packed quickly in some order.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from math import gcd
from operator import mul, sub
from random import Random
from typing import Final

from gpushare.planning.search.budget import Budget
from gpushare.planning.search.packing_limits import MOST_UNITS, Bins, exceeds, sums_of, usable

TRIES_A_STEP: Final = 8
STEPS_A_TRY: Final = 20
TRIES_A_CARD: Final = 1.5  # in one of several orders
JITTER: Final = 0.5, 2.0

Counts = tuple[int, ...]  # members of each size
Packed = list[tuple[int, Counts]]  # free units of a card, and what it gets


class Packing:
    """Packs members of ``sizes``, in falling order, into cards, ``bins`` by free units."""

    def __init__(self, sizes: Sequence[int], counts: Sequence[int], bins: Bins) -> None:
        self._cards = _cards_for(sizes, counts, bins)
        unit = gcd(*sizes)
        self._sizes, self._counts = [size // unit for size in sizes], counts
        self._free = [free // unit for free in self._cards]
        self._order = list(range(len(self._cards)))
        self._draw = Random(0)  # noqa: S311 - the same orders each time
        self._orders = 0

    def find(self, budget: Budget) -> Generator[None, None, Packed | None]:
        """Return what to put on which cards, each time in another order of the cards.

        None if the members do not all fit, or ``budget.gave_up``.
        """
        if not self._counts:
            return []
        if not self._cards:
            return None
        budget.gave_up = self._free[-1] > MOST_UNITS
        while not budget.gave_up:
            first = self._orders == 0
            tries = round(len(self._cards) * TRIES_A_CARD)
            part = Budget(budget.left // 5 if first else min(budget.left, tries * STEPS_A_TRY))
            free = [self._free[card] for card in self._order]
            found = yield from _Search(self._sizes, self._counts, free).run(part)
            order = self._order.copy()
            self._order.sort(key=lambda card: self._free[card] * self._draw.uniform(*JITTER))
            self._orders += 1
            budget.left -= part.used
            if found is not None:
                return [(self._cards[card], one) for card, one in zip(order, found, strict=False)]
            if not part.gave_up:
                return None
            budget.gave_up = budget.left <= 0
        return None


def does_exceed(
    sizes: Sequence[int], counts: Sequence[int], bins: Bins
) -> Generator[None, None, bool]:
    """Return whether the members provably do not fit; False does not mean that they do."""
    if not sizes:
        return False
    cards = _cards_for(sizes, counts, bins)
    return not cards or (yield from exceeds(sizes, counts, Counter(cards)))


def _cards_for(sizes: Sequence[int], counts: Sequence[int], bins: Bins) -> list[int]:
    """Return the largest cards, in rising order. Each member uses one, so no others are needed.

    Cards that only few members fit into are filled first, while there are many to choose from.
    """
    found: list[int] = []
    for free in sorted(bins, reverse=True):
        if free >= sizes[-1]:
            found += [free] * min(bins[free], sum(counts) - len(found))
    return found[::-1]


class _Search:
    def __init__(self, sizes: Sequence[int], counts: Sequence[int], cards: Sequence[int]) -> None:
        self._sizes, self._counts, self._cards = sizes, tuple(counts), cards
        self._limits = [self._limit(last) for last in range(len(sizes))]

    def run(self, budget: Budget) -> Generator[None, None, list[Counts] | None]:
        """Return what to put on each of the first cards, or None as ``pack`` does."""
        left, sets = [self._counts], [self._sets(0, self._counts)]
        chosen: list[Counts] = []
        failed: set[tuple[int, Counts]] = set()
        tries = 0
        while sets:
            tries += 1
            if tries % TRIES_A_STEP == 0:
                yield
            if not budget.spend(STEPS_A_TRY):
                return None
            card, one = len(sets), next(sets[-1], None)
            if one is None:
                failed.add((card, left.pop()))
                sets.pop()
                if chosen:
                    chosen.pop()
                continue
            rest = tuple(map(sub, left[-1], one))
            if not any(rest):
                return [*chosen, one]
            if (card + 1, rest) in failed or self._is_too_much(card, rest):
                continue
            chosen.append(one)
            left.append(rest)
            sets.append(self._sets(card, rest))
        return None

    def _limit(self, last: int) -> tuple[list[int], list[int]]:
        """Return what the cards from each one on can take of members of this size and larger.

        That is, their number and their units.
        """
        sizes, cards = self._sizes, self._cards
        sums = sums_of(sizes[: last + 1], self._counts[: last + 1], max(cards))
        units = {free: usable(free, sums) for free in set(cards)}
        numbers = accumulate([free // sizes[last] for free in cards[::-1]], initial=0)
        return list(numbers)[::-1], list(
            accumulate([units[free] for free in cards[::-1]], initial=0)
        )[::-1]

    def _is_too_much(self, card: int, left: Counts) -> bool:
        number = units = 0
        for size, count, (most, most_units) in zip(self._sizes, left, self._limits, strict=True):
            number += count
            units += count * size
            if number > most[card] or units > most_units[card]:
                return True
        return False

    def _sets(self, card: int, left: Counts) -> Iterator[Counts]:
        """Return sets of members for a card to which no other member can be added, fullest first.

        Of equally full ones, those with larger members come first. Sets are left out after which
        the cards after this one have too few units.
        """
        free, sizes = self._cards[card], self._sizes
        needed = sum(map(mul, left, sizes)) - self._limits[-1][1][card + 1]
        kinds = [kind for kind, count in enumerate(left) if count and sizes[kind] <= free]
        if not kinds:
            yield (0,) * len(left)
            return
        least = max(0, needed)
        every = self._sums(kinds, left, free)
        much = usable(free, every[0])
        while much >= least:
            wasted = free - much
            if sizes[kinds[-1]] > wasted:
                yield from self._sets_of(much, left, kinds, every)
            else:  # all members that fit into what is wasted have to be there already
                large = [kind for kind in kinds if sizes[kind] > wasted]
                small = [kind for kind in kinds if sizes[kind] <= wasted]
                rest = much - sum(left[kind] * sizes[kind] for kind in small)
                sums = self._sums(large, left, free)
                if rest >= 0 and sums[0] >> rest & 1:
                    for chosen in self._sets_of(rest, left, large, sums):
                        yield tuple(
                            left[kind] if kind in small else count
                            for kind, count in enumerate(chosen)
                        )
            much = usable(much - 1, every[0]) if much else -1

    def _sums(self, kinds: Sequence[int], left: Counts, most: int) -> list[int]:
        """Return the sums of members of these kinds, then without the first kind, and so on."""
        found = [1]
        for kind in reversed(kinds):
            found.append(sums_of((self._sizes[kind],), (left[kind],), most, found[-1]))
        return found[::-1]

    def _sets_of(
        self, much: int, left: Counts, kinds: Sequence[int], sums: Sequence[int]
    ) -> Iterator[Counts]:
        """Return the sets that use exactly so many units, those with larger members first."""
        sizes, chosen = self._sizes, [0] * len(left)
        last = len(kinds)

        def add(place: int, much: int) -> Iterator[Counts]:
            if place == last:
                yield tuple(chosen)
                return
            kind = kinds[place]
            size, rest = sizes[kind], sums[place + 1]
            for count in range(min(left[kind], much // size), -1, -1):
                if rest >> (much - count * size) & 1:
                    chosen[kind] = count
                    yield from add(place + 1, much - count * size)
            chosen[kind] = 0

        return add(0, much)
