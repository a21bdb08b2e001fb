"""From lists the command line gives the answers that an extender gives, by the same code."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.watch.cluster import ClusterWatch
from gpushare.answers import explain, inspect, what_if
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_CORDONED_CARDS
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import GIB, ListedCluster, unit_of
from tests.builders import annotated, legacy_node, node, pod, run_to_end

NAMES = ("a", "b", "c")


@st.composite
def clusters(draw):
    sizes = st.lists(st.sampled_from([4, 8, 16]), min_size=1, max_size=3)
    nodes = [node(name, *draw(sizes), unhealthy=draw(st.sets(st.integers(0, 2)))) for name in NAMES]
    value = draw(st.sampled_from(["", "GPU-0", "GPU-9"]))
    nodes[0] = annotated(nodes[0], {ANNOTATION_CORDONED_CARDS: value})
    held = st.tuples(st.sampled_from(NAMES), st.integers(1, 16), st.integers(0, 2))
    pods = [
        pod(f"p{place}", units, node=name, annotations={ANNOTATION_CARDS: f"GPU-{card}"})
        for place, (name, units, card) in enumerate(draw(st.lists(held, max_size=6)))
    ]
    return nodes, [*pods, pod("asks", draw(st.integers(1, 20)))]


@given(clusters())
def test_lists_say_of_every_card_what_the_extender_says(lists):
    nodes, pods = lists
    seen = ListedCluster(nodes, pods)
    cluster = ClusterWatch(1, lambda *_: None, SystemClock())
    run_to_end(cluster.replacing_nodes(nodes))
    run_to_end(cluster.replacing_pods(pods))
    run_to_end(cluster.scheduling.renewing_scarcity())
    views = [
        inspect.view_node(known.ledger, name, known.unreadable.get(name, ""))
        for known in (seen, cluster.state)
        for name in NAMES
    ]
    assert views[: len(NAMES)] == views[len(NAMES) :]
    asks = pods[-1]
    mine = run_all(explain.explain(seen, asks, None, now=0.0))
    assert mine == run_all(explain.explain(cluster.state, asks, None, now=0.0))
    question = what_if.Question(asks, 3)
    extras = msgspec.convert({"pod": {}}, what_if.Extras)
    told = [run_all(what_if.answer(known, question, extras)) for known in (seen, cluster.state)]
    assert told[0] == told[1]


def test_the_unit_is_what_most_nodes_count_in():
    assert unit_of([node("a", 16), node("b", 16), node("c", 16, unit_mib=256)]) == 1
    assert unit_of([legacy_node("old", "30", "2")]) == GIB
