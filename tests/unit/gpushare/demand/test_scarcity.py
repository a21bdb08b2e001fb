"""A pod costs others what becomes unusable by it: CPU, memory, hosts of large pods, models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import ContainerRequest, Request
from gpushare.cards.placement_policy import PlacementPolicy
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import (
    NOT_KNOWN,
    Capacity,
    Left,
    Scarcity,
    cost,
    of_shape,
    scarcity_of,
)
from gpushare.process.time_slices import run_all

CARD, CORE, GIB = 16, 1000, 2**30 * 1000
SHAPES = frozenset({(4, 32 * CORE)})
CAPACITY = Capacity({"A": 64, "B": 64}, SHAPES, CARD, 64, 32 * CORE, 64 * GIB)


def request(units, cpu=0, cards=1, models=()):
    policy = PlacementPolicy(models=frozenset(models))
    return Request((ContainerRequest("main", units * cards),), cards, policy, cpu=cpu)


def learned(*requests):
    mix = Mix()
    for each in requests:
        mix.add(each)
    return scarcity_of(CAPACITY.hosted(mix), CAPACITY)


def of_node(cpu, memory=0):
    return Left(cpu, memory, 32 * CORE, 64 * GIB)


def stranded(scarcity, free, cpu, memory):
    return scarcity.stranded(free, cpu, memory, of_node(cpu, memory))


def cost_on(scarcity, asked, **node):
    there = {"free": 64, "empty": 4, "cpu": 32 * CORE, "model": "A"} | node
    left = of_node(there.pop("cpu"))
    taken = asked.card_count if asked.units_per_card == CARD else 0
    return cost(scarcity, asked, card=CARD, taken=taken, left=left, **there)


def hosts(scarcity, nodes):
    return run_all(scarcity.with_hosts(nodes))


def test_a_pod_with_much_cpu_prefers_the_node_that_has_more_than_its_cards_need():
    scarcity = learned(request(16, 8 * CORE))  # a card goes with 8 cores
    greedy, modest = request(16, 16 * CORE), request(16, 1 * CORE)
    rich = {"cpu": 31 * CORE, "free": 32, "empty": 0}
    exact = {"cpu": 16 * CORE, "free": 32, "empty": 0}
    assert cost_on(scarcity, greedy, **rich) < cost_on(scarcity, greedy, **exact)
    assert cost_on(scarcity, modest, **exact) < cost_on(scarcity, modest, **rich)


def test_a_node_whose_cards_lack_cpu_already_is_preferred():
    scarcity = learned(request(16, 8 * CORE))
    lacking, served = {"cpu": 8 * CORE, "empty": 0}, {"cpu": 32 * CORE, "empty": 0}
    asked = request(16, 4 * CORE)
    assert cost_on(scarcity, asked, **lacking) < cost_on(scarcity, asked, **served)


def test_memory_counts_as_cpu_does():
    mix = Mix()
    mix.add(Request((ContainerRequest("main", 16),), cpu=CORE, memory=8 * GIB))
    scarcity = scarcity_of(CAPACITY.hosted(mix), CAPACITY)
    assert stranded(scarcity, 16, 10 * CORE, 4 * GIB) == pytest.approx(8)
    assert stranded(scarcity, 16, 10 * CORE, 8 * GIB) == 0


def test_the_last_node_for_a_large_pod_is_kept_free():
    large = request(16, 4 * CORE, cards=4)
    scarcity = hosts(learned(large, request(16, CORE)), [(4, 32 * CORE)])
    many = hosts(learned(large, request(16, CORE)), [(4, 32 * CORE)] * 1000)
    small = request(16, CORE)
    whole, begun = {"empty": 4}, {"empty": 3, "free": 48}
    for found in (scarcity, many):
        assert cost_on(found, small, **begun) < cost_on(found, small, **whole)
    lost = cost_on(scarcity, small, **whole) - cost_on(many, small, **whole)
    assert lost > 1  # a whole card's worth


def test_a_whole_node_is_worth_something_before_any_pod_requested_one():
    scarcity = hosts(learned(request(4, CORE)), [(4, 32 * CORE)])
    assert scarcity.host(4, 32 * CORE) > 0
    assert scarcity.host(4, CORE) == scarcity.host(3, 32 * CORE) == 0


def test_pods_without_a_constraint_avoid_the_model_that_others_must_have():
    scarcity = learned(request(16, CORE, models=["B"]), request(16, CORE))
    asked = request(16, CORE)
    assert cost_on(scarcity, asked, model="A") < cost_on(scarcity, asked, model="B")


def test_a_model_that_the_cluster_lacks_changes_nothing():
    assert learned(request(16, models=["none-such"])).models == {}


def test_nothing_is_stranded_before_anything_is_known():
    assert stranded(NOT_KNOWN, 64, 0, 0) == NOT_KNOWN.host(4, 32 * CORE) == 0
    assert scarcity_of(CAPACITY.hosted(Mix()), CAPACITY) == Scarcity(capacity=CAPACITY)


AMOUNTS = st.integers(0, 10**15)


@given(
    st.lists(st.tuples(st.integers(1, 64), AMOUNTS, st.integers(1, 8)), max_size=6),
    st.lists(st.tuples(st.integers(0, 8), st.integers(-(10**9), 10**9)), max_size=6),
    st.integers(0, 8),
    st.integers(-(10**15), 10**15),
    st.integers(-(10**15), 10**15),
)
def test_hosts_are_worth_more_with_more_of_anything(pods, nodes, empty, cpu, memory):
    scarcity = hosts(learned(*(request(*each) for each in pods)), nodes)
    worth = scarcity.host(empty, cpu)
    assert 0 <= worth <= scarcity.host(empty + 1, cpu)
    assert worth <= scarcity.host(empty, cpu + 1)
    free = 64
    assert stranded(scarcity, free, cpu, memory) >= 0
    more = stranded(scarcity, free, cpu + CORE, memory)
    assert more <= stranded(scarcity, free, cpu, memory)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 32 * CORE)), max_size=5))
def test_the_values_of_hosts_are_the_same_object_while_nothing_changes(nodes):
    once = hosts(learned(request(16, CORE, cards=4)), nodes)
    assert hosts(once, nodes) is once


def test_a_pod_that_no_node_can_host_says_nothing_about_the_others():
    usual = [request(16, 8 * CORE)] * 3
    huge = request(16, 2**63 * 1000), request(10**9), request(16, CORE, cards=64)
    assert learned(*usual, *huge) == learned(*usual)


def test_parts_of_several_cards_need_no_node_that_is_entirely_free():
    parts, whole = learned(request(2, CORE, cards=2)), learned(request(16, CORE, cards=2))
    assert [tier.cards for tier in parts.tiers] == [4]  # any node may be needed as a whole
    assert sorted(tier.cards for tier in whole.tiers) == [2, 4]


def test_alike_nodes_have_one_shape():
    assert {of_shape(cpu) for cpu in range(96 * CORE, 100 * CORE, 7)} == {96 * CORE}
    assert [of_shape(cpu) for cpu in (0, 249, 250, 128 * CORE)] == [0, 0, 250, 128 * CORE]


def test_a_node_of_which_cpu_is_not_known_comes_after_an_equal_one():
    scarcity, asked = learned(request(16, CORE)), request(16, CORE)
    node = {"free": 64, "empty": 4, "taken": 1, "card": CARD, "model": "A"}
    unknown = cost(scarcity, asked, left=None, **node)
    assert cost(scarcity, asked, left=of_node(32 * CORE, 64 * GIB), **node) < unknown
