"""A pod that a node's setup would give no card, or every card, is kept from it with the reason."""

import json
from contextlib import nullcontext

import pytest

from gpushare.annotations.pod_annotations import amounts_of, request_of
from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import NoRoom, RequestError
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.placement.reasons import EXPOSES_CARDS, NEEDS_RUNTIME
from tests.builders import node
from tests.unit.extender.scripted import Bench, changed, restocked

BY_CLASS = frozenset({"nvidia", "nvidia-legacy"})
BY_DEFAULT = frozenset({"", "nvidia"})
NODES = {
    "older": ("", frozenset()),
    "cdi": ("cdi", BY_CLASS),
    "cdi-default": ("cdi", BY_DEFAULT),
    "class": ("runtime", BY_CLASS),
    "operator": ("runtime-cdi", BY_CLASS),
    "default": ("runtime", BY_DEFAULT),
}


def set_up(name: str) -> Node:
    injection, classes = NODES[name]
    return restocked(node(name, 16), injection=injection, runtime_classes=classes)


def variable(*values: str | None) -> dict:
    """A container that asks for nothing and sets the variable; None takes it from a field."""
    field = {"valueFrom": {"fieldRef": {"fieldPath": "x"}}}
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES"} | (field if value is None else {"value": value})
        for value in values
    ]
    return {"name": "other", "env": env}


def pod(*others: dict, runtime_class: str | None = None, init: bool = False) -> Pod:
    """A pod as kube-scheduler sends it: one container asks for a share, ``others`` for nothing."""
    own = {"name": "own", "resources": {"limits": {RESOURCE_MEMORY: "4"}}}
    spec = {
        "containers": [own] if init else [own, *others],
        "initContainers": [*others] if init else None,
        "runtimeClassName": runtime_class,
    }
    meta = {"name": "p", "namespace": "default", "uid": "uid-p"}
    return read_pod(json.dumps({"metadata": meta, "spec": spec}).encode())


@pytest.fixture
def bench() -> Bench:
    made = Bench(16)
    for name in NODES:
        made.cluster.node_changed(set_up(name))
    return made


def refused(bench: Bench, wanted: Pod) -> dict[str, str]:
    found = bench.cluster.scheduling.filter(wanted, [*NODES])
    assert not found.failed
    assert {*found.fitting} == {*NODES} - {*found.final}
    return found.final


def test_it_waits_where_cards_come_through_a_runtime_that_it_does_not_run_under(bench) -> None:
    assert refused(bench, pod()) == dict.fromkeys(("class", "operator"), NEEDS_RUNTIME.text)
    assert refused(bench, pod(runtime_class="nvidia")) == {}
    elsewhere = ("class", "operator", "default")
    assert refused(bench, pod(runtime_class="runc")) == dict.fromkeys(elsewhere, NEEDS_RUNTIME.text)


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("values", [(), ("all",), (None,), ("void", "all"), ("GPU-1",), ("",)])
def test_it_waits_where_its_other_containers_would_see_every_card(bench, values, init) -> None:
    others = variable(*values)
    exposing = ("cdi-default", "class", "operator", "default")
    found = refused(bench, pod(others, runtime_class="nvidia", init=init))
    assert found == dict.fromkeys((*exposing, "cdi"), EXPOSES_CARDS.text)
    found = refused(bench, pod(others, init=init))
    unserved = dict.fromkeys(("class", "operator"), NEEDS_RUNTIME.text)
    assert found == dict.fromkeys(exposing, EXPOSES_CARDS.text) | unserved


@pytest.mark.parametrize("values", [("void",), ("none",), ("all", "void")])
def test_containers_that_hide_the_cards_keep_it_from_no_node(bench, values) -> None:
    assert refused(bench, pod(variable(*values), runtime_class="nvidia")) == {}


async def test_bind_refuses_it_too_and_holds_nothing(bench) -> None:
    wanted = pod()
    bench.add(wanted)
    with pytest.raises(NoRoom, match="through NVIDIA's runtime"):
        await bench.bind(wanted, node="operator")
    assert not bench.kube.bindings
    await bench.bind(wanted, node="cdi")


def test_a_node_whose_setup_changes_takes_it_from_then_on(bench) -> None:
    assert "class" in refused(bench, pod())
    bench.cluster.node_changed(changed(set_up("cdi"), {"name": "class"}))
    assert refused(bench, pod()) == {"operator": NEEDS_RUNTIME.text}


@pytest.mark.parametrize(
    ("key", "value", "is_refused"),
    [
        ("cdi.k8s.io/x", "runtime.nvidia.com/gpu=all", True),
        ("cdi.k8s.io/x", "vendor.com/nic=0,nvidia.com/gpu=0", True),
        ("cdi.k8s.io/x", "gpushare.aliyun.com/share=1f", True),
        ("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=all", True),
        ("nvidia.cdi.k8s.io", "nvidia.com/gpu=all", True),
        ("nvidia.cdi.k8s.iox", "nvidia.com/gpu=all", False),
        ("cdi.k8s.io/x", "vendor.com/nic=0", False),
        ("example.com/cdi", "nvidia.com/gpu=all", False),
    ],
)
def test_an_annotation_that_opens_cards_is_refused_everywhere(key, value, is_refused) -> None:
    found = changed(pod(), {"annotations": {key: value}})
    assert amounts_of(found).units == 4, "what runs already is counted all the same"
    text = f"annotation {key} names a CDI device"
    with pytest.raises(RequestError, match=text) if is_refused else nullcontext():
        request_of(found)


def test_of_a_containers_variables_no_other_value_is_kept() -> None:
    env = [{"name": "TOKEN", "value": "secret"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "x"}]
    (_, other) = pod({"name": "other", "env": env}).containers
    assert [(each.name, each.value) for each in other.env] == [("NVIDIA_VISIBLE_DEVICES", None)]
