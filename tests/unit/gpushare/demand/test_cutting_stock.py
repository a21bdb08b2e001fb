"""Prices are the optimal ones at which no pattern is worth more than its card."""

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.demand import cutting_stock
from gpushare.demand.cutting_stock import MOST_PIVOTS, duals, worth
from gpushare.process.time_slices import run_all

COUNTS = st.integers(1, 1000)


@st.composite
def mixes(draw, counts=COUNTS):
    """Draw a small card and the demand for some of its sizes."""
    steps = draw(st.integers(1, 12))
    return draw(st.dictionaries(st.integers(1, steps), counts, min_size=1, max_size=6)), steps


def patterns(sizes: list[int], room: int) -> Iterator[dict[int, int]]:
    """List every combination of sizes that fits."""
    if not sizes:
        yield {}
        return
    first, *others = sizes
    for count in range(room // first + 1):
        for rest in patterns(others, room - count * first):
            yield {first: count, **rest}


def value(prices: Mapping[int, float], counts: Mapping[int, float]) -> float:
    return sum(prices[size] * count for size, count in counts.items())


def fewest_cards(demand: Mapping[int, int], steps: int) -> Fraction:
    """Solve the linear program on all patterns by the tableau method, in exact fractions.

    The tableau maximizes the value of all requests, which equals the fewest cards (strong duality).
    """
    sizes = sorted(demand)
    cuts = [[cut[size] for size in sizes] for cut in patterns(sizes, steps)]
    rows = [
        [*map(Fraction, cut), *(Fraction(i == j) for j in range(len(cuts))), Fraction(1)]
        for i, cut in enumerate(cuts)
    ]
    goal = [*(Fraction(-demand[size]) for size in sizes), *[Fraction(0)] * (len(cuts) + 1)]
    basis = list(range(len(sizes), len(sizes) + len(cuts)))
    # The first column and the first row (Bland's rule): this always ends.
    while (entering := next((i for i, gain in enumerate(goal[:-1]) if gain < 0), None)) is not None:
        _, _, leaving = min(
            (row[-1] / row[entering], basis[i], i)
            for i, row in enumerate(rows)
            if row[entering] > 0
        )
        pivot = rows[leaving] = [cell / rows[leaving][entering] for cell in rows[leaving]]
        basis[leaving] = entering
        for row in [*rows, goal]:
            if row is not pivot and row[entering]:
                row[:] = [a - row[entering] * b for a, b in zip(row, pivot, strict=True)]
    return goal[-1]


def assert_feasible(prices, steps):
    """Assert that no pattern exceeds 1: some valuation of amounts says so by induction."""
    values = worth(prices, steps)
    assert values[steps] <= 1
    assert all(0 <= price <= values[size] for size, price in prices.items())
    assert_superadditive(values)


def assert_superadditive(values):
    for a, first in enumerate(values):
        for b, second in enumerate(values[: len(values) - a]):
            assert first + second <= values[a + b]


@pytest.mark.parametrize(
    ("demand", "prices"),
    [
        ({}, {}),
        ({50: 1}, {50: 0.5}),
        ({34: 7}, {34: 0.5}),
        ({33: 7}, {33: 1 / 3}),
        ({51: 2}, {51: 1.0}),
        ({100: 3}, {100: 1.0}),
        ({100: 3, 50: 1}, {100: 1.0, 50: 0.5}),
        ({1: 5}, {1: 0.01}),
        ({67: 2, 33: 1}, {67: 1.0, 33: 0.0}),  # too few 33 for the rests of 67: they are free
        ({67: 1, 33: 2}, {67: 2 / 3, 33: 1 / 3}),  # too many: they need cards of their own
        ({60: 1, 50: 1, 40: 3}, {60: 0.5, 50: 0.5, 40: 0.5}),
        ({60: 2e300, 40: 1e300}, {60: 1.0, 40: 0.0}),
        ({60: 10**300, 40: 10**301}, {60: 0.5, 40: 0.5}),
        ({60: 2e-300, 40: 1e-300}, {60: 1.0, 40: 0.0}),
        ({60: 0, 40: 0.0}, {60: 0.0, 40: 0.0}),
        ({80: 0, 40: 1, 30: 0}, {80: 1.0, 40: 0.5, 30: 0.0}),  # no demand: what 40 make of it
    ],
)
def test_known_mixes_have_known_prices(demand, prices):
    assert run_all(duals(demand, 100)) == pytest.approx(prices)


@given(mixes())
def test_no_pattern_is_worth_more_than_a_card(mix):
    demand, steps = mix
    prices = run_all(duals(demand, steps))
    assert prices.keys() == demand.keys()
    assert all(price >= 0 for price in prices.values())
    assert all(value(prices, cut) <= 1 for cut in patterns(sorted(demand), steps))


@given(mixes())
def test_all_requests_are_worth_the_fewest_cards_that_hold_them(mix):
    demand, steps = mix
    prices = run_all(duals(demand, steps))
    assert value(prices, demand) == pytest.approx(float(fewest_cards(demand, steps)), rel=1e-9)


@given(mixes(st.sampled_from([1, 1, 1000, 10**6])))
def test_rare_requests_beside_very_many_are_worth_it_too(mix):
    demand, steps = mix
    prices = run_all(duals(demand, steps))
    assert value(prices, demand) == pytest.approx(float(fewest_cards(demand, steps)), rel=1e-9)


@given(mixes())
def test_an_amount_is_worth_the_best_pattern_that_fits_in_it(mix):
    demand, steps = mix
    prices = run_all(duals(demand, steps))
    sizes = sorted(demand)
    for amount, found in enumerate(worth(prices, steps)):
        assert found == max(value(prices, cut) for cut in patterns(sizes, amount))


@given(mixes(st.floats(0, 1e6)))
def test_more_room_is_worth_more_and_a_whole_is_worth_its_parts(mix):
    demand, steps = mix
    prices = run_all(duals(demand, steps))
    values = worth(prices, steps)
    assert len(values) == steps + 1
    assert values[0] == 0
    assert values[steps] <= 1
    assert list(values) == sorted(values)
    assert_superadditive(values)
    assert all(values[size] == price for size, price in prices.items())


@given(st.integers(1, 99))
def test_prices_with_rounding_errors_are_worth_a_card_at_most(part):
    values = worth({size: size / 100 for size in (part, 100 - part)}, 100)
    assert 1 - 1e-9 < values[100] <= 1
    assert_superadditive(values)


@given(mixes(), st.integers(-60, 60))
def test_only_the_proportions_of_demand_matter(mix, power):
    demand, steps = mix
    scaled = {size: count * 2.0**power for size, count in demand.items()}
    assert run_all(duals(scaled, steps)) == run_all(duals(demand, steps))


@pytest.mark.parametrize("seed", range(5))
def test_many_sizes_with_very_unequal_demand_are_priced_within_the_bound(seed):
    chance = random.Random(seed)
    demand = {size: 10 ** chance.uniform(-3, 3) for size in chance.sample(range(1, 101), 80)}
    assert sum(1 for _ in duals(demand, 100)) < MOST_PIVOTS  # a pivot is at least one step
    prices = run_all(duals(demand, 100))
    assert_feasible(prices, 100)
    assert [prices[size] for size in sorted(prices)] == sorted(prices.values())


def test_prices_at_the_bound_are_feasible_and_improve_with_it(monkeypatch):
    chance = random.Random(1)
    demand = {size: chance.randint(1, 9) for size in range(1, 101)}
    found = []
    for bound in (1, 10, 100, MOST_PIVOTS):
        monkeypatch.setattr(cutting_stock, "MOST_PIVOTS", bound)
        prices = run_all(duals(demand, 100))
        assert_feasible(prices, 100)
        found.append(value(prices, demand))
    assert found[0] > 0
    assert found == sorted(found)
    assert found[0] < found[-1]
