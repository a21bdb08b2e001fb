"""Nodes are ranked by the cards that the pod would get, in an order without ties."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import ContainerRequest, Request, Share
from gpushare.cards.placement_policy import CardPolicy, NodePolicy, PlacementPolicy
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import NOT_KNOWN, Left
from gpushare.ledger.ledger import Ledger
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.rank import Policies, function_of, rank
from gpushare.placement.scarcity_learner import OpenNode, ScarcityLearner
from tests.builders import run_to_end, stock

SPREAD = PlacementPolicy(node_policy=NodePolicy.SPREAD)


SHAPE = ((0, 0), (70, 10), (100, 10))
PRICES = PlacementPolicy(node_policy=NodePolicy.PRICES)


def free_cards(sizes, used, taken=None):
    ledger = Ledger()
    ledger.set_inventory("n", stock(*sizes))
    for index, units in enumerate(used):
        if units:
            ledger.put_share(Share(f"u{index}", "", "", "n", units, (f"GPU-{index}",)))
    return FreeCards(ledger.account("n"), taken or {}, Left(8000, 8000, 8000, 8000))


def request(units, cards=1, policy=None):
    return Request((ContainerRequest("main", units * cards),), cards, policy or PlacementPolicy())


def learned(nodes, requests):
    """Return what is scarce after these requests, on these nodes."""
    mix, learner = Mix(), ScarcityLearner()
    for each in requests:
        mix.add(each)
    run_to_end(
        learner.renewing(
            mix, [OpenNode(str(i), each, each.left, 0, (0, 0)) for i, each in enumerate(nodes)]
        )
    )
    return learner.now


def order(nodes, asked, policies=None, scarcity=NOT_KNOWN):
    ranks = [
        rank(each, asked, policies or Policies(), name, scarcity=scarcity)
        for name, each in nodes.items()
    ]
    return [found[3] for found in sorted(each for each in ranks if each is not None)]


def test_binpack_prefers_the_node_with_the_fullest_card_not_the_fullest_node():
    nodes = {
        "half-each": free_cards([16, 16], [8, 8]),  # 16 used in all
        "one-almost-full": free_cards([16, 16], [12, 0]),  # 12 used, and 4 fill a card
        "empty": free_cards([16, 16], [0, 0]),
    }
    assert order(nodes, request(4)) == ["one-almost-full", "half-each", "empty"]
    assert order(nodes, request(4, policy=SPREAD)) == ["empty", "half-each", "one-almost-full"]


def test_nodes_with_equal_cards_are_ranked_by_the_whole_node():
    nodes = {"a": free_cards([16, 16], [8, 0]), "b": free_cards([16, 16], [8, 12])}
    assert order(nodes, request(8)) == ["b", "a"]


def test_equal_nodes_have_distinct_ranks_in_a_stable_order():
    nodes = {name: free_cards([16], [0]) for name in ("n3", "n1", "n2")}
    assert order(nodes, request(4)) == ["n1", "n2", "n3"]


def test_cards_of_different_size_are_compared_by_utilization():
    nodes = {"small": free_cards([16], [0]), "large": free_cards([80], [40])}
    assert order(nodes, request(8)) == ["large", "small"]
    assert order(nodes, request(12)) == ["small", "large"]


@pytest.mark.parametrize(
    ("node", "card", "best"),
    [
        ("binpack", "binpack", "a"),  # fills a card
        ("binpack", "spread", "b"),  # 50 percent of a card, not 25
        ("spread", "binpack", "b"),  # 50 percent, not 100
        ("spread", "spread", "a"),
    ],
)
def test_node_and_card_policy_are_independent(node, card, best):
    nodes = {"a": free_cards([16, 16], [12, 0]), "b": free_cards([16, 16], [4, 4])}
    policies = Policies(NodePolicy(node), CardPolicy(card))
    assert order(nodes, request(4), policies)[0] == best
    policy = PlacementPolicy(NodePolicy(node), CardPolicy(card))
    assert order(nodes, request(4, policy=policy))[0] == best


def test_expected_binds_count_as_used():
    nodes = {"a": free_cards([16], [8]), "b": free_cards([16], [4])}
    assert order(nodes, request(4)) == ["a", "b"]
    assert rank(free_cards([16], [8], {"GPU-0": 8}), request(4), Policies(), "a") is None


@pytest.mark.parametrize(
    ("shape", "points"),
    [
        (((0, 0), (100, 10)), {0: 0, 50: 5, 100: 10}),
        (((0, 10), (100, 0)), {0: 10, 25: 7.5, 100: 0}),
        (((40, 10), (60, 0)), {0: 10, 40: 10, 45: 7.5, 60: 0, 100: 0}),
        (((20, 0), (60, 10), (80, 2)), {0: 0, 20: 0, 40: 5, 60: 10, 70: 6, 80: 2, 100: 2}),
        (((50, 7),), {0: 7, 50: 7, 100: 7}),
    ],
)
def test_a_shape_is_linear_between_its_points_and_constant_outside(shape, points):
    score = function_of(shape)
    assert {at: score(at) for at in points} == points


def test_a_shape_decides_which_utilization_is_best():
    """The best utilization is 50 percent."""
    policies = Policies(NodePolicy.SHAPE, shape=((0, 0), (50, 10), (100, 0)))
    nodes = {name: free_cards([16], [used]) for name, used in (("a", 0), ("b", 4), ("c", 12))}
    assert order(nodes, request(4), policies) == ["b", "a", "c"]


def test_prices_leave_a_gap_to_the_pods_that_fill_it():
    """Most pods request 7 or 3 of 10; binpack would make the gap of 7 too small for the former."""
    nodes = {"gap": free_cards([10], [3]), "empty": free_cards([10], [0])}
    scarcity = learned(nodes.values(), [request(7), request(7), request(3)])
    assert order(nodes, request(3), scarcity=scarcity) == ["gap", "empty"]
    assert order(nodes, request(3, policy=PRICES), scarcity=scarcity) == ["empty", "gap"]
    assert order(nodes, request(7, policy=PRICES), scarcity=scarcity) == ["gap", "empty"]


def test_prices_are_as_binpack_before_anything_is_known():
    nodes = {"a": free_cards([16, 16], [8, 8]), "b": free_cards([16, 16], [12, 0])}
    nothing = learned(nodes.values(), [])
    for scarcity in (NOT_KNOWN, nothing):
        assert order(nodes, request(4, policy=PRICES), scarcity=scarcity) == ["b", "a"]
    assert order(nodes, request(4)) == ["b", "a"]


def test_prices_count_what_is_wasted_of_all_cards_of_a_pod():
    nodes = {"one": free_cards([10, 10], [4, 0]), "both": free_cards([10, 10], [4, 4])}
    scarcity = learned(nodes.values(), [request(6), request(4)])
    asked = request(3, cards=2, policy=PRICES)
    assert order(nodes, asked, scarcity=scarcity) == ["one", "both"]


def test_with_prices_a_node_without_cpu_for_its_cards_comes_first():
    rich, poor = free_cards([16, 16], [0, 0]), free_cards([16, 16], [0, 0])
    poor.left = Left(1000, 8000, 8000, 8000)
    asked = Request((ContainerRequest("main", 16),), cpu=4000)
    scarcity = learned([rich, poor], [asked])
    small = Request((ContainerRequest("main", 16),), policy=PRICES, cpu=500)
    assert order({"a": rich, "b": poor}, small, scarcity=scarcity) == ["b", "a"]


@given(
    st.lists(st.lists(st.integers(0, 16), min_size=1, max_size=4), min_size=1, max_size=6),
    st.integers(1, 16),
    st.integers(1, 3),
    st.builds(Policies, st.sampled_from(NodePolicy), st.sampled_from(CardPolicy), st.just(SHAPE)),
    st.booleans(),
)
def test_every_node_that_fits_has_a_unique_rank(nodes, units, cards, policies, is_known):
    asked = request(units, cards)
    there = [free_cards([16] * len(used), used) for used in nodes]
    scarcity = learned(there, [asked, request(5), request(16, 2)]) if is_known else NOT_KNOWN
    ranks = [
        rank(each, asked, policies, f"n{i}", scarcity=scarcity) for i, each in enumerate(there)
    ]
    fit = [sum(16 - each >= units for each in used) >= cards for used in nodes]
    assert [found is not None for found in ranks] == fit
    found = [each for each in ranks if each is not None]
    assert len(set(found)) == len(found)
    assert all(-10 <= each[1] <= 0 for each in found)  # kube-scheduler gets it as a score


@given(
    st.lists(st.integers(0, 16), min_size=1, max_size=5),
    st.integers(1, 16),
    st.integers(1, 3),
    st.sampled_from(NodePolicy),
    st.booleans(),
)
def test_the_fast_path_ranks_by_the_selected_cards(used, units, cards, node, is_known):
    every = frozenset(f"GPU-{i}" for i in range(len(used)))
    found, policies = free_cards([16] * len(used), used), Policies(node)
    short_way, long_way = (
        request(units, cards, PlacementPolicy(only=only)) for only in (frozenset(), every)
    )
    scarcity = learned([found], [short_way, request(5)]) if is_known else NOT_KNOWN
    both = (rank(found, each, policies, "n", scarcity=scarcity) for each in (short_way, long_way))
    assert next(both) == next(both)


def half_used(left, of):
    """Return a node with four GPUs of which 8 units are free, and with so much free CPU."""
    found = free_cards([16] * 4, [8] * 4)
    found.left = Left(left, of, of, of)
    return found


@pytest.mark.parametrize("policy", [NodePolicy.SPREAD, NodePolicy.SHAPE])
def test_spread_and_shapes_are_as_usual_where_nodes_are_filled_already(policy):
    asked = Request((ContainerRequest("main", 16),), cpu=1000)
    nodes = {"a-used": free_cards([16, 16], [16, 0]), "empty": free_cards([16, 16], [0, 0])}
    for node in nodes.values():
        node.left = Left(8000, 8000, 80_000, 80_000)
    scarcity = replace(learned(nodes.values(), [asked] * 10), level=0.5)
    policies = Policies(policy, shape=SHAPE)
    assert order(nodes, asked, policies, scarcity) == order(nodes, asked, policies)


@pytest.mark.parametrize("policy", NodePolicy)
def test_every_policy_first_takes_what_pods_without_gpu_memory_would_strand(policy):
    asked = Request((ContainerRequest("main", 8),), cpu=10_000)
    # Both have CPU for their free units. Pods without GPU memory will take most of it of one.
    nodes = {"at-risk": half_used(80_000, 80_000), "a-safe": half_used(40_000, 160_000)}
    scarcity = learned(nodes.values(), [asked] * 10)
    policies = Policies(policy, shape=SHAPE)
    assert order(nodes, asked, policies, scarcity) == ["a-safe", "at-risk"]
    assert order(nodes, asked, policies, replace(scarcity, level=0.25)) == ["at-risk", "a-safe"]
