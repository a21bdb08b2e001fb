"""What the pods of a namespace use equals a count from nothing after any change of the ledger."""

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpushare.cards.model import Inventory, Share
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.quota.use import NamespaceUse
from tests import builders

NODES, NAMESPACES, MODELS = ("n1", "n2", "n3"), ("a", "b"), ("", "T4", "A100")
UIDS = tuple(f"{namespace}-{number}" for namespace in NAMESPACES for number in range(4))
CARDS = ("GPU-0", "GPU-1", "gone")
_NODE, _UID, _UNITS = st.sampled_from(NODES), st.sampled_from(UIDS), st.integers(1, 9)
_CARDS = st.sets(st.sampled_from(CARDS), min_size=1).map(lambda each: tuple(sorted(each)))


def namespace_of(uid):
    return uid.split("-")[0]


def stock(models):
    found = builders.cards(*(16 for _ in models))
    each = zip(found, models, strict=True)
    return Inventory(1, tuple(replace(card, model=model) for card, model in each))


class Uses(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.use = NamespaceUse(self.ledger, namespace_of)

    @rule(node=_NODE, models=st.none() | st.lists(st.sampled_from(MODELS), min_size=1, max_size=2))
    def node_changes(self, node, models):
        self.ledger.set_inventory(node, None if models is None else stock(models))

    @rule(uid=_UID, node=_NODE, units=_UNITS, cards=st.just(()) | _CARDS)
    def bound(self, uid, node, units, cards):
        why = "" if cards else "no decision"
        self.ledger.put_share(Share(uid, namespace_of(uid), uid, node, units, cards, why))

    @rule(uid=_UID)
    def gone(self, uid):
        self.ledger.remove_share(uid)

    @rule(uid=_UID, node=_NODE, units=_UNITS, cards=_CARDS)
    def being_bound(self, uid, node, units, cards):
        if self.ledger.share(uid) is None:
            self.ledger.reserve(Reserve(uid, namespace_of(uid), uid, node, cards, units, 1))

    @rule(uid=_UID, node=_NODE)
    def refused(self, uid, node):
        self.ledger.release(uid, node)

    @rule(
        kind=st.sampled_from((Hold, Claim)),
        owner=st.sampled_from(("g", "h")),
        places=st.dictionaries(_UID, st.tuples(_NODE, _CARDS, _UNITS), max_size=4),
    )
    def planned(self, kind, owner, places):
        slots = tuple(Slot(node, cards, n, uid) for uid, (node, cards, n) in places.items())
        kept = Hold(owner, slots, 1.0) if kind is Hold else Claim(owner, slots, 1.0, 5)
        self.ledger.keep(kept)

    @rule(kind=st.sampled_from((Hold, Claim)), owner=st.sampled_from(("g", "h")))
    def let_go(self, kind, owner):
        self.ledger.drop(kind, owner)

    @rule(first=_UID, second=_UID, node=_NODE, steps=st.integers(0, 3))
    def what_changes_while_it_is_taken_in(self, first, second, node, steps):
        self.ledger.release_all()
        self.ledger.put_share(Share(first, namespace_of(first), first, node, 1, ("GPU-0",)))
        for _ in zip(range(steps), self.use.renewing(), strict=False):
            self.ledger.remove_share(second)

    @precondition(lambda self: self.ledger.changes.now % 5 == 0)
    @rule()
    def a_new_leader(self):
        self.ledger.release_all()

    @invariant()
    def what_is_used_equals_a_count_from_nothing(self):
        uses = counted(self.ledger)
        for namespace in NAMESPACES:
            for besides in ((), UIDS[:2], UIDS):
                unplaced = {uid for uid in besides if self.ledger.share(uid) is None}
                expected = Counter()
                for (uid, _, model), units in uses.items():
                    if namespace_of(uid) == namespace and uid not in unplaced:
                        expected[model] += units
                asked = [uid for uid in besides if namespace_of(uid) == namespace]
                assert +self.use.used(namespace, besides=asked) == +expected
        assert set(self.use.namespaces()) == {namespace_of(uid) for uid, _, _ in uses}

    @invariant()
    def the_cluster_has_the_gpus_of_its_nodes(self):
        stocks = {node: self.ledger.inventory(node) for node in NODES}
        there = {node: found.cards for node, found in stocks.items() if found is not None}
        assert self.use.capacity == sum(card.units for cards in there.values() for card in cards)
        for model in MODELS:
            nodes = {node for node, cards in there.items() if model in {c.model for c in cards}}
            assert self.use.nodes_with(frozenset({model})) == nodes


def counted(ledger):
    """Return the units of each pod by node and model; a pod counts once on a node."""
    found = Counter()
    for node in NODES:
        stock = ledger.inventory(node)
        models = {card.uuid: card.model for card in stock.cards} if stock is not None else {}
        first = stock.cards[0].model if stock is not None else ""
        places = {
            slot.pod_uid: (slot.cards, slot.units)
            for kept, slot in ledger.slots_on(node)
            if isinstance(kept, Claim)
        }
        places |= {
            slot.pod_uid: (slot.cards, slot.units)
            for kept, slot in ledger.slots_on(node)
            if isinstance(kept, Hold)
        }
        places |= {each.pod_uid: (each.cards, each.units) for each in ledger.reserves(node)}
        places |= {each.pod_uid: (each.cards or ("?",), each.units) for each in ledger.shares(node)}
        for uid, (cards, units) in places.items():
            for card in cards:
                found[uid, node, models.get(card, first)] += units
    return found


TestUses = Uses.TestCase
TestUses.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_pod_of_an_unknown_namespace_counts_for_none():
    ledger = Ledger()
    ledger.set_inventory("n1", stock(["T4"]))
    use = NamespaceUse(ledger, lambda _: "")
    ledger.keep(Hold("g", (Slot("n1", ("GPU-0",), 4, "a-0"),), 1.0))
    assert use.namespaces() == []


def test_each_card_is_of_the_model_that_its_node_states():
    ledger = Ledger()
    ledger.set_inventory("n1", stock(["T4", "A100"]))
    use = NamespaceUse(ledger, namespace_of)
    assert use.models_of("n1", ["GPU-1", "GPU-0", "gone"]) == ["A100", "T4", ""]
    assert use.models_of("n2", ["GPU-1"]) == [""]
