"""The sentences of many pods: those of each, at a bounded cost."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.answers.pending import ends
from gpushare.answers.pending.sentences import MEASURED_COST, SEARCH_COST, Sentences
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import why_pending
from gpushare.placement.rooms import MOST_KINDS, KeptRooms
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, node, pod
from tests.unit.gpushare.answers.cases import CASES
from tests.unit.gpushare.answers.clusters import (
    CPU,
    POLICIES,
    asks,
    cluster_of,
    clusters,
    on,
    requests,
)


def test_the_sentences_of_many_pods_are_those_of_each() -> None:
    for case in CASES:
        if not case.reserves:
            cluster = ListedCluster(case.nodes, [*case.pods, case.asks])
            sentences = Sentences(cluster)
            for _ in range(2):
                assert run_all(sentences.of(case.asks, case.only)) == case.says
            assert sentences.written == 1


@settings(max_examples=100, deadline=None)
@given(clusters(), st.lists(requests, min_size=1, max_size=4), st.integers(0, 3))
def test_sentences_of_many_pods_follow_the_cluster(found, wanted, number):
    """As of each renewal they are those of each pod by itself."""
    cluster = cluster_of(found)
    sentences = Sentences(cluster)
    for _ in range(2):
        sentences.renew()
        for each in wanted:
            mine = run_all(sentences.of(each))
            assert mine == sentence(run_all(why_pending(cluster, each)))
        for each in found[1][: number + 1]:
            cluster.ledger.remove_share(each.uid)


def test_pods_that_differ_in_their_policies_get_the_places_that_they_would_get():
    nodes = [node(f"n{number}", 16, 16) for number in range(2)]
    cluster = ListedCluster(nodes, [on("held", 4, "n0")])
    sentences = Sentences(cluster)
    said = {name: run_all(sentences.of(asks(4, 1, 0, policy=name))) for name in POLICIES}
    assert "n0, GPU 0" in said["binpack"]
    assert "n1, GPU 0" in said["spread"]


def test_each_pod_names_its_own_scheduler():
    sentences = Sentences(ListedCluster([node("n", 16)], []))
    for name in ("one", "other"):
        each = pod("waits", 4)
        spec = msgspec.structs.replace(each.spec, scheduler_name=name)
        each = msgspec.structs.replace(each, spec=spec)
        assert f"no scheduler named {name} has looked at it yet" in run_all(sentences.of(each))


def test_pods_alike_cost_one_search():
    cluster = ListedCluster([node(f"n{number}", 16) for number in range(30)], [])
    sentences = Sentences(cluster)
    names = [annotated(asks(18, 1, 0), {}, name=f"w{number}") for number in range(50)]
    for each in names:
        run_all(sentences.of(each))
    assert sentences.written == 1
    steps = sum(1 for _ in sentences.of(asks(17, 1, 0)))
    assert steps < 10, "the rooms of the nodes were measured again"
    assert sentences.cost == MEASURED_COST + 2


def test_the_memory_and_the_work_of_many_kinds_of_pods_are_bounded():
    kept = KeptRooms()
    sentences = Sentences(ListedCluster([node("n", 16)], []), kept)
    for number in range(3 * MOST_KINDS):
        run_all(sentences.of(asks(18, 1, priority=number)))
    assert len(kept) == MOST_KINDS
    assert sentences.cost == 3 * MOST_KINDS * (MEASURED_COST + 1)


def test_who_shares_rooms_with_others_does_not_measure_them_again():
    cluster, kept = ListedCluster([node("n", 16)], []), KeptRooms()
    first, second = Sentences(cluster, kept), Sentences(cluster, kept)
    assert run_all(first.of(asks(18, 1))) == run_all(second.of(asks(18, 1)))
    assert (first.cost, second.cost) == (MEASURED_COST + 1, 1)


def test_a_search_for_several_pods_is_bounded_and_costs_more_than_a_sentence():
    nodes = [node(f"n{number}", 2) for number in range(3 * ends.SEARCHED)]
    pods = [on(f"{each.name}-{number}", 1, each.name) for each in nodes for number in range(2)]
    sentences = Sentences(ListedCluster(nodes, pods))
    wanted, hopeless = asks(2, 1, 0), asks(2, 1, CPU)  # no node has CPU
    assert "when 2 pods end" in run_all(sentences.of(wanted))
    assert sentences.cost == MEASURED_COST + SEARCH_COST + 1
    steps = sum(1 for _ in sentences.of(hopeless))
    assert steps < 2 * len(nodes), "every node was searched again"
    assert sentences.cost == MEASURED_COST + 2 * (SEARCH_COST + 1)
