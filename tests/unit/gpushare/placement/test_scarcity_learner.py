"""What is scarce is learned from pods and nodes, and stays one object while it is the same."""

from gpushare.cards.model import ContainerRequest, Request
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import Left
from gpushare.ledger.ledger import Ledger
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.scarcity_learner import OpenNode, ScarcityLearner
from tests.builders import run_to_end, stock

LEFT = Left(8000, 0, 8000, 8000)
EVERY = Left(8000, 8000, 8000, 8000)


def cards(left=LEFT):
    ledger = Ledger()
    ledger.set_inventory("n", stock(16, 16))
    return FreeCards(ledger.account("n"), left=left)


def renew(learner, mix, *nodes):
    run_to_end(
        learner.renewing(
            mix, [OpenNode(str(i), each, EVERY, 0, (0, 0)) for i, each in enumerate(nodes)]
        )
    )
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


def look(learner, mix, *others, used=0):
    """Look at nodes of 32 units, of which pods use so many thousandths, and at an empty one."""
    nodes = [OpenNode(str(i), cards(EVERY), EVERY, used, each) for i, each in enumerate(others)]
    run_to_end(learner.renewing(mix, [*nodes, OpenNode("empty", cards(EVERY), EVERY, 0, (0, 0))]))
    return learner.now.level


def asking():
    mix = Mix()
    mix.add(Request((ContainerRequest("main", 16),), cpu=4000))
    return mix


def test_memory_of_pods_without_gpu_memory_counts_as_their_cpu_does():
    levels = set()
    for others in ((4000, 0), (0, 4000), (4000, 4000)):
        learner, mix = ScarcityLearner(), asking()
        assert {look(learner, mix, (0, 0)) for _ in range(2)} == {1.0}
        levels.add(look(learner, mix, others, used=16_000))
    assert len(levels) == 1
    assert levels != {1.0}


def test_a_pod_that_requests_more_than_its_node_has_counts_for_all_of_it():
    learner, mix = ScarcityLearner(), asking()
    for _ in range(2):
        look(learner, mix, (0, 0))
    whole = look(learner, mix, (8000, 0), used=16_000)
    assert look(learner, mix, (2**60, 0), used=16_000) == whole


def test_nodes_that_fill_up_are_kept_for_large_pods_only_while_gpu_memory_is_free():
    values = []
    for others in (0, 4000):
        learner, mix = ScarcityLearner(), Mix()
        mix.add(Request((ContainerRequest("main", 32),), 2, cpu=4000))
        for used, cpu in ((0, 0), (0, 0), (28_000, others)):
            nodes = [OpenNode(name, cards(EVERY), EVERY, used, (cpu, 0)) for name in "ab"]
            run_to_end(learner.renewing(mix, nodes))
        values.append(learner.now.host(2, 8000))
    assert values[0] > values[1] > 0


def test_nodes_that_pods_without_gpu_memory_cannot_use_are_not_theirs():
    tainted = EVERY._replace(takes_any=False)
    learner, mix = ScarcityLearner(), asking()
    for used, others in ((0, 0), (0, 0), (16_000, 4000)):
        nodes = [OpenNode("n", cards(EVERY), EVERY, used, (others, 0))]
        nodes += [OpenNode(str(i), cards(tainted), tainted, 0, (0, 0)) for i in range(50)]
        run_to_end(learner.renewing(mix, nodes))
    assert learner.now.level < 0.5  # these nodes have no room for more
    assert learner.now.stranded(32, 8000, 8000, EVERY) > 0
    assert learner.now.stranded(32, 8000, 8000, tainted) == 0
