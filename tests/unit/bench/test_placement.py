"""The placement benchmark checks every placement, and all systems get the same pods."""

import pytest

from bench.placement import inflation, peers
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
        (TracePod(17_000, 0, 1, 1), Place(0, (0,))),  # more CPU than there is
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
