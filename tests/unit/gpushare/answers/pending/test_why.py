"""What the sentence offers is true: the amount fits, and the end of the named pods makes room."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.answers.pending import ends, facts
from gpushare.answers.pending.facts import Pending, without_names
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import why_pending
from gpushare.contract import ANNOTATION_CARDS
from gpushare.objects.model import Pod
from gpushare.placement.trial import look
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, node, pod
from tests.unit.gpushare.answers.clusters import asks, cluster_of, clusters, on, requests


def why(found, wanted: Pod) -> Pending:
    return run_all(why_pending(cluster_of(found), wanted))


def fits(found, wanted: Pod, without=()) -> bool:
    return bool(run_all(look(cluster_of(found, without), wanted, 1)).places)


@settings(max_examples=300, deadline=None)
@given(clusters(), requests)
def test_it_says_that_a_pod_fits_exactly_if_the_decision_places_it(found, wanted):
    assert (why(found, wanted).cause == facts.FITS) is fits(found, wanted)


@settings(max_examples=300, deadline=None)
@given(clusters(), requests)
def test_the_amount_that_it_offers_fits_and_one_unit_more_does_not(found, wanted):
    said = why(found, wanted)
    count = said.gpus
    cpu = int(wanted.containers[0].requests["cpu"])
    offered = said.fits_if.units // count if said.fits_if is not None else 0
    if offered:
        assert fits(found, asks(offered, count, cpu))
    if said.cause in {facts.ROOM, facts.CLOSED, facts.TOO_LARGE, facts.EXCLUDED}:
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
    if said.cause != facts.ROOM:
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
        patch.setattr(ends, "EXAMINED", most)
        said = why(found, wanted)
    if said.cause != facts.ROOM or said.ends_together:
        return
    names = [each.metadata.name for each in found[1]]
    alone = {name for name in names if fits(found, wanted, [name])}
    assert {each.name for each in said.ends} <= alone
    assert said.ends_count == len(alone) or (said.ends_more and said.ends_count < len(alone))


def test_all_pods_of_a_full_cluster_are_counted_and_one_that_is_being_deleted_is_named():
    number = ends.EXAMINED // 5 + 1
    nodes = [node(f"n{place}", 10) for place in range(number)]
    pods = [on(f"p{place}-{each}", 2, f"n{place}") for place in range(number) for each in range(5)]
    pods.append(annotated(pods.pop(), {}, deletion_timestamp="2026-01-01T00:00:00Z"))
    said = run_all(why_pending(ListedCluster(nodes, pods), asks(2, 1, 0)))
    assert (said.ends_count, said.ends_more) == (len(pods), False)
    assert said.ends[0].name == pods[-1].metadata.name


def test_a_pod_on_two_gpus_frees_what_it_has_on_both():
    both = {ANNOTATION_CARDS: "GPU-0,GPU-1"}
    running = [pod("a", 2, node="n", annotations=both), pod("b", 2, node="n", annotations=both)]
    cluster = ListedCluster([node("n", 3, 3)], running)
    said = run_all(why_pending(cluster, asks(2, 2, 0)))
    assert ([each.name for each in said.ends], said.ends_count) == (["a", "b"], 2)
    assert not said.ends_together


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
