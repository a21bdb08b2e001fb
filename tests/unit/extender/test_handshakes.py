"""Strangers' handshakes keep nobody else from theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.handshakes import (
    KNOWN_ADDRESSES,
    KNOWN_HANDSHAKES,
    STRANGER_HANDSHAKES,
    STRANGERS,
    Handshakes,
)


def trusting(*addresses: str) -> Handshakes[str]:
    made: Handshakes[str] = Handshakes()
    for address in addresses:
        assert made.enter(address)
        made.leave(address, is_trusted=True)
    return made


def entered(handshakes: Handshakes[str], *addresses: str) -> int:
    return sum(handshakes.enter(address) for address in addresses)


def test_one_address_has_few_handshakes_under_way_and_leaves_room_for_others():
    handshakes: Handshakes[str] = Handshakes()
    assert entered(handshakes, *["stranger"] * 1000) == STRANGER_HANDSHAKES
    assert handshakes.enter("another")
    handshakes.leave("stranger", is_trusted=False)
    assert handshakes.enter("stranger")
    assert not handshakes.enter("stranger")


def test_strangers_of_many_addresses_leave_room_for_who_is_known():
    handshakes = trusting("replica")
    assert entered(handshakes, *map(str, range(1000))) == STRANGERS
    assert entered(handshakes, *["replica"] * 1000) == KNOWN_HANDSHAKES


def test_of_all_addresses_with_any_waiting_each_has_its_turn():
    handshakes: Handshakes[str] = Handshakes()
    for n in range(10):
        handshakes.wait("many", f"many {n}")
    handshakes.wait("few", "few 0")
    assert [handshakes.next() for _ in range(4)] == ["many 0", "few 0", "many 1", "many 2"]
    handshakes.wait("late", "late 0")
    assert [handshakes.next() for _ in range(2)] == ["many 3", "late 0"]


def test_only_a_certificate_of_the_authority_makes_an_address_known():
    handshakes: Handshakes[str] = Handshakes()
    handshakes.enter("a")
    handshakes.leave("a", is_trusted=False)
    assert not handshakes.is_known("a")
    assert trusting("a").is_known("a")


def test_addresses_that_are_known_are_bounded():
    handshakes = trusting(*map(str, range(KNOWN_ADDRESSES + 5)))
    assert not handshakes.is_known("4")
    assert handshakes.is_known("5")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "trusted"])),
        max_size=200,
    )
)
def test_what_has_left_takes_no_room_whatever_happened_in_between(steps):
    handshakes: Handshakes[str] = Handshakes()
    inside: list[str] = []
    for address, step in steps:
        if step == "enter":
            if handshakes.enter(address):
                inside.append(address)
        elif address in inside:
            inside.remove(address)
            handshakes.leave(address, is_trusted=step == "trusted")
    for address in inside:
        handshakes.leave(address, is_trusted=False)
    many = [str(n) for n in range(STRANGERS + 1)]
    assert entered(handshakes, *many) == STRANGERS


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", ""])
def test_nobody_waits_where_nobody_came(address):
    handshakes: Handshakes[str] = Handshakes()
    assert handshakes.next() is None
    assert not handshakes.is_known(address)
