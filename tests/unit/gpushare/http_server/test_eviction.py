"""A full listener closes an idle connection of the busiest address."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.http_server.eviction import OpenConnection, choose

ADDRESSES = "abc"


def connections(described: list[tuple[str, bool]]) -> list[OpenConnection]:
    return [OpenConnection(address, is_idle, list) for address, is_idle in described]


def test_the_oldest_idle_connection_of_the_busiest_address_is_closed():
    present = connections([("b", True), ("a", False), ("a", True), ("a", True)])
    assert choose("b", present) is present[2]


def test_no_request_in_progress_is_closed():
    assert choose("b", connections([("a", False)] * 3)) is None


@given(
    st.sampled_from(ADDRESSES),
    st.lists(st.tuples(st.sampled_from(ADDRESSES), st.booleans()), max_size=20),
)
def test_only_an_address_with_more_loses_an_idle_connection(newcomer, described):
    count = [address for address, _ in described].count
    closed = choose(newcomer, connections(described))
    may = {each for each, is_idle in described if is_idle and count(each) > count(newcomer)}
    if closed is None:
        assert not may
    else:
        assert closed.is_idle
        assert closed.address in may
        assert count(closed.address) == max(map(count, may))
