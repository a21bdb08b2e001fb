"""Untrusted handshakes do not block those of other addresses."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.http_server import handshakes as module
from gpushare.http_server.handshakes import (
    MAX_PER_TRUSTED,
    MAX_PER_UNTRUSTED,
    MAX_TRUSTED_ADDRESSES,
    MAX_UNTRUSTED,
    Handshakes,
)


@pytest.fixture
def handshakes():
    return Handshakes()


def trusting(*addresses: str) -> Handshakes[str]:
    made: Handshakes[str] = Handshakes()
    for address in addresses:
        assert made.admit(address, "first").is_admitted
        made.remove(address, "first", is_trusted=True)
    return made


def admitted(handshakes: Handshakes[str], *addresses: str) -> int:
    """Count the handshakes that were admitted without dropping another."""
    admissions = [
        handshakes.admit(address, f"{address} {number}") for number, address in enumerate(addresses)
    ]
    return sum(entry.is_admitted and entry.dropped is None for entry in admissions)


def full() -> Handshakes[str]:
    """Fill every slot from as few untrusted addresses as possible."""
    made: Handshakes[str] = Handshakes()
    for number in range(MAX_UNTRUSTED):
        address = f"full {number // MAX_PER_UNTRUSTED}"
        assert made.admit(address, f"handshake {number}").is_admitted
        made.queue(address, f"handshake {number}")
    return made


def test_one_address_has_few_handshakes_in_progress(handshakes):
    assert admitted(handshakes, *["untrusted"] * 1000) == MAX_PER_UNTRUSTED
    assert handshakes.admit("another", "first").is_admitted
    handshakes.remove("untrusted", "untrusted 0", is_trusted=False)
    assert handshakes.admit("untrusted", "one").is_admitted
    assert not handshakes.admit("untrusted", "one more").is_admitted


def test_untrusted_of_many_addresses_leave_room_for_who_is_trusted():
    handshakes = trusting("replica")
    assert admitted(handshakes, *map(str, range(1000))) == MAX_UNTRUSTED
    assert admitted(handshakes, *["replica"] * 1000) == MAX_PER_TRUSTED


def test_a_new_address_takes_the_oldest_slot_of_the_address_with_the_most():
    handshakes = full()
    handshakes.remove("full 7", f"handshake {7 * MAX_PER_UNTRUSTED}", is_trusted=False)
    handshakes.remove("full 0", "handshake 0", is_trusted=False)
    assert admitted(handshakes, "one", "two") == 2
    entry = handshakes.admit("three", "newcomer")
    assert (entry.is_admitted, entry.dropped) == (True, f"handshake {MAX_PER_UNTRUSTED}")


def test_a_dropped_handshake_gets_no_turn_and_is_removed_once():
    handshakes = full()
    dropped = handshakes.admit("another", "newcomer").dropped
    turns = {handshakes.next() for _ in range(MAX_UNTRUSTED)}
    assert dropped == "handshake 0"
    assert dropped not in turns
    handshakes.remove("full 0", dropped, is_trusted=False)
    assert handshakes.admit("third", "one more").dropped is not None, "every slot is still used"


def test_with_one_handshake_per_address_the_oldest_is_dropped(handshakes):
    assert admitted(handshakes, *map(str, range(MAX_UNTRUSTED))) == MAX_UNTRUSTED
    assert handshakes.admit("a", "first").dropped == "0 0"
    assert not handshakes.admit("a", "second").is_admitted, "no address has more"
    assert handshakes.admit("b", "first").dropped == "1 1"


def test_a_removed_handshake_gets_no_turn(handshakes):
    handshakes.admit("a", "first")
    handshakes.queue("a", "first")
    handshakes.remove("a", "first", is_trusted=False)
    assert handshakes.next() is None


def test_queued_addresses_take_turns(handshakes):
    for n in range(10):
        handshakes.queue("many", f"many {n}")
    handshakes.queue("few", "few 0")
    assert [handshakes.next() for _ in range(4)] == ["many 0", "few 0", "many 1", "many 2"]
    handshakes.queue("late", "late 0")
    assert [handshakes.next() for _ in range(2)] == ["many 3", "late 0"]


def test_only_a_certificate_of_the_authority_makes_an_address_trusted(handshakes):
    handshakes.admit("a", "first")
    handshakes.remove("a", "first", is_trusted=False)
    assert not handshakes.is_trusted("a")
    assert trusting("a").is_trusted("a")


def test_trusted_addresses_are_bounded():
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
def test_only_an_address_with_more_loses_a_slot_and_removed_ones_use_none(steps):
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
                    handshake = inside[address].pop()
                    handshakes.remove(address, handshake, is_trusted=step == "trusted")
                continue
            handshake = next(numbers)
            untrusted = {
                a: present for a, present in inside.items() if not handshakes.is_trusted(a)
            }
            most = max(map(len, untrusted.values()), default=0)
            has, total = len(inside[address]), sum(map(len, untrusted.values()))
            may = handshakes.is_trusted(address) or (has < 3 and (total < 5 or has < most))
            admission = handshakes.admit(address, handshake)
            assert admission.is_admitted == may
            assert (admission.dropped is not None) == (may and address in untrusted and total >= 5)
            if admission.dropped is not None:
                [present] = [each for each in untrusted.values() if admission.dropped in each]
                assert (len(present), present.index(admission.dropped)) == (most, 0)
                present.remove(admission.dropped)
            if may:
                inside[address].append(handshake)
        for address, present in inside.items():
            for handshake in present:
                handshakes.remove(address, handshake, is_trusted=False)
        entries = [handshakes.admit(f"new {n}", next(numbers)) for n in range(6)]
        assert [each.dropped is None for each in entries] == [True] * 5 + [False]
