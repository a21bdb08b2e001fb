"""What holds and claims keep, for whom, and what one slot of a hold costs."""

from functools import partial

import pytest

from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.ledger.ledger import Ledger
from tests.builders import stock
from tests.unit.gpushare.ledger import test_ledger
from tests.unit.gpushare.ledger.test_ledger import share

MEMBERS = 1024
made = partial(test_ledger.made, 16, 16)


def free(ledger, **who):
    return [entry.free for entry in ledger.account("n", **who).cards]


def hold(*slots, owner="g"):
    return Hold(owner, slots, 10.0)


def test_a_hold_is_replaced_as_a_whole():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8), Slot("n", ("GPU-1",), 8)))
    ledger.keep(hold(Slot("n", ("GPU-1",), 4)))
    assert free(ledger) == [16, 12]
    ledger.keep(hold())
    assert list(ledger.kept()) == []
    assert free(ledger) == [16, 16]


def test_a_slot_does_not_count_against_its_own_pod():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, pod_uid="a"), Slot("n", ("GPU-0",), 4)))
    assert ledger.has_reserve("a")
    assert set(ledger.reserved_on("a")) == {"n"}
    assert not ledger.reserved_on("b")
    assert free(ledger, besides="a") == [12, 16]
    assert free(ledger, besides="b") == [4, 16]


def test_a_pod_with_a_slot_and_a_reserve_is_counted_once_and_keeps_its_slot_if_it_is_refused():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, pod_uid="a")))
    ledger.reserve(Reserve("a", "default", "a", "n", ("GPU-0",), 8, 1))
    assert free(ledger) == [8, 16]
    ledger.release("a", "n")
    assert free(ledger) == [8, 16]
    ledger.reserve(Reserve("a", "default", "a", "n", ("GPU-1",), 8, 1))
    assert free(ledger) == [8, 8]


def test_a_slot_ends_when_its_pod_is_bound_to_any_node():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, pod_uid="a"), Slot("n", ("GPU-1",), 8)))
    ledger.put_share(share("a", 8, "GPU-7", node="m"))
    assert free(ledger) == [16, 8]
    assert not ledger.has_reserve("a")
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, pod_uid="a")))
    assert free(ledger) == [16, 16]


def test_expired_holds_and_claims_are_returned_once():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8)))
    ledger.keep(Claim("g", (Slot("n", ("GPU-0",), 8),), 20.0, 5))
    assert ledger.expire(9.9) == []
    [gone] = ledger.expire(10.0)
    assert gone.slots == (Slot("n", ("GPU-0",), 8),)
    assert free(ledger) == [8, 16]
    assert len(ledger.expire(20.0)) == 1
    assert free(ledger) == [16, 16]


def test_a_claim_counts_against_lower_and_equal_priorities_only():
    """The preemptor's card is freed; a pod that arrives in between does not get it."""
    ledger = made()
    ledger.put_share(share("low", 16, "GPU-0"))
    ledger.keep(Claim("high", (Slot("n", ("GPU-0",), 16, pod_uid="high"),), 10.0, 50))
    assert ledger.account("n").cards[0].overcommitted == 0
    ledger.remove_share("low")
    assert free(ledger, priority=10) == [0, 16]
    assert free(ledger, priority=50) == [0, 16]
    assert free(ledger, priority=100) == [16, 16]
    assert free(ledger, priority=50, besides="high") == [16, 16]
    assert free(ledger) == [0, 16]


def test_a_claim_does_not_make_a_card_overcommitted():
    ledger = made()
    ledger.keep(Claim("high", (Slot("n", ("GPU-0",), 16),), 10.0, 50))
    ledger.put_share(share("a", 16, "GPU-0"))
    entry = ledger.account("n").cards[0]
    assert (entry.used, entry.claimed, entry.free, entry.overcommitted) == (16, 16, 0, 0)


def test_cpu_and_memory_are_kept_too():
    ledger = made()
    pinned = Slot("n", ("GPU-0",), 1, "a", (("cpu", 500), ("memory", 2**30)))
    ledger.keep(hold(pinned, Slot("n", ("GPU-0",), 1, requests=(("cpu", 250),))))
    ledger.keep(Claim("h", (Slot("n", (), 0, requests=(("cpu", 100), ("memory", 7))),), 10.0, 5))
    assert ledger.kept_resources("n") == {"cpu": 850, "memory": 2**30 + 7}
    assert ledger.kept_resources("n", priority=6) == {"cpu": 750, "memory": 2**30}
    assert ledger.kept_resources("n", besides="a", priority=6) == {"cpu": 250}
    assert ledger.kept_resources("m") == {}


def test_a_hold_on_a_node_without_cards_counts_once_it_has_cards():
    ledger = Ledger()
    ledger.keep(hold(Slot("n", ("GPU-0",), 4)))
    assert ledger.account("n") is None
    ledger.set_inventory("n", stock(16))
    assert free(ledger) == [12]


def test_a_hold_for_a_card_that_the_node_does_not_have_counts_on_every_card():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-9",), 4)))
    assert free(ledger) == [12, 12]


def test_an_overlay_shares_the_account_of_an_unchanged_node():
    ledger = made()
    trial = ledger.overlay()
    assert trial.account("n") is ledger.account("n")
    trial.put_share(share("a", 8, "GPU-0"))
    assert free(trial) == [8, 16]
    assert free(ledger) == [16, 16]
    trial.set_inventory("n", None)
    assert trial.account("n") is None
    assert list(trial.nodes()) == []
    assert list(ledger.nodes()) == ["n"]


def gang():
    """Return a ledger with a hold of one slot on each of many nodes."""
    ledger = Ledger()
    for number in range(MEMBERS):
        ledger.set_inventory(f"n{number}", stock(16))
    slots = (Slot(f"n{i}", ("GPU-0",), 8, f"uid-{i}") for i in range(MEMBERS))
    ledger.keep(hold(*slots))
    return ledger


def touched(ledger, seen):
    return sorted(ledger.changes.since(seen))


def test_a_member_of_a_large_gang_that_is_bound_or_deleted_changes_one_node():
    ledger = gang()
    seen = ledger.changes.now
    ledger.put_share(share("uid-7", 8, "GPU-0", node="n7"))
    assert touched(ledger, seen) == ["n7"]
    seen = ledger.changes.now
    ledger.remove_share("uid-8")
    assert touched(ledger, seen) == ["n8"]
    seen = ledger.changes.now
    ledger.drop_slot("uid-9")
    assert touched(ledger, seen) == ["n9"]
    left = ledger.hold_of("g")
    assert len(left.slots) == MEMBERS - 3
    assert ledger.account("n7").largest_free == (8,)
    assert ledger.account("n8").largest_free == (16,)


def test_only_the_nodes_of_changed_slots_change():
    ledger = gang()
    before = ledger.hold_of("g")
    seen = ledger.changes.now
    ledger.keep(before)
    assert ledger.renew("g", 99.0)
    assert touched(ledger, seen) == []
    ledger.put_slot("g", Slot("n3", ("GPU-0",), 8, "uid-7"))
    assert touched(ledger, seen) == ["n3", "n7"]
    seen = ledger.changes.now
    ledger.keep(before)
    assert touched(ledger, seen) == ["n3", "n7"]


def test_another_slot_of_a_member_replaces_its_slot_and_keeps_the_others():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, "a"), Slot("n", ("GPU-0",), 8, "b")))
    ledger.put_slot("g", Slot("n", ("GPU-1",), 8, "a"))
    assert ledger.slot_of("a") == Slot("n", ("GPU-1",), 8, "a")
    assert free(ledger) == [8, 8]
    ledger.put_slot("g", Slot("n", ("GPU-1",), 4, "c"))
    assert [slot.pod_uid for slot in ledger.hold_of("g").slots] == ["a", "b", "c"]
    assert free(ledger) == [8, 4]


def test_a_slot_is_added_only_for_a_pod_and_to_a_hold():
    ledger = made()
    with pytest.raises(KeyError, match="g"):
        ledger.put_slot("g", Slot("n", ("GPU-0",), 8, "a"))
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, "a")))
    with pytest.raises(ValueError, match="has no pod"):
        ledger.put_slot("g", Slot("n", ("GPU-0",), 8))


def test_a_pod_that_is_bound_gets_no_slot():
    ledger = made()
    ledger.put_share(share("a", 8, "GPU-0"))
    ledger.keep(hold(Slot("n", ("GPU-1",), 8, "b")))
    ledger.put_slot("g", Slot("n", ("GPU-1",), 8, "a"))
    assert ledger.slot_of("a") is None
    assert free(ledger) == [8, 8]


def test_a_pod_has_one_slot_in_all_holds():
    """A pod whose group changes leaves the hold of the first."""
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8, "a"), Slot("n", ("GPU-0",), 8, "b")))
    ledger.keep(hold(Slot("n", ("GPU-1",), 8, "a"), owner="other"))
    assert [slot.pod_uid for slot in ledger.hold_of("g").slots] == ["b"]
    assert free(ledger) == [8, 8]
    ledger.put_slot("other", Slot("n", ("GPU-1",), 8, "b"))
    assert ledger.hold_of("g") is None


def test_a_hold_ends_with_its_last_slot():
    ledger = made()
    ledger.keep(hold(Slot("n", (), 0, "a")))
    ledger.drop_slot("a")
    assert ledger.hold_of("g") is None
    assert not ledger.renew("g", 99.0)
    assert list(ledger.kept()) == []


def test_a_renewed_hold_expires_later():
    ledger = made()
    ledger.keep(hold(Slot("n", ("GPU-0",), 8)))
    assert ledger.renew("g", 20.0)
    assert ledger.expire(10.0) == []
    assert [kept.expires_at for kept in ledger.expire(20.0)] == [20.0]


def test_a_pod_with_a_hold_and_a_claim_on_a_node_requests_its_cpu_once():
    ledger = made()
    slot = Slot("n", ("GPU-0",), 8, "a", (("cpu", 500),))
    ledger.keep(Claim("g", (slot,), 10.0, 5))
    ledger.keep(hold(slot))
    assert ledger.kept_resources("n") == {"cpu": 500}
    assert free(ledger) == [8, 16]


def test_what_no_pod_shows_is_released_together():
    ledger = made()
    ledger.put_share(share("bound", 4, "GPU-0"))
    ledger.reserve(Reserve("a", "default", "a", "n", ("GPU-0",), 4, 1))
    ledger.keep(hold(Slot("n", ("GPU-0",), 4, "b")))
    ledger.keep(Claim("h", (Slot("n", ("GPU-1",), 4),), 10.0, 5))
    ledger.release_all()
    assert free(ledger) == [12, 16]
    assert list(ledger.kept()) == []
    assert list(ledger.reserves()) == []
    assert ledger.outranked(6) == set()
