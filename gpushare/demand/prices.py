"""Say how much of a card a pod wastes, at the prices of what pods request (pure).

A gap of a card is worth the most that pods like those that came can make of it. A pod that takes a
part of the gap should leave the rest worth as much as possible: a half of a card is worth nothing
next to pods that all request 60 %, and a half again next to others.
"""

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpushare.demand.cutting_stock import duals, worth
from gpushare.demand.mix import Kind

# A card of more units has so many steps, whichever number rounds the requests least. The first four
# have exact eighths and twelfths, percents, fifteenths, and sevenths.
_DIVISIONS: Final = (96, 100, 120, 168, 240)
MOST_SIZES: Final = 8  # of cards: those of most units
MOST_REQUESTED: Final = 64  # sizes of requests; others count as the next larger one
# What an entirely free card is worth above 1 if pods request several cards at once: a share that
# takes it takes it from these. It is all due once they request a twentieth of all units.
_WHOLE: Final = 0.3
_SEVERAL: Final = 20.0
_MOST_TABLES: Final = 256  # of 2 kB, for each size of cards


@dataclass(frozen=True, slots=True)
class Gaps:
    """What free parts of a card of ``size`` units are worth, in cards.

    ``values`` are by steps, from none to all; ``prices`` are those of requests, by steps, and
    ``least`` the fewest units requested with so many steps. ``whole`` is added to what an entirely
    free card is worth.
    """

    size: int
    values: Sequence[float]
    prices: Mapping[int, float]
    least: Mapping[int, int]
    whole: float
    _tables: dict[int, Sequence[float]] = field(default_factory=dict, compare=False)

    def waste(self, free: int, units: int) -> float:
        """Return what is lost if a pod takes ``units`` of ``free``, in cards.

        A request without a price, because no pod like it came, wastes nothing of a card that was
        entirely free.
        """
        table = self._tables.get(units)
        if table is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            table = self._tables[units] = self._table(units)
        return table[self._steps_in(free)]

    @property
    def steps(self) -> int:
        return len(self.values) - 1

    def _steps_in(self, free: int) -> int:
        """Return the steps of a gap: rounded up if a request of as many steps fits, else down."""
        steps = free * self.steps // self.size
        least = self.least.get(steps + 1)
        return steps + 1 if least is not None and least <= free else steps

    def _table(self, units: int) -> Sequence[float]:
        steps, values = self.steps, self.values
        taken = steps_of(units, self.size, steps)
        price = self.prices.get(taken, 1.0 - values[steps - taken])
        # A gap that the pod just fits into may be a step less than the pod, because of rounding.
        lost = array(
            "d",
            [
                max(0.0, values[free] - values[max(0, free - taken)] - price)
                for free in range(steps + 1)
            ],
        )
        if units < self.size:
            lost[steps] += self.whole
        return lost


Prices = Mapping[int, Gaps]  # by the units of a card


def steps_of(units: int, size: int, steps: int) -> int:
    """Return how many of the steps of a card of ``size`` units hold ``units``."""
    return -(-units * steps // size)


def prices_of(
    kinds: Iterable[tuple[Kind, float]], sizes: Iterable[int]
) -> Generator[None, None, Prices]:
    """Return what gaps are worth to pods of these kinds, of which so many came, in short steps.

    All request GPU memory. ``sizes`` are the units of cards, the most important first. A pod of
    several cards counts once for each. Without any pod that fits on a card of a size, nothing is
    known about this size.
    """
    requests, several, every = dict[int, float](), 0.0, 0.0
    for kind, count in kinds:
        cards = count * kind.cards
        requests[kind.units] = requests.get(kind.units, 0.0) + cards
        every += cards * kind.units
        if kind.cards > 1:
            several += cards * kind.units
    found: dict[int, Gaps] = {}
    for size in list(sizes)[:MOST_SIZES]:
        fitting = {units: count for units, count in requests.items() if units <= size}
        if not fitting:
            continue
        divisions = _DIVISIONS if size > max(_DIVISIONS) else (size,)
        steps = min(divisions, key=partial(_rounded, fitting, size))
        yield
        prices = yield from duals(_demand(fitting, size, steps), steps)
        yield
        values = (*worth(prices, steps)[:steps], 1.0)
        whole = _WHOLE * min(1.0, _SEVERAL * several / every)
        found[size] = Gaps(size, values, prices, _least(fitting, size, steps), whole)
    return found


def _least(requests: Iterable[int], size: int, steps: int) -> dict[int, int]:
    """Return the fewest units that are requested with each number of steps."""
    found: dict[int, int] = {}
    for units in requests:
        taken = steps_of(units, size, steps)
        found[taken] = min(units, found.get(taken, units))
    return found


def _rounded(requests: Mapping[int, float], size: int, steps: int) -> float:
    """Return how much more is requested in so many steps than in units, in cards."""
    more = (
        count * (steps_of(units, size, steps) * size - units * steps)
        for units, count in requests.items()
    )
    return sum(more) / (size * steps)


def _demand(requests: Mapping[int, float], size: int, steps: int) -> dict[int, float]:
    """Return the requests by steps, of at most MOST_REQUESTED sizes."""
    found: dict[int, float] = {}
    for units, count in requests.items():
        taken = steps_of(units, size, steps)
        found[taken] = found.get(taken, 0.0) + count
    kept = sorted(sorted(found, key=lambda taken: -taken * found[taken])[:MOST_REQUESTED])
    demand = dict.fromkeys(kept, 0.0)
    for taken, count in found.items():
        at = bisect_left(kept, taken)
        demand[kept[min(at, len(kept) - 1)]] += count
    return demand
