"""Holds and claims under random events: units are kept for the right pods and counted once."""

import copy
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.ledger.ledger import Ledger, Reserve
from tests.builders import stock
from tests.unit.gpushare.ledger import test_ledger
from tests.unit.gpushare.ledger.test_ledger import NODES, FixedCards, share

OWNERS = ("g1", "g2")
ASKED = (("cpu", 100), ("memory", 5), ("pods", 1000))
made = partial(test_ledger.made, 16, 16)


class Planning(FixedCards):
    """Plans beside decisions: holds are taken where the room is, replaced, let go of, and expire.

    That no card is above its size is checked after every step, as for decisions alone.
    """

    def __init__(self):
        self.kept = {}
        super().__init__()

    def slot(self, name, uid, units):
        """Return a slot on the card with the most free units for the pod."""
        # A slot of another plan for the same pod is not this plan's to use.
        is_planned = any(slot.pod_uid == uid for kept in self.kept.values() for slot in kept.slots)
        account = self.ledger.account(name, besides="" if is_planned else uid)
        best = max(account.cards, key=lambda entry: entry.free)
        units = min(units, best.free)
        return Slot(name, (best.card.uuid,), units, pod_uid=uid) if units else None

    @rule(
        owner=st.sampled_from(OWNERS),
        names=st.lists(st.sampled_from(NODES), min_size=1, max_size=3),
        uid=FixedCards.pods,
        pinned=st.booleans(),
        units=st.integers(1, 9),
    )
    def hold(self, owner, names, uid, pinned, units):
        """Plan on an overlay, slot by slot, then keep all slots at once."""
        self.ledger.drop(Hold, owner)
        self.kept.pop((Hold, owner), None)
        planned, lasts = [], 1 + units % 3
        trial, ledger = self.ledger.overlay(), self.ledger
        self.ledger = trial
        for name in names:
            # A pod has one place: a second slot of it would have to fit beside its first.
            made = self.slot(name, uid if pinned and not planned else "", units)
            if made is not None:
                planned.append(made)
                trial.keep(Hold(owner, tuple(planned), lasts))
        self.ledger = ledger
        wanted = Hold(owner, tuple(planned), lasts)
        self.ledger.keep(wanted)
        self.note(wanted)

    @rule(
        owner=st.sampled_from(OWNERS),
        name=st.sampled_from(NODES),
        uid=st.one_of(st.just(""), FixedCards.pods),
        units=st.integers(1, 30),
        priority=st.integers(0, 2),
    )
    def claim(self, owner, name, uid, units, priority):
        """Claim a card regardless of the pods on it."""
        wanted = Claim(owner, (Slot(name, ("GPU-0",), units, pod_uid=uid),), 2, priority)
        self.ledger.keep(wanted)
        self.note(wanted)

    @rule(owner=st.sampled_from(OWNERS), kind=st.sampled_from([Hold, Claim]))
    def let_go(self, owner, kind):
        assert self.ledger.drop(kind, owner) == self.kept.pop((kind, owner), None)
        assert self.ledger.drop(kind, owner) is None

    @rule(now=st.integers(0, 3))
    def time_passes(self, now):
        due = {key: kept for key, kept in self.kept.items() if kept.expires_at <= now}
        assert {(type(k), k.owner): k for k in self.ledger.expire(now)} == due
        self.kept = {key: kept for key, kept in self.kept.items() if key not in due}

    def note(self, kept):
        slots = tuple(slot for slot in kept.slots if slot.pod_uid not in self.shares)
        self.kept.pop((type(kept), kept.owner), None)
        pinned = {slot.pod_uid for slot in slots if slot.pod_uid}
        for key, other in list(self.kept.items()):
            if key[0] is type(kept) and pinned.intersection(s.pod_uid for s in other.slots):
                left = tuple(s for s in other.slots if s.pod_uid not in pinned)
                del self.kept[key]
                if left:
                    self.kept[key] = _with(other, left)
        if slots:
            self.kept[type(kept), kept.owner] = _with(kept, slots)

    def seen_bound(self, uid, name, again):
        super().seen_bound(uid, name, again)
        if uid in self.shares:
            self.gone_from_plans(uid)

    def ends(self, uid, again):
        super().ends(uid, again)
        self.gone_from_plans(uid)

    def gone_from_plans(self, uid):
        for kept in list(self.kept.values()):
            left = tuple(slot for slot in kept.slots if slot.pod_uid != uid)
            self.note(_with(kept, left))

    def counted_anew(self):
        fresh = super().counted_anew()
        for kept in self.kept.values():
            fresh.keep(kept)
        assert {(type(k), k.owner): k for k in self.ledger.kept()} == self.kept
        return fresh

    @rule(
        name=st.sampled_from(NODES),
        priority=st.one_of(st.none(), st.integers(-1, 3)),
        uid=st.one_of(st.just(""), FixedCards.pods),
    )
    def somebody_looks(self, name, priority, uid):
        """Check that a claim counts only against lower or equal priorities, a hold against all."""
        found = self.ledger.account(name, besides=uid, priority=priority)
        bare = Ledger()
        bare.set_inventory(name, self.sizes[name])
        for each in self.shares.values():
            bare.put_share(each)
        for reserve in self.reserves.values():
            if reserve.pod_uid != uid:
                bare.reserve(reserve)
        for kept in self.kept.values():
            if type(kept) is Claim and priority is not None and kept.priority < priority:
                continue
            bare.keep(_with(kept, tuple(s for s in kept.slots if not uid or s.pod_uid != uid)))
        assert found == bare.account(name)

    @rule(data=st.data())
    def something_is_tried(self, data):
        """Check that changes to an overlay have their effect there and none on its base."""
        before = copy.deepcopy(self.ledger)
        trial, real = self.ledger.overlay(), copy.deepcopy(self.ledger)
        uids = [*self.shares, *(uid for uid, _ in self.reserves), "uid-new"]
        for _ in range(data.draw(st.integers(1, 4))):
            uid = data.draw(st.sampled_from(uids))
            name = data.draw(st.sampled_from([*NODES, "n9"]))
            what = data.draw(st.sampled_from(["put", "remove", "reserve", "hold", "drop", "size"]))
            for ledger in (trial, real):
                _do(ledger, what, uid, name)
        assert _state(trial) == _state(real)
        assert _state(trial.overlay()) == _state(real)
        assert _state(self.ledger) == _state(before)


def _with(kept, slots):
    rest = [kept.priority] if type(kept) is Claim else []
    return type(kept)(kept.owner, slots, kept.expires_at, *rest)


def _do(ledger, what, uid, name):
    if what == "put":
        ledger.put_share(share(uid, 3, "GPU-0", node=name))
    elif what == "remove":
        ledger.remove_share(uid)
    elif what == "reserve":
        ledger.reserve(Reserve(uid, "default", uid, name, ("GPU-1",), 2, 1))
    elif what == "hold":
        ledger.keep(Hold("g1", (Slot(name, ("GPU-0",), 1, uid, ASKED), Slot("n2", (), 1)), 9))
    elif what == "drop":
        ledger.drop(Hold, "g1")
        ledger.release(uid, name)
    else:
        ledger.set_inventory(name, stock(4, 4) if uid == "uid-new" else None)


def _state(ledger):
    names = [*NODES, "n9"]
    return (
        {share.pod_uid: share for share in ledger.shares()},
        {name: {share.pod_uid for share in ledger.shares(name)} for name in names},
        {(reserve.pod_uid, reserve.node): reserve for reserve in ledger.reserves()},
        {(type(kept), kept.owner): kept for kept in ledger.kept()},
        {name: ledger.account(name) for name in names},
        {name: ledger.kept_resources(name) for name in names},
        set(ledger.nodes()),
    )


TestPlanning = Planning.TestCase
TestPlanning.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


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
