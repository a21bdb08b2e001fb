"""Strangers' handshakes keep nobody else from theirs."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.server import handshakes as module
from extender.server.handshakes import (
    MAX_PER_TRUSTED,
    MAX_PER_UNTRUSTED,
    MAX_TRUSTED_ADDRESSES,
    MAX_UNTRUSTED,
    Handshakes,
)


def trusting(*addresses: str) -> Handshakes[str]:
    made: Handshakes[str] = Handshakes()
    for address in addresses:
        assert made.admit(address, "who").is_admitted
        made.remove(address, "who", is_trusted=True)
    return made


def entered(handshakes: Handshakes[str], *addresses: str) -> int:
    """Count how many came in and had nobody dropped."""
    entries = [
        handshakes.admit(address, f"{address} {number}") for number, address in enumerate(addresses)
    ]
    return sum(entry.is_admitted and entry.dropped is None for entry in entries)


def full() -> Handshakes[str]:
    """Strangers of as few addresses as can have every place."""
    made: Handshakes[str] = Handshakes()
    for number in range(MAX_UNTRUSTED):
        address = f"full {number // MAX_PER_UNTRUSTED}"
        assert made.admit(address, f"who {number}").is_admitted
        made.queue(address, f"who {number}")
    return made


def test_one_address_has_few_handshakes_under_way_and_leaves_room_for_others():
    handshakes: Handshakes[str] = Handshakes()
    assert entered(handshakes, *["stranger"] * 1000) == MAX_PER_UNTRUSTED
    assert handshakes.admit("another", "who").is_admitted
    handshakes.remove("stranger", "stranger 0", is_trusted=False)
    assert handshakes.admit("stranger", "one").is_admitted
    assert not handshakes.admit("stranger", "one more").is_admitted


def test_strangers_of_many_addresses_leave_room_for_who_is_trusted():
    handshakes = trusting("replica")
    assert entered(handshakes, *map(str, range(1000))) == MAX_UNTRUSTED
    assert entered(handshakes, *["replica"] * 1000) == MAX_PER_TRUSTED


def test_a_newcomer_takes_the_place_of_the_oldest_where_one_address_has_the_most():
    handshakes = full()
    handshakes.remove("full 7", f"who {7 * MAX_PER_UNTRUSTED}", is_trusted=False)
    handshakes.remove("full 0", "who 0", is_trusted=False)
    assert entered(handshakes, "one", "two") == 2
    entry = handshakes.admit("three", "newcomer")
    assert (entry.is_admitted, entry.dropped) == (True, f"who {MAX_PER_UNTRUSTED}")


def test_who_was_dropped_has_no_turn_any_more_and_leaves_once():
    handshakes = full()
    dropped = handshakes.admit("another", "newcomer").dropped
    turns = {handshakes.next() for _ in range(MAX_UNTRUSTED)}
    assert dropped == "who 0"
    assert dropped not in turns
    handshakes.remove("full 0", dropped, is_trusted=False)
    assert handshakes.admit("third", "one more").dropped is not None, "every place is taken still"


def test_strangers_of_as_many_addresses_as_there_are_places_are_dropped_one_by_one():
    handshakes: Handshakes[str] = Handshakes()
    assert entered(handshakes, *map(str, range(MAX_UNTRUSTED))) == MAX_UNTRUSTED
    assert handshakes.admit("a", "first").dropped == "0 0"
    assert not handshakes.admit("a", "second").is_admitted, "nobody has more than it"
    assert handshakes.admit("b", "first").dropped == "1 1"


def test_who_gives_up_waiting_has_no_turn_any_more():
    handshakes: Handshakes[str] = Handshakes()
    handshakes.admit("a", "who")
    handshakes.queue("a", "who")
    handshakes.remove("a", "who", is_trusted=False)
    assert handshakes.next() is None


def test_of_all_addresses_with_any_waiting_each_has_its_turn():
    handshakes: Handshakes[str] = Handshakes()
    for n in range(10):
        handshakes.queue("many", f"many {n}")
    handshakes.queue("few", "few 0")
    assert [handshakes.next() for _ in range(4)] == ["many 0", "few 0", "many 1", "many 2"]
    handshakes.queue("late", "late 0")
    assert [handshakes.next() for _ in range(2)] == ["many 3", "late 0"]


def test_only_a_certificate_of_the_authority_makes_an_address_known():
    handshakes: Handshakes[str] = Handshakes()
    handshakes.admit("a", "who")
    handshakes.remove("a", "who", is_trusted=False)
    assert not handshakes.is_trusted("a")
    assert trusting("a").is_trusted("a")


def test_addresses_that_are_known_are_bounded():
    handshakes = trusting(*map(str, range(MAX_TRUSTED_ADDRESSES + 5)))
    assert not handshakes.is_trusted("4")
    assert handshakes.is_trusted("5")


ADDRESSES = "abcdef"


@given(
    st.lists(
        st.tuples(st.sampled_from(ADDRESSES), st.sampled_from(["enter", "leave", "trusted"])),
        max_size=200,
    )
)
def test_whatever_happens_only_who_has_more_makes_room_and_what_has_left_takes_none(steps):
    handshakes: Handshakes[int] = Handshakes()
    inside: dict[str, list[int]] = {address: [] for address in ADDRESSES}
    numbers = count()
    with pytest.MonkeyPatch.context() as patch:
        for name, few in (
            ("MAX_UNTRUSTED", 5),
            ("MAX_PER_UNTRUSTED", 3),
            ("MAX_TRUSTED_ADDRESSES", 2),
        ):
            patch.setattr(module, name, few)
        for address, step in steps:
            if step != "enter":
                if inside[address]:
                    who = inside[address].pop()
                    handshakes.remove(address, who, is_trusted=step == "trusted")
                continue
            who = next(numbers)
            strangers = {a: whose for a, whose in inside.items() if not handshakes.is_trusted(a)}
            most = max(map(len, strangers.values()), default=0)
            has, total = len(inside[address]), sum(map(len, strangers.values()))
            may = handshakes.is_trusted(address) or (has < 3 and (total < 5 or has < most))
            entry = handshakes.admit(address, who)
            assert entry.is_admitted == may
            assert (entry.dropped is not None) == (may and address in strangers and total >= 5)
            if entry.dropped is not None:
                [whose] = [each for each in strangers.values() if entry.dropped in each]
                assert (len(whose), whose.index(entry.dropped)) == (most, 0)
                whose.remove(entry.dropped)
            if may:
                inside[address].append(who)
        for address, whose in inside.items():
            for who in whose:
                handshakes.remove(address, who, is_trusted=False)
        entries = [handshakes.admit(f"new {n}", next(numbers)) for n in range(6)]
        assert [entry.dropped is None for entry in entries] == [True] * 5 + [False]


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", ""])
def test_nobody_waits_where_nobody_came(address):
    handshakes: Handshakes[str] = Handshakes()
    assert handshakes.next() is None
    assert not handshakes.is_trusted(address)
