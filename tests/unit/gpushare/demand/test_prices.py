"""A pod wastes what others could have made of a gap, at the prices of what they request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import ContainerRequest, Request
from gpushare.demand.mix import Mix
from gpushare.demand.prices import MOST_REQUESTED, MOST_SIZES, prices_of
from gpushare.process.time_slices import run_all

CARD = 10
NOTHING = pytest.approx(0, abs=1e-9)


def learned(requests, sizes=(CARD,)):
    """Learn from requests of units, or of cards and the units of each."""
    mix = Mix()
    for each in requests:
        cards, units = each if isinstance(each, tuple) else (1, each)
        mix.add(Request((ContainerRequest("main", units * cards),), cards))
    return run_all(prices_of(mix, sizes))


def test_a_pod_that_fills_a_gap_as_others_would_wastes_nothing():
    gaps = learned([3, 7])[CARD]
    assert gaps.waste(7, 7) == NOTHING
    assert gaps.waste(3, 3) == NOTHING
    assert gaps.waste(10, 3) == NOTHING


def test_a_pod_wastes_the_gap_that_another_one_would_fill():
    gaps = learned([3, 7, 7])[CARD]
    assert gaps.waste(7, 3) > gaps.waste(10, 3) + 0.05


def test_a_remnant_is_worth_nothing_if_no_pod_is_that_small():
    gaps = learned([6])[CARD]
    assert gaps.waste(6, 2) > 0.5  # what is left is too little for 6
    assert gaps.waste(4, 2) == 0  # it was before


def test_pods_of_several_cards_make_an_entirely_free_card_worth_more():
    apart, several = learned([5, 10]), learned([5, 10, (8, 10)])
    assert several[CARD].waste(10, 5) > apart[CARD].waste(10, 5)
    assert several[CARD].waste(5, 5) == pytest.approx(apart[CARD].waste(5, 5))
    assert several[CARD].waste(10, 10) == NOTHING


def test_few_pods_of_several_cards_matter_little():
    few, many = learned([5] * 1000 + [(2, 10)]), learned([5] * 10 + [(2, 10)])
    none = learned([5])
    wasted = [each[CARD].waste(10, 5) for each in (none, few, many)]
    assert wasted[0] < wasted[1] < wasted[0] + 0.05 < wasted[2]


def test_each_size_of_cards_has_its_own_prices():
    found = learned([12], sizes=(16, 24))
    assert found[24].waste(24, 12) == NOTHING  # two fit
    assert found[16].waste(16, 12) == NOTHING  # only one ever fits
    assert found[16].waste(12, 4) > 0.5


def test_nothing_is_known_of_a_card_that_no_pod_fits_on():
    assert learned([12], sizes=(8,)) == {}
    assert learned([]) == {}


def test_as_many_sizes_of_cards_are_priced_as_are_promised():
    assert list(learned([1], sizes=range(10, 30))) == list(range(10, 10 + MOST_SIZES))


def test_many_different_requests_keep_little_memory():
    gaps = learned([5000], sizes=(10_000,))[10_000]
    for units in range(1, 3000):
        gaps.waste(10_000, units)
    assert len(gaps._tables) <= 1024


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 97)), min_size=1, max_size=8),
    st.integers(1, 97),
    st.integers(1, 97),
)
def test_waste_is_a_part_of_a_card_whatever_comes(requests, free, units):
    card = 97  # no multiple of the steps
    gaps = learned(requests, sizes=(card,))[card]
    if units <= free:
        assert -1e-9 <= gaps.waste(free, units) <= 1.31
    assert gaps.waste(card, card) == NOTHING


PARTS = [(81559, 8), (81559, 7), (40960, 3), (16, 16), (1000, 5)]


@pytest.mark.parametrize(("card", "parts"), PARTS)
def test_equal_parts_of_a_card_fill_it_without_waste(card, parts):
    gaps = learned([card // parts], sizes=(card,))[card]
    free = card
    for _ in range(parts):
        assert gaps.waste(free, card // parts) == NOTHING
        free -= card // parts


@pytest.mark.parametrize("card", [22, 23, 47, 79, 97, 140, 81559])
def test_a_gap_that_pods_fit_exactly_is_kept_for_them(card):
    """Whichever its size: steps may round a request up, and the gap down."""
    small = card // 10
    for part in range(card // 2 + 1, card - small, max(1, card // 50)):
        gaps = learned([part], sizes=(card,))[card]
        assert gaps.waste(card, small) == NOTHING  # it leaves room for the others
        assert gaps.waste(part, small) > 0.5


def test_sizes_in_percent_fill_a_card_exactly():
    gaps = learned([470, 530], sizes=(1000,))[1000]
    assert gaps.waste(1000, 470) == NOTHING
    assert gaps.waste(530, 530) == NOTHING


def test_more_sizes_of_requests_than_are_priced_count_as_larger_ones():
    gaps = learned(range(1, 400), sizes=(2400,))[2400]
    assert len(gaps.prices) <= MOST_REQUESTED
    assert gaps.waste(2400, 399) < 0.01
