"""Price shares of a card by what a mix of requests can make of a whole card (pure).

How many cards a mix needs at least is the fractional cutting-stock problem: cards are cut by
*patterns*, combinations of requests that fit on one card, and a pattern may be used for a part of a
card. The prices are its dual solution:

    maximize the sum of price * demand, where no pattern is worth more than 1, its card

There are too many patterns to list. Column generation (Gilmore and Gomory, "A Linear Programming
Approach to the Cutting-Stock Problem", Operations Research 9, 1961) begins with one pattern for
each size, and adds the pattern that is worth most at the current prices, the solution of an
unbounded knapsack problem, until none is worth more than 1.
"""

from collections.abc import Generator, Mapping, Sequence
from math import floor
from typing import Final

# Bounds the work for one mix. Mixes of all 100 sizes of 100 steps needed at most half of it.
MOST_PIVOTS: Final = 3000

# Floating-point numbers are rounded: a smaller gain, relative to the optimum, does not count.
_NEGLIGIBLE: Final = 1e-10
# A smaller pivot would amplify rounding errors.
_LEAST_PIVOT: Final = 1e-9
# Prices are multiples of 1 / _GRID. It is a power of 2, so sums of them up to 1 are exact.
_GRID: Final = 2**40


def duals(demand: Mapping[int, float], steps: int) -> Generator[None, None, dict[int, float]]:
    """Return the price of each size in ``demand``, in short steps; 1.0 is a whole card.

    ``demand`` is the number of requests by size. A whole card has ``steps`` steps, a size 1 to
    ``steps`` of them. Only the proportions of the numbers matter.

    No pattern is worth more than 1.0. The value of all requests is within a relative 1e-9 of the
    optimum, or the best found in ``MOST_PIVOTS`` pivots. A size is worth at least what the other
    prices make of as much room, also if nothing requests it. Equal arguments give equal prices.
    """
    sizes = sorted(size for size, count in demand.items() if count > 0)
    largest = max((demand[size] for size in sizes), default=0.0)
    weights = [demand[size] / largest for size in sizes]
    basis = _Basis([steps // size for size in sizes], weights)
    best: dict[int, float] = {}
    most = 0.0
    for _ in range(MOST_PIVOTS if sizes else 0):
        prices = basis.prices()
        values, taken = _fill(dict(zip(sizes, prices, strict=True)), steps)
        # Divided by what the best pattern is worth, any prices are feasible, so their value is a
        # lower bound (Farley, Operations Research 38, 1990).
        feasible = [values[size] / values[steps] for size in sizes]
        value = _dot(feasible, weights)
        if value > most:
            best, most = dict(zip(sizes, feasible, strict=True)), value
        yield
        is_optimal = _dot(prices, weights) - most <= _NEGLIGIBLE * most
        if is_optimal or not basis.enter(_pattern(taken, sizes)):
            break
        yield
    worths = worth(best, steps)
    return {size: worths[size] for size in demand}


def worth(prices: Mapping[int, float], steps: int) -> tuple[float, ...]:
    """Return for each free amount of a card, 0 to ``steps``, the most that these prices make of it.

    ``prices`` are those of ``duals``, or others by size at which no pattern is worth more than 1.0,
    except by rounding errors. No amount is worth more than 1.0 or than a larger amount, and the
    parts of an amount are never worth more than the whole: this holds exactly, because prices are
    rounded down, by less than 1e-12.
    """
    exact = {size: floor(price * _GRID) / _GRID for size, price in prices.items()}
    values, _ = _fill(exact, steps)
    return tuple(min(1.0, value) for value in values)


def _fill(prices: Mapping[int, float], steps: int) -> tuple[list[float], list[int]]:
    """Return for each amount the most that it is worth, and a size in the pattern that is worth it.

    The size is 0 if the pattern leaves a step free. A size that is worth no more than smaller ones
    in its place is in no pattern.
    """
    values, taken = [0.0], [0]
    useful: list[tuple[int, float]] = []
    for amount in range(1, steps + 1):
        most, size_taken = values[-1], 0
        for size, price in useful:
            value = values[amount - size] + price
            if value > most:
                most, size_taken = value, size
        price = prices.get(amount, 0.0)
        if price > most:
            most, size_taken = price, amount
            useful.append((amount, price))
        values.append(most)
        taken.append(size_taken)
    return values, taken


def _pattern(taken: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    """Return how many of each size, by its position in ``sizes``, fill a card best."""
    at = {size: position for position, size in enumerate(sizes)}
    found: dict[int, int] = {}
    amount = len(taken) - 1
    while amount:
        size = taken[amount]
        if size:
            found[at[size]] = found.get(at[size], 0) + 1
        amount -= size or 1
    return found


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


class _Basis:
    """The basis of the revised simplex method: as many patterns as sizes, by the inverse matrix."""

    def __init__(self, most: Sequence[int], weights: Sequence[float]) -> None:
        """Begin with a pattern for each size: as many as fit."""
        positions = range(len(most))
        self._inverse = [[1 / most[i] if i == j else 0.0 for j in positions] for i in positions]
        self._amounts = [weight / fit for weight, fit in zip(weights, most, strict=True)]

    def prices(self) -> list[float]:
        """Return the prices at which each pattern in the basis is worth 1."""
        return [sum(column) for column in zip(*self._inverse, strict=True)]

    def enter(self, pattern: Mapping[int, int]) -> bool:
        """Put a pattern in the place of the one that it uses up first; False if it uses up none."""
        entries = [sum(row[i] * count for i, count in pattern.items()) for row in self._inverse]
        ratios = [
            (self._amounts[i] / entry, -entry, i)
            for i, entry in enumerate(entries)
            if entry > _LEAST_PIVOT
        ]
        if not ratios:
            return False
        amount, _, leaving = min(ratios)
        pivot = [value / entries[leaving] for value in self._inverse[leaving]]
        for i, entry in enumerate(entries):
            if entry and i != leaving:
                row = self._inverse[i]
                self._inverse[i] = [a - entry * b for a, b in zip(row, pivot, strict=True)]
                self._amounts[i] = max(0.0, self._amounts[i] - entry * amount)
        self._inverse[leaving], self._amounts[leaving] = pivot, amount
        return True
