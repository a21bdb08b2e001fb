"""The placement benchmark checks every placement, and all systems get the same pods."""

from collections import Counter

import pytest

from bench.placement import inflation, peers, variations
from bench.placement.__main__ import SYSTEMS
from bench.placement.books import Books, Place, Setup, idle
from bench.placement.churn import churn
from bench.placement.defragmenting import defragment
from bench.placement.trace import CARD, Trace, TraceNode, TracePod

NODES = (
    TraceNode("a", 16_000, 65_536, 4, "A"),
    TraceNode("b", 16_000, 65_536, 4, "B"),
    TraceNode("c", 4_000, 16_384, 1, "B"),
)
WHOLE = TracePod(4_000, 8_192, 1, CARD)
HALF = TracePod(2_000, 4_096, 1, CARD // 2)
LARGE = TracePod(12_000, 8_192, 4, CARD)
NO_GPU = TracePod(1_000, 1_024)
OF_B = TracePod(1_000, 1_024, 1, 300, ("B",))
NOWHERE = TracePod(17_000, 1_024, 1, 1)
SMALL = Trace("small", NODES, (WHOLE, HALF, HALF, LARGE, NO_GPU, OF_B))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_fills_a_cluster_without_a_wrong_placement(system):
    def fill():
        books = Books(SMALL)
        gpus = SYSTEMS[system](SMALL, books, 1)
        others = peers.kube_scheduler(books, 2)
        return inflation.fill(Setup(SMALL, books, gpus, others), 1)

    found = fill()
    assert 0 < found.at_100 <= found.at_130 <= 100
    assert sum(found.idle.values()) == pytest.approx(100 - found.at_130)
    assert fill() == found


@pytest.mark.parametrize("system", SYSTEMS)
def test_pods_that_come_and_go_leave_nothing_behind(system):
    books = Books(SMALL)
    setup = Setup(SMALL, books, SYSTEMS[system](SMALL, books, 1), peers.Elsewhere())
    found = churn(setup, 1, 0.5)
    assert 0 <= found.large <= found.total < 100
    assert 0 <= books.used <= SMALL.capacity


@pytest.mark.parametrize(
    ("pod", "place"),
    [
        (LARGE, Place(2, (0,))),  # too few cards
        (OF_B, Place(0, (0,))),  # another model
        (NOWHERE, Place(0, (0,))),  # more CPU than there is
        (WHOLE, Place(0, (1,))),  # the card is used already
        (TracePod(1, 1, 2, 1), Place(0, (2, 2))),  # one card twice
    ],
)
def test_a_wrong_placement_ends_the_run(pod, place):
    books = Books(SMALL)
    books.put(HALF, Place(0, (1,)))
    with pytest.raises(ValueError, match=r"got|does not fit"):
        books.put(pod, place)


def test_idle_units_are_counted_by_their_cause():
    books = Books(SMALL)
    books.put(HALF, Place(2, (0,)))
    books.put(TracePod(16_000, 0, 1, CARD), Place(0, (0,)))
    causes = idle(books, [(WHOLE, 1)])
    assert causes == {"cpu": 3500, "memory": 0, "model": 0, "remnants": 0, "usable": 4000}


def test_cards_become_free_when_pods_move():
    nodes = [TraceNode(f"n{number}", 64_000, 65_536, 4, "A") for number in range(5)]
    found = defragment(Trace("few", nodes, (HALF,) * 40), 1, 0.4)
    assert found.cards > 0
    assert found.moves >= found.cards


def _after_a_change(before, after):
    trace = Trace("small", NODES, before)
    books = Books(trace)
    return churn(Setup(trace, books, peers.best_fit(books), peers.Elsewhere()), 1, 0.1, after)


def test_only_pods_that_arrive_after_a_change_are_measured():
    small = TracePod(1, 1, 1, 1)
    assert _after_a_change((NOWHERE,), (small,)).total == 0
    assert _after_a_change((small,), (NOWHERE,)).total == pytest.approx(100)


class _Counting(peers.Elsewhere):
    """Counts the pods that come, and places none."""

    def __init__(self):
        self.came = Counter()

    def place(self, pod, _uid):
        self.came[pod] += 1


def test_the_load_stays_the_same_after_a_change_of_the_mix():
    trace, system = Trace("small", NODES, (HALF,)), _Counting()
    churn(Setup(trace, Books(trace), system, peers.Elsewhere()), 1, 0.97, (LARGE,))
    halves, large = (system.came[pod] * pod.size for pod in (HALF, LARGE))
    assert halves == pytest.approx(large, rel=0.1)


def test_the_mixes_before_and_after_a_change_differ_in_pods_of_several_gpus():
    trace = Trace("mixed", NODES, (NO_GPU, LARGE) + (WHOLE,) * 12 + (HALF,) * 8)
    before = variations.at_most_one_gpu(trace, 1).pods
    after = variations.half_for_several_gpus(trace, 1).pods
    assert set(before) == {WHOLE, HALF}
    assert set(after) == {WHOLE, HALF, LARGE}
    assert sum(pod.size for pod in after) == 2 * sum(pod.size for pod in after if pod.cards > 1)


def test_ten_nodes_have_one_of_the_largest_and_only_pods_that_they_can_host():
    small = [TraceNode(f"n{number}", 16_000, 65_536, 2, "A") for number in range(40)]
    trace = Trace("many", (*small, NODES[1]), (WHOLE, HALF, LARGE, NO_GPU, OF_B, NOWHERE))
    samples = [variations.on_few_nodes(trace, seed) for seed in (1, 2)]
    for found in samples:
        assert len({node.name for node in found.nodes}) == 10
        assert NODES[1] in found.nodes
        assert found.pods == (WHOLE, HALF, LARGE, OF_B)
    assert samples[0].nodes != samples[1].nodes
    assert samples[0] == variations.on_few_nodes(trace, 1)


def test_every_system_allocates_the_same_if_all_pods_are_equal():
    trace = variations.of_one_kind(Trace("small", NODES, (WHOLE, WHOLE, HALF, OF_B, OF_B)), 1)
    assert set(trace.pods) == {OF_B}

    def allocated(system):
        books = Books(trace)
        gpus = SYSTEMS[system](trace, books, 1)
        return inflation.fill(Setup(trace, books, gpus, peers.Elsewhere()), 1).at_130

    # Three pods of 300 units on each of the five cards of model B.
    assert {allocated(system) for system in SYSTEMS} == {50.0}
