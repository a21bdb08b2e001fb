"""Prove that members do not fit into cards (pure).

Whatever members weigh: if they fit, they weigh together at most as much as the heaviest sets that
the cards can take. First only members of some size and more weigh something, one each or their
size, and then the weights are prices that rise for what is short (Lagrangian relaxation).
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final

MOST_UNITS: Final = 2**20  # of a card for which sums are computed; the largest GPUs have 2**18 MiB
MOST_SUMS: Final = 1000
ROUNDS: Final = 60
_DEAREST: Final = 2**20
_FIRST_STEP, _STEP_FACTOR = 0.3, 0.95

Bins = Mapping[int, int]  # the number of cards with so many free units


def sums_of(sizes: Sequence[int], counts: Sequence[int], most: int, sums: int = 1) -> int:
    """Return what sets of members use, up to ``most`` units: the bits that are set in a number.

    ``sums`` is the same of other members, which are added.
    """
    found, within = sums, (1 << (most + 1)) - 1
    for size, count in zip(sizes, counts, strict=True):
        left, part = min(count, most // size), 1
        while left:  # any number up to ``count`` is a sum of these parts
            part = min(part, left)
            found |= (found << (size * part)) & within
            left, part = left - part, part * 2
    return found


def usable(free: int, sums: int) -> int:
    """Return how many of the free units of a card a set of members can use at most."""
    return (sums & ((1 << (free + 1)) - 1)).bit_length() - 1


def exceeds(sizes: Sequence[int], counts: Sequence[int], bins: Bins) -> Generator[None, None, bool]:
    """Return whether the members provably do not fit; False does not mean that they do.

    ``sizes`` are in falling order.
    """
    most, sums = max(bins), 0
    for last in range(1, len(sizes) + 1):
        yield
        large, numbers = sizes[:last], counts[:last]
        if sum(numbers) > sum(free // large[-1] * number for free, number in bins.items()):
            return True
        supply = sum(free * number for free, number in bins.items())
        if most <= MOST_UNITS:
            sums = sums_of(large, numbers, most)
            supply = sum(usable(free, sums) * number for free, number in bins.items())
        if sum(map(int.__mul__, large, numbers)) > supply:
            return True
    if len(sizes) == 1 or most > MOST_UNITS or sums.bit_count() > MOST_SUMS:
        return False
    return (yield from _exceeds_by_prices(sizes, counts, bins, sums))


def _exceeds_by_prices(
    sizes: Sequence[int], counts: Sequence[int], bins: Bins, sums: int
) -> Generator[None, None, bool]:
    knapsack = _Knapsack(sizes, [free for free in range(sums.bit_length()) if sums >> free & 1])
    by_sum: dict[int, int] = {}
    for free, number in bins.items():
        much = usable(free, sums)
        by_sum[much] = by_sum.get(much, 0) + number
    prices = [_DEAREST * size // sizes[0] for size in sizes]
    step = _FIRST_STEP
    for _ in range(ROUNDS):
        yield
        knapsack.fill(prices)
        supply = sum(knapsack.best[free] * number for free, number in by_sum.items())
        if sum(map(int.__mul__, counts, prices)) > supply:
            return True
        used = knapsack.used(by_sum)
        if all(map(int.__ge__, used, counts)):
            return False
        for kind, (has, count) in enumerate(zip(used, counts, strict=True)):
            prices[kind] = 1 + int(prices[kind] * (1 + step * (count - has) / max(count, has, 1)))
        step *= _STEP_FACTOR
    return False


class _Knapsack:
    """``best`` is by sum of sizes what the dearest members cost that use at most so much."""

    def __init__(self, sizes: Sequence[int], sums: Sequence[int]) -> None:
        self.best = dict.fromkeys(sums, 0)
        self._sizes, self._sums = sizes, sums
        self._ways = [  # by sum: a kind of members, and what is left without it
            [(kind, much - size) for kind, size in enumerate(sizes) if much - size in self.best]
            for much in sums
        ]
        self._last: dict[int, tuple[int, int]] = {}

    def fill(self, prices: Sequence[int]) -> None:
        best, last, most = self.best, self._last, 0
        way = 0, 0
        for much, ways in zip(self._sums, self._ways, strict=True):
            for kind, left in ways:
                value = best[left] + prices[kind]
                if value > most:
                    most, way = value, (kind, left)
            best[much], last[much] = most, way

    def used(self, bins: Bins) -> list[int]:
        """Return how many members of each kind are in the dearest sets for all cards."""
        found = [0] * len(self._sizes)
        for free, number in bins.items():
            left = free
            while self.best[left]:
                kind, left = self._last[left]
                found[kind] += number
        return found
