"""What the sentence offers is true: the amount fits, and the end of the named pods makes room."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.answers import pending
from gpushare.answers.pending import Pending, why_pending, without_names
from gpushare.answers.pending_text import (
    MEASURED_COST,
    MOST_KINDS,
    SEARCH_COST,
    Sentences,
    sentence,
)
from gpushare.contract import (
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_NODE_POLICY,
    LABEL_CARD_COUNT,
)
from gpushare.ledger.ledger import Reserve
from gpushare.objects.model import Container, Node, Pod, Resources
from gpushare.objects.scheduling import Taint
from gpushare.placement.trial import look
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, node, pod

CPU = 4
POLICIES = ("binpack", "spread")


def asks(units: int, count: int, cpu: int = 1, priority: int = 0, policy: str = "") -> Pod:
    amounts = {"aliyun.com/gpu-mem": str(units * count), "cpu": str(cpu)}
    labels = {LABEL_CARD_COUNT: str(count)}
    container = Container("main", Resources(amounts, amounts))
    policies = {ANNOTATION_NODE_POLICY: policy, ANNOTATION_CARD_POLICY: policy} if policy else {}
    made = pod("asks", labels=labels, containers=[container], annotations=policies)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, priority=priority))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Pod], list[Reserve]]:
    nodes, pods, reserves = [], [], []
    for place in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 16), min_size=1, max_size=3))
        cards = st.integers(0, len(sizes) - 1)
        made = node(f"n{place}", *sizes, unhealthy=draw(st.lists(cards, max_size=1)))
        closed = ",".join(f"GPU-{card}" for card in draw(st.lists(cards, max_size=1)))
        made = annotated(made, {ANNOTATION_CORDONED_CARDS: closed} if closed else {})
        status = msgspec.structs.replace(
            made.status, allocatable={**made.allocatable, "cpu": str(CPU)}
        )
        taints = draw(st.sampled_from([None, None, (Taint("k", "NoSchedule"),)]))
        spec = msgspec.structs.replace(made.spec, taints=taints)
        nodes.append(msgspec.structs.replace(made, status=status, spec=spec))
        for number in range(draw(st.integers(0, 4))):
            on = sorted(draw(st.sets(cards, max_size=2)))
            units = draw(st.integers(1, 6)) * max(1, len(on))
            cpu = {"cpu": str(draw(st.integers(0, 2)))}
            amounts = {"aliyun.com/gpu-mem": str(units), **cpu}
            held = pod(
                f"p{place}-{number}",
                node=f"n{place}",
                containers=[Container("main", Resources(amounts, amounts))],
                annotations={ANNOTATION_CARDS: ",".join(f"GPU-{card}" for card in on)},
            )
            pods.append(held)
        if draw(st.booleans()):
            units = draw(st.integers(1, 6))
            reserves.append(Reserve("r", "x", "r", f"n{place}", (f"GPU-{draw(cards)}",), units, 0))
    return nodes, pods, reserves


requests = st.builds(
    asks,
    st.integers(1, 18),
    st.integers(1, 3),
    st.integers(0, CPU),
    st.sampled_from([0, 5]),
    st.sampled_from(["", *POLICIES]),
)


def on(name: str, units: int, where: str) -> Pod:
    return pod(name, units, node=where, annotations={ANNOTATION_CARDS: "GPU-0"})


def cluster_of(found, without=()) -> ListedCluster:
    nodes, pods, reserves = found
    cluster = ListedCluster(nodes, [each for each in pods if each.metadata.name not in without])
    for each in reserves:
        cluster.ledger.reserve(each)
    return cluster


def why(found, wanted: Pod) -> Pending:
    return run_all(why_pending(cluster_of(found), wanted))


def fits(found, wanted: Pod, without=()) -> bool:
    return bool(run_all(look(cluster_of(found, without), wanted, 1)).places)


@settings(max_examples=300, deadline=None)
@given(clusters(), requests)
def test_it_says_that_a_pod_fits_exactly_if_the_decision_places_it(found, wanted):
    assert (why(found, wanted).cause == pending.FITS) is fits(found, wanted)


@settings(max_examples=300, deadline=None)
@given(clusters(), requests)
def test_the_amount_that_it_offers_fits_and_one_unit_more_does_not(found, wanted):
    said = why(found, wanted)
    count = said.gpus
    cpu = int(wanted.containers[0].requests["cpu"])
    offered = said.fits_if.units // count if said.fits_if is not None else 0
    if offered:
        assert fits(found, asks(offered, count, cpu))
    if said.cause in {pending.ROOM, pending.CLOSED, pending.TOO_LARGE, pending.EXCLUDED}:
        assert not fits(found, asks(offered + 1, count, cpu))


@settings(max_examples=500, deadline=None)
@given(clusters(), requests)
def test_the_end_of_the_pods_that_it_names_makes_room(found, wanted):
    said = why(found, wanted)
    names = [each.name for each in said.ends]
    for ended in [names] if said.ends_together else [[name] for name in names]:
        assert fits(found, wanted, ended)
        assert not any(fits(found, wanted, [e for e in ended if e != left]) for left in ended)


@settings(max_examples=300, deadline=None)
@given(clusters(), requests)
def test_it_names_one_pod_if_the_end_of_one_makes_room_and_no_more_than_needed(found, wanted):
    said = why(found, wanted)
    if said.cause != pending.ROOM:
        return
    pods = [each.metadata.name for each in found[1]]
    alone = [name for name in pods if fits(found, wanted, [name])]
    assert bool(alone) is (said.ends_count > 0 and not said.ends_together)
    if alone:
        assert said.ends_count == len(alone)
        assert {each.name for each in said.ends} <= set(alone)
    elif said.gpus == 1 and said.ends_count > 2:
        assert not any(fits(found, wanted, pair) for pair in combinations(pods, 2))


@settings(max_examples=300, deadline=None)
@given(clusters(), requests, st.integers(0, 3))
def test_it_says_when_it_has_not_examined_all_pods(found, wanted, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending, "EXAMINED", most)
        said = why(found, wanted)
    if said.cause != pending.ROOM or said.ends_together:
        return
    names = [each.metadata.name for each in found[1]]
    alone = {name for name in names if fits(found, wanted, [name])}
    assert {each.name for each in said.ends} <= alone
    assert said.ends_count == len(alone) or (said.ends_more and said.ends_count < len(alone))


def test_all_pods_of_a_full_cluster_are_counted_and_one_that_is_being_deleted_is_named():
    number = pending.EXAMINED // 5 + 1
    nodes = [node(f"n{place}", 10) for place in range(number)]
    pods = [on(f"p{place}-{each}", 2, f"n{place}") for place in range(number) for each in range(5)]
    pods.append(annotated(pods.pop(), {}, deletion_timestamp="2026-01-01T00:00:00Z"))
    said = run_all(why_pending(ListedCluster(nodes, pods), asks(2, 1, 0)))
    assert (said.ends_count, said.ends_more) == (len(pods), False)
    assert said.ends[0].name == pods[-1].metadata.name


@settings(max_examples=200, deadline=None)
@given(clusters(), requests)
def test_it_never_claims_more_free_memory_than_there_is(found, wanted):
    said, cluster = why(found, wanted), cluster_of(found)
    if said.most_free is not None and said.most_free.mib:
        cards = cluster.ledger.account(said.most_free.node).open
        free = {each.card.index: each.free for each in cards}
        assert said.most_free.mib == min(free[index] for index in said.most_free.cards)
        assert said.fits_if is None or said.fits_if.mib <= said.most_free.mib


@settings(max_examples=200, deadline=None)
@given(clusters(), requests)
def test_no_name_of_another_namespace_is_left_in_it(found, wanted):
    text = sentence(without_names(why(found, wanted), "other"))
    assert "default/" not in text
    assert not any(f"{each.metadata.name} " in text for each in found[1])


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
    cluster = ListedCluster([node("n", 16)], [])
    sentences = Sentences(cluster)
    for number in range(3 * MOST_KINDS):
        run_all(sentences.of(asks(18, 1, priority=number)))
    assert len(sentences._rooms) == MOST_KINDS
    assert sentences.cost == 3 * MOST_KINDS * (MEASURED_COST + 1)


def test_a_search_for_several_pods_is_bounded_and_costs_more_than_a_sentence():
    nodes = [node(f"n{number}", 2) for number in range(3 * pending.SEARCHED)]
    pods = [on(f"{each.name}-{number}", 1, each.name) for each in nodes for number in range(2)]
    sentences = Sentences(ListedCluster(nodes, pods))
    wanted, hopeless = asks(2, 1, 0), asks(2, 1, CPU)  # no node has CPU
    assert "when 2 pods end" in run_all(sentences.of(wanted))
    assert sentences.cost == MEASURED_COST + SEARCH_COST + 1
    steps = sum(1 for _ in sentences.of(hopeless))
    assert steps < 2 * len(nodes), "every node was searched again"
    assert sentences.cost == MEASURED_COST + 2 * (SEARCH_COST + 1)
