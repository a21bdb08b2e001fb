"""Holds and claims under random events: units are kept for the right pods and counted once."""

import copy
import itertools
from collections import Counter
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec.structs import replace

from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.ledger.ledger import Ledger
from tests.builders import stock
from tests.unit.gpushare.ledger.test_ledger import NODES, FixedCards, share

OWNERS = ("g1", "g2")
KINDS = (Hold, Claim)
UIDS = ("a", "b", "c")  # few, so that one pod is in several plans
PODS = st.sampled_from(UIDS)


def asked(units):
    """Return different requests for different units."""
    return (("cpu", 100 * units), ("pods", 1000))


class Planning(FixedCards):
    """Plans beside decisions: holds are taken where the room is, mended, let go of, and expire.

    That no card is above its size is checked after every step, as for decisions alone.
    """

    def __init__(self):
        self.kept = {}
        super().__init__()

    new_pod = None  # there are all of UIDS

    @rule(uid=PODS, name=st.sampled_from(NODES), units=st.integers(1, 12), count=st.integers(1, 2))
    def decide(self, uid, name, units, count):
        super().decide(uid, name, units, count)

    @rule(uid=PODS, name=st.sampled_from(NODES))
    def refused(self, uid, name):
        super().refused(uid, name)

    def slot(self, name, uid, units):
        """Return a slot on the card with the most free units for the pod."""
        # A slot of another plan for the same pod is not this plan's to use.
        is_planned = uid in self.pinned(Hold) or uid in self.pinned(Claim)
        account = self.ledger.account(name, besides="" if is_planned else uid)
        best = max(account.cards, key=lambda entry: entry.free)
        units = min(units, best.free)
        return Slot(name, (best.card.uuid,), units, uid, asked(units)) if units else None

    @rule(
        owner=st.sampled_from(OWNERS),
        names=st.lists(st.sampled_from(NODES), min_size=1, max_size=3),
        uid=PODS,
        pinned=st.sampled_from([True, True, True, False]),
        units=st.integers(1, 5),
    )
    def hold(self, owner, names, uid, pinned, units):
        """Plan on an overlay, slot by slot, then keep all slots at once."""
        planned, lasts = [], 10 + units % 3
        trial, ledger = self.ledger.overlay(), self.ledger
        trial.drop(Hold, owner)
        self.ledger = trial
        for name in names:
            # A pod has one place: a second slot of it would have to fit beside its first.
            made = self.slot(name, uid if pinned and not planned else "", units)
            if made is not None:
                planned.append(made)
                trial.keep(Hold(owner, tuple(planned), lasts))
        self.ledger = ledger
        wanted = Hold(owner, tuple(planned), lasts)
        with self.only_changed_nodes_are_touched():
            self.ledger.keep(wanted)
            self.note(wanted)

    @rule(
        owner=st.sampled_from(OWNERS),
        name=st.sampled_from(NODES),
        uid=st.one_of(st.just(""), PODS),
        units=st.integers(1, 30),
        priority=st.integers(0, 2),
    )
    def claim(self, owner, name, uid, units, priority):
        """Claim a card regardless of the pods on it."""
        other = Slot(name, ("GPU-1",), 1) if units % 2 else Slot("n2", (), 0, requests=asked(1))
        wanted = Slot(name, ("GPU-0",), units, uid, asked(units))
        wanted = Claim(owner, (other, wanted, other), 10 + units % 3, priority)
        with self.only_changed_nodes_are_touched():
            self.ledger.keep(wanted)
            self.note(wanted)

    @rule(owner=st.sampled_from(OWNERS), kind=st.sampled_from(KINDS))
    def the_same_is_kept_again(self, owner, kind):
        kept = self.kept.get((kind, owner))
        if kept is not None:
            with self.only_changed_nodes_are_touched():
                self.ledger.keep(_with(kept, tuple(reversed(kept.slots))))
                self.kept[kind, owner] = _with(kept, tuple(reversed(kept.slots)))
                for slot in kept.slots:
                    if kind is Hold and slot.pod_uid:
                        self.ledger.put_slot(owner, slot)

    @rule(
        owner=st.sampled_from(OWNERS),
        name=st.sampled_from(NODES),
        uid=PODS,
        units=st.integers(1, 9),
        card=st.booleans(),
    )
    def a_member_gets_another_slot(self, owner, name, uid, units, card):
        kept = self.kept.get((Hold, owner))
        made = self.slot(name, uid, units) if card else Slot(name, (), 0, uid, asked(units))
        if kept is None or made is None:
            return
        with self.only_changed_nodes_are_touched():
            self.ledger.put_slot(owner, made)
            before = self.pinned(Hold).get(uid)
            if before in kept.slots:
                slots = tuple(made if slot == before else slot for slot in kept.slots)
            else:
                slots = (*kept.slots, made)
            self.note(_with(kept, slots))

    @rule(uid=PODS)
    def is_bound_without_a_share(self, uid):
        with self.only_changed_nodes_are_touched():
            self.ledger.drop_slot(uid)
            self.gone_from_plans(uid)

    @rule(owner=st.sampled_from(OWNERS), lasts=st.integers(9, 14))
    def is_renewed(self, owner, lasts):
        kept = self.kept.get((Hold, owner))
        with self.only_changed_nodes_are_touched():
            assert self.ledger.renew(owner, lasts) == (kept is not None)
        if kept is not None:
            self.kept[Hold, owner] = Hold(owner, kept.slots, lasts)

    @rule(owner=st.sampled_from(OWNERS), kind=st.sampled_from(KINDS))
    def let_go(self, owner, kind):
        with self.only_changed_nodes_are_touched():
            assert self.ledger.drop(kind, owner) == self.kept.pop((kind, owner), None)
            assert self.ledger.drop(kind, owner) is None

    @rule(now=st.integers(5, 14))
    def time_passes(self, now):
        due = {key: kept for key, kept in self.kept.items() if kept.expires_at <= now}
        with self.only_changed_nodes_are_touched():
            assert {(type(k), k.owner): k for k in self.ledger.expire(now)} == due
            self.kept = {key: kept for key, kept in self.kept.items() if key not in due}

    @rule()
    def another_replica_decides(self):
        self.ledger.release_all()
        self.kept, self.reserves = {}, {}

    @rule(uid=PODS)
    def is_decided_by_its_slot(self, uid):
        """Check that a pod with a slot and a reserve on its cards is counted once."""
        slot = self.ledger.slot_of(uid)
        if slot is None or not slot.cards or (uid, slot.node) in self.reserves:
            return
        before = [entry.free for entry in self.ledger.account(slot.node).cards]
        made = Reserve(uid, "default", uid, slot.node, slot.cards, slot.units, 1)
        self.ledger.reserve(made)
        self.reserves[uid, slot.node] = made
        assert [entry.free for entry in self.ledger.account(slot.node).cards] == before

    def note(self, kept):
        slots = tuple(slot for slot in kept.slots if slot.pod_uid not in self.shares)
        for uid in {slot.pod_uid for slot in slots if slot.pod_uid}:
            self.gone_from_plans(uid, type(kept), besides=kept.owner)
        self.kept.pop((type(kept), kept.owner), None)
        if slots:
            self.kept[type(kept), kept.owner] = _with(kept, slots)

    @rule(uid=PODS, name=st.sampled_from(NODES), again=st.booleans())
    def seen_bound(self, uid, name, again):
        super().seen_bound(uid, name, again)
        if uid in self.shares:
            self.gone_from_plans(uid)

    @rule(uid=PODS, again=st.booleans())
    def ends(self, uid, again):
        super().ends(uid, again)
        self.gone_from_plans(uid)

    def gone_from_plans(self, uid, *kinds, besides=""):
        for (kind, owner), kept in list(self.kept.items()):
            left = tuple(slot for slot in kept.slots if slot.pod_uid != uid)
            if kind in (kinds or KINDS) and owner != besides and left != kept.slots:
                del self.kept[kind, owner]
                if left:
                    self.kept[kind, owner] = _with(kept, left)

    def pinned(self, kind):
        return {
            slot.pod_uid: slot
            for kept in self.kept.values()
            for slot in kept.slots
            if slot.pod_uid and type(kept) is kind
        }

    def by_node(self):
        found = {}
        for kept in self.kept.values():
            for slot in kept.slots:
                who = (type(kept), kept.owner, getattr(kept, "priority", None))
                found.setdefault(slot.node, Counter())[who, slot] += 1
        return found

    @contextmanager
    def only_changed_nodes_are_touched(self):
        before, seen = self.by_node(), self.ledger.changes.now
        yield
        after = self.by_node()
        touched = set(self.ledger.changes.since(seen))
        assert touched == {n for n in {*before, *after} if before.get(n) != after.get(n)}

    def counted_anew(self):
        fresh = super().counted_anew()
        for kept in self.kept.values():
            fresh.keep(kept)
        return fresh

    @invariant()
    def every_plan_is_found(self):
        ledger = self.ledger
        assert {(type(k), k.owner): k for k in ledger.kept()} == self.kept
        for owner in OWNERS:
            assert ledger.hold_of(owner) == self.kept.get((Hold, owner))
        pinned = self.pinned(Hold)
        claimed = self.pinned(Claim)
        for uid in UIDS:
            assert ledger.slot_of(uid) == pinned.get(uid)
            mine = {node for name, node in self.reserves if name == uid}
            mine |= {pins[uid].node for pins in (pinned, claimed) if uid in pins}
            assert set(ledger.reserved_on(uid)) == mine
            assert ledger.has_reserve(uid) == bool(mine)
        here = self.by_node()
        for name in NODES:
            found = Counter(
                ((type(kept), kept.owner, getattr(kept, "priority", None)), slot)
                for kept, slot in ledger.slots_on(name)
            )
            assert found == here.get(name, Counter())

    @rule()
    def pods_look(self):
        for name, uid, priority in itertools.product(NODES, ("", *UIDS), (None, 0, 1, 2)):
            self.looks(name, priority, uid)

    def looks(self, name, priority, uid):
        """Check that a claim counts only against lower or equal priorities, a hold against all."""
        bare = Ledger()
        bare.set_inventory(name, self.sizes[name])
        for each in self.shares.values():
            bare.put_share(each)
        for reserve in self.reserves.values():
            if reserve.pod_uid != uid:
                bare.reserve(reserve)
        outranked, sums, counted = set(), Counter(), set()
        for kept in sorted(self.kept.values(), key=lambda kept: type(kept) is Claim):
            if type(kept) is Claim and priority is not None and kept.priority < priority:
                outranked |= {slot.node for slot in kept.slots}
                continue
            slots = tuple(slot for slot in kept.slots if not uid or slot.pod_uid != uid)
            bare.keep(_with(kept, slots))
            for slot in slots:
                if slot.node == name and slot.pod_uid not in counted:
                    sums.update(dict(slot.requests))
                    counted |= {slot.pod_uid} - {""}
        found = self.ledger.account(name, besides=uid, priority=priority)
        own = self.pinned(Hold).get(uid)
        is_here = own is not None and own.node == name
        self.is_like(found, bare.account(name), own if is_here else None)
        kept = self.ledger.kept_resources(name, besides=uid, priority=priority)
        assert kept == dict(sums)
        if priority is not None:
            assert self.ledger.outranked(priority) == outranked

    def is_like(self, found, bare, own):
        """Check that a claim takes nothing of ``own``, what is held for the pod itself."""
        for card, wanted in zip(found.cards, bare.cards, strict=True):
            assert replace(card, claimed=wanted.claimed) == wanted
            left = card.card.units - card.used - card.unplaced - card.reserved
            is_own = own is not None and card.card.uuid in own.cards
            assert card.free == max(wanted.free, min(left, own.units if is_own else 0))
        if own is None:
            assert found == bare

    @rule(data=st.data())
    def something_is_tried(self, data):
        """Check that changes to an overlay have their effect there and none on its base."""
        before = copy.deepcopy(self.ledger)
        trial, real = self.ledger.overlay(), copy.deepcopy(self.ledger)
        uids = [*self.shares, *(uid for uid, _ in self.reserves), *self.pinned(Hold), "uid-new"]
        for _ in range(data.draw(st.integers(1, 5))):
            uid = data.draw(st.sampled_from(uids))
            name = data.draw(st.sampled_from([*NODES, "n9"]))
            what = data.draw(st.sampled_from(list(_TRIED)))
            for ledger in (trial, real):
                _TRIED[what](ledger, uid, name)
        assert _state(trial, uids) == _state(real, uids)
        assert _state(trial.overlay(), uids) == _state(real, uids)
        assert _state(self.ledger, uids) == _state(before, uids)


def _with(kept, slots):
    rest = [kept.priority] if type(kept) is Claim else []
    return type(kept)(kept.owner, slots, kept.expires_at, *rest)


def _put_slot(ledger, uid, name):
    if ledger.hold_of("g1") is not None:
        ledger.put_slot("g1", Slot(name, ("GPU-1",), 2, uid, asked(2)))


_TRIED = {
    "put": lambda ledger, uid, name: ledger.put_share(share(uid, 3, "GPU-0", node=name)),
    "remove": lambda ledger, uid, name: ledger.remove_share(uid),
    "reserve": lambda ledger, uid, name: ledger.reserve(
        Reserve(uid, "default", uid, name, ("GPU-1",), 2, 1)
    ),
    "hold": lambda ledger, uid, name: ledger.keep(
        Hold("g1", (Slot(name, ("GPU-0",), 1, uid, asked(1)), Slot("n2", (), 1)), 9)
    ),
    "claim": lambda ledger, uid, name: ledger.keep(
        Claim("g2", (Slot(name, ("GPU-0",), 1, uid), Slot("n2", (), 1)), 9, len(uid) % 3)
    ),
    "put slot": _put_slot,
    "drop slot": lambda ledger, uid, name: ledger.drop_slot(uid),
    "renew": lambda ledger, uid, name: ledger.renew("g1", 7),
    "drop": lambda ledger, uid, name: ledger.drop(Hold, "g1"),
    "drop claim": lambda ledger, uid, name: ledger.drop(Claim, "g1"),
    "release": lambda ledger, uid, name: ledger.release(uid, name),
    "release all": lambda ledger, uid, name: ledger.release_all(),
    "expire": lambda ledger, uid, name: ledger.expire(11),
    "size": lambda ledger, uid, name: ledger.set_inventory(
        name, stock(4, 4) if uid == "uid-new" else None
    ),
}


def _state(ledger, uids):
    names = [*NODES, "n9"]
    return (
        {share.pod_uid: share for share in ledger.shares()},
        {name: {share.pod_uid for share in ledger.shares(name)} for name in names},
        {(reserve.pod_uid, reserve.node): reserve for reserve in ledger.reserves()},
        {(type(kept), kept.owner): kept for kept in ledger.kept()},
        {uid: (ledger.slot_of(uid), set(ledger.reserved_on(uid))) for uid in uids},
        {name: ledger.slots_on(name) for name in names},
        {name: ledger.account(name) for name in names},
        {name: ledger.kept_resources(name) for name in names},
        {priority: ledger.outranked(priority) for priority in range(4)},
        set(ledger.nodes()),
    )


TestPlanning = Planning.TestCase
TestPlanning.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
