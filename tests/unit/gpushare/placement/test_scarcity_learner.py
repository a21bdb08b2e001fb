"""What is scarce is learned from pods and nodes, and stays one object while it is the same."""

from gpushare.cards.model import ContainerRequest, Request
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import Left
from gpushare.ledger.ledger import Ledger
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.scarcity_learner import OpenNode, ScarcityLearner
from tests.builders import run_to_end, stock

LEFT = Left(8000, 0, 8000, 8000)


def cards(left=LEFT):
    ledger = Ledger()
    ledger.set_inventory("n", stock(16, 16))
    return FreeCards(ledger.account("n"), left=left)


def renew(learner, mix, *nodes):
    run_to_end(learner.renewing(mix, [OpenNode(str(i), each) for i, each in enumerate(nodes)]))
    return learner.now


def test_more_pods_are_needed_each_time_until_the_mix_is_looked_at_again():
    mix, learner = Mix(), ScarcityLearner()
    asked = Request((ContainerRequest("main", 16),), cpu=4000)
    for _ in range(10):
        mix.add(asked)
    first = renew(learner, mix, cards())
    assert first.cpu == 250
    other = Request((ContainerRequest("main", 16),), cpu=8000)
    mix.add(other)
    assert renew(learner, mix, cards()) is first
    for _ in range(10):
        mix.add(other)
    assert renew(learner, mix, cards()).cpu > first.cpu


def test_a_new_node_is_noticed_at_once():
    mix, learner = Mix(), ScarcityLearner()
    mix.add(Request((ContainerRequest("main", 16),), cpu=4000))
    first = renew(learner, mix, cards())
    second = renew(learner, mix, cards(), cards())
    assert second.capacity.units == {"": 64} != first.capacity.units


def test_a_node_whose_free_cpu_is_unknown_hosts_nothing():
    mix, learner = Mix(), ScarcityLearner()
    mix.add(Request((ContainerRequest("main", 32),), 2, cpu=4000))
    few = renew(learner, mix, cards(), cards(left=None))
    alone = ScarcityLearner()
    assert few.hosts == renew(alone, mix, cards(), cards(left=Left(-1, 0, 8000, 8000))).hosts
