"""Placement annotations of a pod: an invalid one is rejected, never ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations import inventory, pod_annotations
from gpushare.cards import placement_policy
from gpushare.cards.model import ContainerRequest, Request
from gpushare.cards.placement_policy import CardPolicy, NodePolicy, PlacementPolicy
from gpushare.contract import (
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_ISOLATION,
    ANNOTATION_NODE_POLICY,
)
from gpushare.errors import RecordError, RequestError
from tests.builders import node, pod, stock

ONLY, NOT = ANNOTATION_CARDS_ONLY, ANNOTATION_CARDS_NOT


def test_a_pod_without_annotations_has_the_default_policy():
    asked = pod_annotations.request_of(pod(annotations={"other": "x"}))
    assert asked.policy is placement_policy.DEFAULT_POLICY


def test_policies_are_read():
    policies = {ANNOTATION_NODE_POLICY: "spread", ANNOTATION_CARD_POLICY: "binpack"}
    found = placement_policy.read(policies)
    assert (found.node_policy, found.card_policy) == (NodePolicy.SPREAD, CardPolicy.BINPACK)


@pytest.mark.parametrize("key", [ANNOTATION_NODE_POLICY, ANNOTATION_CARD_POLICY])
@pytest.mark.parametrize("value", ["", "Binpack", "binpack ", "random", "binpack,spread"])
def test_an_unknown_policy_is_rejected_with_the_known_ones(key, value):
    with pytest.raises(RequestError, match=f"{key}.*write binpack or spread"):
        pod_annotations.request_of(pod(annotations={key: value}))


@pytest.mark.parametrize("value", ["x" * 1000, "\U0010fffe" * 1000, "\n" * 1000, "満" * 1000])
def test_the_error_about_a_policy_is_short(value):
    with pytest.raises(RequestError) as refused:
        placement_policy.read({ANNOTATION_NODE_POLICY: value})
    assert len(str(refused.value).encode()) < 200
    assert str(refused.value).endswith("write binpack or spread or shape or prices")


@pytest.mark.parametrize(("value", "is_needed"), [("required", True), ("preferred", False)])
def test_isolation_is_read(value, is_needed):
    found = placement_policy.read({ANNOTATION_ISOLATION: value})
    assert found.needs_limit == found.names_cards == is_needed


def test_an_unknown_isolation_is_rejected_with_the_known_ones():
    with pytest.raises(RequestError, match=f"{ANNOTATION_ISOLATION}.*write required or preferred"):
        pod_annotations.request_of(pod(annotations={ANNOTATION_ISOLATION: "hard"}))


def test_shape_is_no_card_policy():
    assert placement_policy.read({ANNOTATION_NODE_POLICY: "shape"}).node_policy is NodePolicy.SHAPE
    with pytest.raises(RequestError, match=ANNOTATION_CARD_POLICY):
        placement_policy.read({ANNOTATION_CARD_POLICY: "shape"})


@pytest.mark.parametrize(
    ("text", "named"),
    [("GPU-0", {"GPU-0"}), ("GPU-0,, GPU-1,", {"GPU-0", "GPU-1"}), ("", set()), (" , ,", set())],
)
def test_blank_entries_of_a_list_are_ignored(text, named):
    assert placement_policy.parse_names(text) == named
    assert placement_policy.read({ONLY: text}).only == named
    assert placement_policy.read({ANNOTATION_CARD_MODELS: text}).models == named


@given(st.dictionaries(st.sampled_from([ONLY, NOT, ANNOTATION_CARD_MODELS]), st.text()))
def test_any_list_can_be_read_and_an_empty_one_allows_all_cards(annotations):
    found = placement_policy.read(annotations)
    if not any(placement_policy.parse_names(text) for text in annotations.values()):
        assert found == PlacementPolicy()
        assert not found.names_cards


def test_a_policy_is_not_part_of_a_bound_pods_share():
    """A policy that becomes invalid after the bind does not make the pod's amount unreadable."""
    spoilt = pod(units=8, node="n", annotations={ANNOTATION_CARD_POLICY: "rubbish"})
    assert pod_annotations.amounts_of(spoilt) == Request((ContainerRequest("main", 8),))
    assert pod_annotations.share_of(spoilt, stock(16)).units == 8


def cordoned(text, *units):
    found = node("n", *units)
    found.annotations[ANNOTATION_CORDONED_CARDS] = text
    return inventory.with_cordons(inventory.of_node(found, 1), found)


@pytest.mark.parametrize(
    ("text", "marked"), [("", []), ("GPU-1", [1]), (" GPU-0 ,GPU-1,,", [0, 1])]
)
def test_cards_in_the_annotation_are_cordoned(text, marked):
    found = cordoned(text, 16, 16)
    assert [card.index for card in found.cards if card.is_cordoned] == marked
    assert [card.index for card in found.cards if not card.takes_new] == marked


def test_a_cordon_of_an_unknown_card_is_an_error():
    with pytest.raises(RecordError, match="names 'GPU-7', which is no GPU"):
        cordoned("GPU-0,GPU-7", 16, 16)
