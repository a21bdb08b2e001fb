"""The ledger under random events: never above a card's size, always equal to a recount."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec.structs import replace

from gpushare.cards.model import ContainerRequest, Request, Share
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.ledger import Ledger
from gpushare.placement import card_choice as placement
from tests.builders import stock

NODES = ("n1", "n2")


class Scheduling(RuleBasedStateMachine):
    """Decide like the extender; bindings succeed, fail, are seen and end in any order."""

    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.sizes = {}
        self.shares = {}
        self.reserves = {}
        self.count = 0
        for name in NODES:
            self.resize(name, [16, 8], [])

    @rule(
        name=st.sampled_from(NODES),
        sizes=st.lists(st.integers(0, 20), min_size=1, max_size=3),
        unhealthy=st.lists(st.integers(0, 2), max_size=2),
    )
    def resize(self, name, sizes, unhealthy):
        self.sizes[name] = stock(*sizes, unhealthy=unhealthy)
        self.ledger.set_inventory(name, self.sizes[name])

    @rule(name=st.sampled_from(NODES))
    def node_goes_away(self, name):
        self.sizes.pop(name, None)
        self.ledger.set_inventory(name, None)

    @rule(target=pods)
    def new_pod(self):
        self.count += 1
        return f"uid-{self.count}"

    @rule(uid=pods, name=st.sampled_from(NODES), units=st.integers(1, 12), count=st.integers(1, 2))
    def decide(self, uid, name, units, count):
        if uid in self.shares or (uid, name) in self.reserves:
            return
        request = Request((ContainerRequest("main", units * count),), count)
        account = self.ledger.account(name, besides=uid)
        chosen = placement.choose(account, request) if account is not None else None
        assert (chosen is None) == (placement.why_not(account, request, 1) is not None)
        if chosen is None:
            return
        free = {entry.card.uuid: entry.free for entry in account.cards}
        assert all(free[card.uuid] >= units and card.is_healthy for card in chosen)
        reserve = Reserve(uid, "default", uid, name, tuple(c.uuid for c in chosen), units, 1)
        self.ledger.reserve(reserve)
        self.reserves[uid, name] = reserve

    @rule(uid=pods, name=st.sampled_from(NODES))
    def refused(self, uid, name):
        self.ledger.release(uid, name)
        self.reserves.pop((uid, name), None)

    @rule(uid=pods, name=st.sampled_from(NODES), again=st.booleans())
    def seen_bound(self, uid, name, again):
        reserve = self.reserves.get((uid, name))
        if reserve is None:
            return
        share = Share(uid, "default", uid, name, reserve.units, reserve.cards)
        for _ in range(2 if again else 1):
            self.ledger.put_share(share)
        self.settled(uid, share)

    @rule(uid=pods, name=st.sampled_from(NODES), units=st.integers(1, 5))
    def a_stranger_binds(self, uid, name, units):
        """Bind a pod without the extender, to unknown cards."""
        if uid in self.shares:
            return
        share = Share(uid, "default", uid, name, units, (), "no decision")
        self.ledger.put_share(share)
        self.settled(uid, share)

    @rule(uid=consumes(pods), again=st.booleans())
    def ends(self, uid, again):
        for _ in range(2 if again else 1):
            self.ledger.remove_share(uid)
        self.settled(uid)

    def settled(self, uid, share=None):
        """Note that the pod is bound with a share, or has ended."""
        self.shares.pop(uid, None)
        if share is not None:
            self.shares[uid] = share
        self.reserves = {key: r for key, r in self.reserves.items() if key[0] != uid}

    @invariant()
    def the_ledger_equals_a_fresh_count(self):
        assert {share.pod_uid: share for share in self.ledger.shares()} == self.shares
        assert {(r.pod_uid, r.node): r for r in self.ledger.reserves()} == self.reserves
        fresh = self.counted_anew()
        for name in NODES:
            assert self.ledger.account(name) == fresh.account(name)

    def counted_anew(self):
        fresh = Ledger()
        for name, inventory in self.sizes.items():
            fresh.set_inventory(name, inventory)
        for share in self.shares.values():
            fresh.put_share(share)
        for reserve in self.reserves.values():
            fresh.reserve(reserve)
        return fresh

    @invariant()
    def what_is_free_never_wraps(self):
        for name in self.ledger.nodes():
            for entry in self.ledger.account(name).cards:
                assert 0 <= entry.free <= entry.card.units


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class FixedCards(Scheduling):
    """Check that no card is overcommitted while cards keep their size."""

    def resize(self, name, sizes, unhealthy):
        super().resize(name, sizes, unhealthy)

    def node_goes_away(self, name):
        pass

    def a_stranger_binds(self, uid, name, units):
        pass

    @invariant()
    def no_card_is_above_its_size(self):
        for name in self.ledger.nodes():
            for entry in self.ledger.account(name).cards:
                assert entry.used + entry.reserved <= entry.card.units
                assert entry.overcommitted == 0


TestFixedCards = FixedCards.TestCase
TestFixedCards.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def share(uid, units, *cards, node="n"):
    return Share(uid, "default", uid, node, units, cards)


def made(*sizes):
    ledger = Ledger()
    ledger.set_inventory("n", stock(*sizes))
    return ledger


def test_a_node_that_returns_after_its_pod_was_deleted_is_empty():
    ledger = made(8, 8)
    ledger.put_share(share("a", 8, "GPU-0"))
    ledger.set_inventory("n", None)
    assert ledger.account("n") is None
    ledger.remove_share("a")
    ledger.set_inventory("n", stock(8, 8))
    assert ledger.account("n").largest_free == (8, 8)


def test_a_pod_that_was_recreated_under_its_name_leaves_nothing_behind():
    ledger = made(8, 8)
    ledger.put_share(share("web-0-old", 8, "GPU-0"))
    ledger.put_share(share("web-0-new", 8, "GPU-1"))
    ledger.remove_share("web-0-old")
    assert [entry.used for entry in ledger.account("n").cards] == [0, 8]
    ledger.remove_share("web-0-new")
    assert [entry.used for entry in ledger.account("n").cards] == [0, 0]


def test_an_impossible_amount_never_makes_units_free():
    ledger = made(16)
    ledger.put_share(share("a", 8000, "GPU-0"))
    account = ledger.account("n")
    assert (account.cards[0].free, account.cards[0].overcommitted) == (0, 7984)
    wanted = Request((ContainerRequest("main", 1_000_000),))
    assert placement.why_not(account, wanted, 1) is not None


def test_units_of_an_unplaced_pod_count_as_used_on_every_card():
    ledger = made(16, 8)
    ledger.put_share(share("a", 4))
    assert ledger.account("n").largest_free == (12, 4)


def test_a_pod_that_starts_nowhere_takes_no_units_of_a_card():
    ledger = made(16, 8)
    ledger.put_share(replace(share("a", 4), starts_nowhere=True))
    assert ledger.account("n").largest_free == (16, 8)


def test_the_inventory_of_a_node_does_not_depend_on_shares():
    ledger = made(16)
    ledger.put_share(share("a", 8, "GPU-0"))
    ledger.put_share(share("b", 8, "GPU-0", node="gone"))
    assert ledger.inventory("n") == stock(16)
    assert ledger.inventory("gone") is None
    assert ledger.inventory("never") is None
