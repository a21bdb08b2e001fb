"""Victims are the fewest pods whose eviction really makes the pod fit."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpushare.cards.model import ContainerRequest, Request, Share
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.placement import card_choice as placement
from gpushare.placement.victims import find_eviction
from tests.builders import pod, stock


class World:
    """One node, and pods of given priority on its cards."""

    def __init__(self, *sizes, unhealthy=()):
        self.ledger = Ledger()
        self.ledger.set_inventory("n", stock(*sizes, unhealthy=unhealthy))
        self.pods = []

    def add(self, name, units, *cards, priority=0):
        uuids = tuple(f"GPU-{card}" for card in cards)
        self.ledger.put_share(Share(f"uid-{name}", "default", name, "n", units, uuids))
        made = pod(name, units * max(1, len(cards)), node="n")
        self.pods.append(replace(made, spec=replace(made.spec, priority=priority)))
        return self

    def ask(self, units, count=1, priority=100):
        request = Request((ContainerRequest("main", units * count),), count)
        return find_eviction(self.ledger, "n", request, self.pods, unit_mib=1, priority=priority)

    def without(self, uids):
        """Return the node's account without these pods."""
        trial = self.ledger.overlay()
        for uid in uids:
            trial.remove_share(uid)
        return trial.account("n")

    def names(self, units, count=1, priority=100):
        found = self.ask(units, count, priority)
        return found and [each.pod.metadata.name for each in found.victims]


def test_victims_are_on_one_card_and_as_few_as_can_be():
    """8 + 8 on one card, 16 on the other, and a pod requests 16."""
    world = World(16, 16).add("a1", 8, 0).add("a2", 8, 0).add("b", 16, 1)
    assert world.names(16) == ["b"]
    assert [card.index for card in world.ask(16).cards] == [1]


def test_a_shortage_on_single_cards_is_found_when_the_total_is_enough():
    """6 units are free on each of two cards, and a pod requests 10."""
    world = World(16, 16).add("a", 10, 0).add("b", 10, 1)
    assert world.names(10) == ["a"]


def test_the_last_victim_is_the_smallest_that_suffices():
    """Half a card is enough."""
    world = World(100).add("large", 60, 0).add("small", 40, 0)
    assert world.names(40) == ["small"]
    assert world.names(50) == ["large"]
    assert world.names(61) == ["large", "small"]


def test_pods_of_equal_or_higher_priority_are_never_victims():
    world = World(16).add("a", 16, 0, priority=50)
    assert world.names(16, priority=50) is None
    assert world.names(16, priority=51) == ["a"]


def test_of_equally_many_victims_the_lowest_priorities_are_chosen():
    world = World(16, 16).add("a", 16, 0, priority=50).add("b", 16, 1, priority=10)
    assert world.names(16) == ["b"]


def test_no_pod_is_evicted_if_it_does_not_help():
    world = World(16, 16, unhealthy=[0, 1]).add("a", 16, 0)
    assert world.ask(16) is None
    world = World(8).add("a", 8, 0)
    assert world.ask(16) is None
    world = World(16).add("a", 8, 0)
    world.ledger.keep(Hold("gang", (Slot("n", ("GPU-0",), 8),), 9.0))
    assert world.ask(16) is None
    world.ledger.drop(Hold, "gang")
    world.ledger.keep(Claim("other", (Slot("n", ("GPU-0",), 8),), 9.0, 100))
    assert world.ask(16) is None
    assert world.names(16, priority=101) == ["a"]


def test_an_unplaced_pod_is_never_a_victim():
    world = World(16).add("odd", 8)
    assert world.ask(16) is None
    assert world.ledger.share("uid-odd").is_unplaced


def test_no_pod_is_evicted_if_the_pod_fits_or_the_node_has_no_cards():
    world = World(16)
    assert world.names(16) == []
    world.ledger.set_inventory("n", None)
    assert world.ask(1) is None


def test_a_pod_on_two_cards_is_one_victim_and_makes_another_one_unnecessary():
    world = World(8, 16).add("both", 8, 0, 1).add("b", 8, 1)
    # On card 1 the rule names b, whose name comes first, and on card 0 the pod on both.
    assert world.names(8, count=2) == ["both"]
    assert world.names(9, count=2) is None


HOLDERS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 2)), max_size=6)


@given(sizes=st.lists(st.integers(4, 16), min_size=1, max_size=3), holders=HOLDERS, data=st.data())
def test_no_smaller_set_of_victims_suffices_on_one_card(sizes, holders, data):
    """Against every set of pods of lower priority."""
    world = World(*sizes)
    for number, (card, units, priority) in enumerate(holders):
        world.add(f"p{number}", units, card % len(sizes), priority=priority)
    units, priority = data.draw(st.integers(1, 16)), data.draw(st.integers(0, 3))
    request = Request((ContainerRequest("main", units),))
    found = world.ask(units, priority=priority)
    lower = [each.uid for each in world.pods if each.priority < priority]

    def fits(gone):
        return placement.why_not(world.without(gone), request, 1) is None

    sets = (each for size in range(len(lower) + 1) for each in combinations(lower, size))
    best = next((each for each in sets if fits(each)), None)
    assert (found is None) == (best is None)
    if found is not None:
        gone = [each.pod.uid for each in found.victims]
        assert fits(gone)
        assert set(gone) <= set(lower)
        assert len(gone) == len(best)


@given(sizes=st.lists(st.integers(4, 16), min_size=2, max_size=3), holders=HOLDERS, data=st.data())
def test_victims_on_several_cards_are_necessary_and_sufficient(sizes, holders, data):
    world = World(*sizes)
    for number, (card, units, priority) in enumerate(holders):
        cards = (0, 1) if card == 2 else (card % len(sizes),)
        world.add(f"p{number}", units, *cards, priority=priority)
    units = data.draw(st.integers(1, 16))
    request = Request((ContainerRequest("main", units * 2),), 2)
    found = world.ask(units, count=2)
    if found is None:
        empty = world.without(each.uid for each in world.pods)
        assert placement.why_not(empty, request, 1) is not None
        return
    uids = [each.pod.uid for each in found.victims]
    wanted = {card.uuid for card in found.cards}
    for left_out in (None, *uids):
        account = world.without(uid for uid in uids if uid != left_out)
        free = {e.card.uuid: e.free for e in account.cards}
        assert all(free[uuid] >= units for uuid in wanted) == (left_out is None)
