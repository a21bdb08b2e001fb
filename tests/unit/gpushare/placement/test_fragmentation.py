"""Fragmentation is 0 if no free unit is stranded, 1 if all are."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.placement.fragmentation import fragmentation

SIZES = st.dictionaries(st.integers(1, 40), st.integers(1, 5), max_size=6)
FREE = st.dictionaries(st.integers(0, 40), st.integers(1, 5), max_size=6)


@pytest.mark.parametrize(
    ("free", "wanted", "share"),
    [
        ({16: 1}, {16: 1}, 0.0),
        ({15: 1}, {16: 1}, 1.0),
        ({8: 2}, {8: 1, 16: 1}, 0.5),
        ({16: 1, 8: 2}, {16: 1}, 0.5),
        ({2: 3, 10: 1}, {4: 3, 12: 1}, (6 * 4 + 10 * 1) / (16 * 4)),
        ({}, {16: 1}, 0.0),
        ({0: 8}, {16: 1}, 0.0),
        ({16: 1}, {}, 0.0),
        ({16: 1}, {4: 0}, 0.0),
    ],
)
def test_it_is_the_part_of_free_units_that_such_pods_could_not_use(free, wanted, share):
    assert fragmentation(free, wanted) == pytest.approx(share)


@given(FREE, SIZES)
def test_it_is_the_mean_over_all_pods(free, wanted):
    total = sum(units * cards for units, cards in free.items())
    pods = list(Counter(wanted).elements())
    if not total or not pods:
        assert fragmentation(free, wanted) == 0
        return
    lost = [sum(u * n for u, n in free.items() if u < size) / total for size in pods]
    assert fragmentation(free, wanted) == pytest.approx(sum(lost) / len(pods))


@given(FREE, SIZES)
def test_it_is_0_only_if_nothing_is_stranded_and_1_only_if_all_is(free, wanted):
    found = fragmentation(free, wanted)
    assert 0 <= found <= 1
    pieces = [units for units in free if units]
    if pieces and wanted:
        assert (found == 0) == (min(pieces) >= max(wanted))
        assert (found == 1) == (max(pieces) < min(wanted))


@given(FREE, SIZES, st.integers(1, 1000))
def test_it_does_not_depend_on_the_size_of_the_cluster(free, wanted, times):
    many = {units: cards * times for units, cards in free.items()}
    assert fragmentation(many, wanted) == pytest.approx(fragmentation(free, wanted))
