"""Pods that require a memory limit by the driver: filter offers them only such nodes."""

from dataclasses import replace

import msgspec
import pytest

from gpushare.contract import ANNOTATION_ISOLATION
from gpushare.objects.model import Pod
from gpushare.placement.reasons import NOT_LIMITED
from tests.builders import node, stock
from tests.unit.extender.scripted import Bench, restocked, wire_pod

NODES = ["n", "driver", "framework", "nothing"]  # by what they enforce; n does not say


@pytest.fixture
def bench() -> Bench:
    made = Bench(16)
    for name in NODES[1:]:
        cards = tuple(replace(card, enforces=name) for card in stock(16).cards)
        made.cluster.node_changed(restocked(node(name, 16), cards=cards))
    return made


def wants(isolation: str) -> Pod:
    wire = wire_pod(annotations={ANNOTATION_ISOLATION: isolation})
    return msgspec.convert(wire, Pod)


def test_a_pod_that_requires_isolation_is_offered_only_nodes_whose_driver_limits_memory(bench):
    found = bench.cluster.scheduling.filter(wants("required"), NODES)
    assert found.fitting == ["driver"]
    assert found.final == dict.fromkeys(["n", "framework", "nothing"], NOT_LIMITED.text)


def test_a_pod_that_prefers_isolation_is_offered_every_node(bench):
    assert bench.cluster.scheduling.filter(wants("preferred"), NODES).fitting == NODES
