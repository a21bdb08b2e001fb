"""kube-scheduler's rules on nodes, as the Kubernetes documentation states them."""

import pytest
from msgspec.structs import replace

from gpushare.objects.model import Node, NodeSpec, ObjectMeta
from gpushare.objects.scheduling import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from gpushare.placement import node_constraints
from tests.builders import pod

LABELS = {"zone": "a", "gen": "7", "empty": ""}


def node(*taints, unschedulable=None, **labels):
    return Node(
        ObjectMeta(name="n", labels=LABELS | labels), spec=NodeSpec(unschedulable, taints or None)
    )


def with_spec(**fields):
    made = pod("p")
    return replace(made, spec=replace(made.spec, **fields))


def with_affinity(*terms):
    required = NodeSelector(terms)
    return with_spec(affinity=Affinity(NodeAffinity(required)))


@pytest.mark.parametrize(
    ("key", "operator", "values", "met"),
    [
        ("zone", "In", ("a", "b"), True),
        ("zone", "In", ("b",), False),
        ("none", "In", ("a",), False),
        ("empty", "In", ("",), True),
        ("zone", "NotIn", ("b",), True),
        ("zone", "NotIn", ("a",), False),
        ("none", "NotIn", ("a",), True),
        ("zone", "Exists", None, True),
        ("empty", "Exists", None, True),
        ("none", "Exists", None, False),
        ("none", "DoesNotExist", None, True),
        ("zone", "DoesNotExist", None, False),
        ("gen", "Gt", ("6",), True),
        ("gen", "Gt", ("7",), False),
        ("gen", "Lt", ("8",), True),
        ("gen", "Lt", ("7",), False),
        ("gen", "Gt", ("-1",), True),
        ("none", "Gt", ("1",), False),
        ("zone", "Gt", ("1",), False),
        ("gen", "Gt", ("x",), False),
        ("gen", "Gt", ("1", "2"), False),
        ("gen", "Gt", None, False),
        ("gen", "Gt", ("9" * 30,), False),
    ],
)
def test_each_operator_behaves_as_documented(key, operator, values, met):
    assert node_constraints.is_met(LABELS, Requirement(key, operator, values)) is met
    chosen = with_affinity(NodeSelectorTerm((Requirement(key, operator, values),)))
    assert (node_constraints.why_not(chosen, node()) == []) is met


def test_one_term_must_match_with_all_its_requirements():
    yes, no = Requirement("zone", "In", ("a",)), Requirement("zone", "In", ("b",))
    assert node_constraints.why_not(with_affinity(NodeSelectorTerm((yes, no))), node()) != []
    terms = NodeSelectorTerm((no,)), NodeSelectorTerm((yes,))
    assert node_constraints.why_not(with_affinity(*terms), node()) == []


@pytest.mark.parametrize("terms", [(), (NodeSelectorTerm(),), (NodeSelectorTerm((), ()),)])
def test_a_term_that_requires_nothing_matches_no_node(terms):
    found = node_constraints.why_not(with_affinity(*terms), node())
    assert found == ["node does not match the required node affinity"]


@pytest.mark.parametrize(
    ("key", "operator", "values", "met"),
    [
        ("metadata.name", "In", ("n",), True),
        ("metadata.name", "In", ("m",), False),
        ("metadata.name", "NotIn", ("m",), True),
        ("metadata.name", "NotIn", ("n",), False),
    ],
)
def test_a_field_is_matched(key, operator, values, met):
    chosen = with_affinity(NodeSelectorTerm(None, (Requirement(key, operator, values),)))
    assert (node_constraints.why_not(chosen, node()) == []) is met


@pytest.mark.parametrize(
    ("selector", "fits"),
    [({"zone": "a"}, True), ({"zone": "b"}, False), ({"none": ""}, False), ({}, True)],
)
def test_every_label_of_the_node_selector_must_be_there(selector, fits):
    assert (node_constraints.why_not(with_spec(node_selector=selector), node()) == []) is fits


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), True),
        (Toleration("k", None, "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("k", "Equal"), False),
        (Toleration("k", "Exists"), True),
        (Toleration("k", "Exists", None, "NoExecute"), False),
        (Toleration("x", "Exists"), False),
        (Toleration(None, "Exists"), True),
        (Toleration("", "Exists", "", ""), True),
    ],
)
def test_a_taint_is_tolerated_by_key_operator_value_and_effect(toleration, tolerated):
    taint = Taint("k", "NoSchedule", "v")
    assert node_constraints.is_tolerated(taint, [toleration]) is tolerated
    found = node_constraints.why_not(with_spec(tolerations=(toleration,)), node(taint))
    assert found == ([] if tolerated else ["taint k=v:NoSchedule is not tolerated"])


@pytest.mark.parametrize(
    "unknown",
    [
        with_affinity(NodeSelectorTerm((Requirement("zone", "Like", ("b*",)),))),
        with_affinity(NodeSelectorTerm(None, (Requirement("spec.role", "In", ("db",)),))),
        with_affinity(NodeSelectorTerm(None, (Requirement("metadata.name", "Exists"),))),
        with_spec(tolerations=(Toleration("k", "Gt", "0"),)),
    ],
)
def test_an_operator_or_field_that_is_not_known_is_left_to_kube_scheduler(unknown):
    taints = [Taint("k", "NoSchedule", "v")] if unknown.spec.tolerations else []
    assert node_constraints.why_not(unknown, node(*taints)) == []
    assert not unknown.is_plain


@pytest.mark.parametrize(
    "unknown",
    [Toleration("x", "Gt", "0"), Toleration("k", "Gt", "0", "NoExecute")],
)
def test_a_toleration_of_an_unknown_operator_is_for_its_taint_only(unknown):
    assert not node_constraints.is_tolerated(Taint("k", "NoSchedule", "v"), [unknown])


def test_a_taint_without_a_value_is_equal_to_none():
    assert node_constraints.is_tolerated(Taint("k", "NoExecute"), [Toleration("k", "Equal", "")])


def test_prefer_no_schedule_rejects_no_pod():
    assert node_constraints.why_not(pod("p"), node(Taint("k", "PreferNoSchedule"))) == []
    repelled = node_constraints.why_not(
        pod("p"), node(Taint("k", "NoExecute"), Taint("l", "NoSchedule"))
    )
    assert len(repelled) == 2


def test_an_unschedulable_node_takes_pods_that_tolerate_it():
    closed = node(node_constraints.UNSCHEDULABLE, unschedulable=True)
    assert node_constraints.why_not(pod("p"), closed) == ["node is unschedulable"]
    tolerant = with_spec(tolerations=(Toleration(node_constraints.UNSCHEDULABLE.key, "Exists"),))
    assert node_constraints.why_not(tolerant, closed) == []


def test_a_pod_with_a_node_name_fits_only_on_that_node():
    assert node_constraints.why_not(pod("p", node="n"), node()) == []
    assert node_constraints.why_not(pod("p", node="m"), node()) != []
