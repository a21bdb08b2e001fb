"""What pods request is counted, the latest pods most, and within limits."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import ContainerRequest, Request
from gpushare.demand.mix import MOST_KINDS, WINDOW, Kind, Mix


def request(units, cpu=0, cards=1):
    return Request((ContainerRequest("main", units * cards),), cards, cpu=cpu)


def test_equal_pods_are_one_kind():
    mix = Mix()
    for _ in range(3):
        mix.add(request(4, cpu=500, cards=2))
    assert dict(mix) == {Kind(2, 4, 500, 0): 3}
    assert (mix.came, mix.total) == (3, 3)


def test_what_pods_requested_long_ago_counts_less():
    mix = Mix()
    for _ in range(WINDOW):
        mix.add(request(1))
    for _ in range(WINDOW):
        mix.add(request(2))
    counts = dict(mix)
    assert counts[Kind(1, 2, 0, 0)] > 2 * counts[Kind(1, 1, 0, 0)]
    assert mix.came == 2 * WINDOW


def test_a_kind_that_no_longer_comes_is_forgotten():
    mix = Mix()
    mix.add(request(1))
    for _ in range(2 * WINDOW):
        mix.add(request(2))
    assert [kind.units for kind, _ in mix] == [2]


def test_kinds_that_came_once_do_not_keep_out_later_ones_for_ever():
    mix = Mix()
    for number in range(MOST_KINDS):
        mix.add(request(number + 1))
    for _ in range(WINDOW + 1):
        mix.add(request(MOST_KINDS + 1))
    assert [kind.units for kind, _ in mix] == [MOST_KINDS + 1]


@given(st.lists(st.integers(1, 10**6), max_size=20))
def test_a_tenant_with_many_kinds_neither_fills_the_memory_nor_displaces_others(units):
    mix = Mix()
    mix.add(request(7, cpu=1))
    for number in range(MOST_KINDS * 2):
        mix.add(request(number + 1))
    for each in units:
        mix.add(request(each))
    counts = dict(mix)
    assert len(counts) == MOST_KINDS
    assert counts[Kind(1, 7, 1, 0)] == 1


@given(st.integers(1, 16), st.integers(1, 3))
def test_what_others_request_counts_from_the_first_pod_whatever_came_before(each, others):
    mix = Mix()
    for number in range(MOST_KINDS):
        for _ in range(each):
            mix.add(request(number + 1), "odd")
    for number in range(others * 5):
        mix.add(request(20 + number % 5, cpu=1), f"team-{number // 5}")
        assert dict(mix)[Kind(1, 20 + number % 5, 1, 0)] == number // 5 + 1
    assert len(dict(mix)) == MOST_KINDS


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**6)), max_size=300))
def test_no_namespace_loses_a_kind_to_one_that_has_more(pods):
    mix = Mix()
    for number in range(MOST_KINDS):
        mix.add(request(number + 1, cpu=2), "ab"[number % 2])
    mix.add(request(1, cpu=3), "c")
    for namespace, units in pods:
        mix.add(request(units, cpu=ord(namespace)), namespace)
    owned = [kind for kind, _ in mix if kind.cpu in {3, ord("c")}]
    wanted = {units for namespace, units in pods if namespace == "c"}
    assert len(owned) == len(wanted) + 1
