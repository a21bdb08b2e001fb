"""What is free on a node beside its pods, plans, and pods that are being bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.model import Container, NodeCondition, Resources
from gpushare.objects.scheduling import Taint
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench, changed

GIB = 2**30


def wants(name, cpu, units=None, **more):
    amounts = {"cpu": cpu} | ({"aliyun.com/gpu-mem": str(units)} if units else {})
    return pod(name, containers=[Container("main", Resources(amounts, amounts))], **more)


@pytest.fixture
def bench():
    made = Bench(16)
    made.cluster.node_changed(sized(cpu="8", memory="1Gi", pods="10"))
    return made


def sized(**allocatable):
    return changed(node("n", 16), status={"allocatable": allocatable})


def free(bench, **asked):
    found = bench.cluster.state.free_resources("n", **asked)
    return found and found["cpu"]


def test_all_resources_of_a_node_are_told(bench):
    bench.add(wants("a", "1", node="n"))
    assert bench.cluster.state.free_resources("n") == {
        "cpu": 7000,
        "memory": 1000 * GIB,
        "pods": 9000,
    }


def test_nothing_is_known_of_a_node_that_is_not_there_or_cannot_be_read(bench):
    state = bench.cluster.state
    assert state.free_resources("m") is None
    bench.cluster.node_changed(sized(cpu="many"))
    assert state.free_resources("n") is None
    bench.cluster.node_changed(sized(cpu="8"))
    assert free(bench) == 8000
    bench.cluster.node_deleted(sized())
    assert state.free_resources("n") is None


def test_what_is_kept_for_others_is_not_free(bench):
    requests = (("cpu", 2000),)
    bench.cluster.ledger.keep(Hold("g", (Slot("n", (), 0, "a", requests),), 9.0))
    bench.cluster.ledger.keep(Claim("c", (Slot("n", (), 0, "b", requests),), 9.0, 5))
    assert free(bench) == 4000
    assert free(bench, besides="a") == 6000
    assert free(bench, priority=6) == 6000
    assert free(bench, besides="b", priority=5) == 6000


async def test_a_pod_that_is_being_bound_counts_once(bench):
    waits = wants("waits", "3", 4)
    bench.add(waits)
    assert free(bench) == 8000
    await bench.lose(waits, landed=True)
    assert free(bench) == 5000
    assert free(bench, besides=waits.uid) == 8000
    bench.watch_catches_up()
    assert free(bench) == 5000


async def test_a_pod_with_a_slot_that_is_being_bound_counts_once(bench):
    waits = wants("waits", "3", 4)
    slot = Slot("n", ("GPU-0",), 4, waits.uid, (("cpu", 3000),))
    bench.add(waits)
    bench.cluster.ledger.keep(Hold("g", (slot,), 9.0))
    assert free(bench) == 5000
    await bench.lose(waits, landed=True)
    assert free(bench) == 5000
    bench.watch_catches_up()
    assert free(bench) == 5000


CHANGES = {
    "labels": {"metadata": {"labels": {"zone": "a"}}},
    "annotations": {"metadata": {"annotations": {"gpushare.aliyun.com/cordoned-cards": "GPU-0"}}},
    "cordon": {"spec": {"unschedulable": True}},
    "taints": {"spec": {"taints": (Taint("k", "NoSchedule"),)}},
    "allocatable": {"status": {"allocatable": {"cpu": "7"}}},
    "conditions": {"status": {"conditions": (NodeCondition("Ready", "False"),)}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_a_node_that_may_matter_to_pods_is_recorded(bench, what):
    changes = bench.cluster.state.resource_changes
    now, parts = changes.now, dict(CHANGES[what])
    metadata = parts.pop("metadata", None)
    bench.cluster.node_changed(changed(sized(cpu="8", memory="1Gi", pods="10"), metadata, **parts))
    assert list(changes.since(now)) == ["n"]


def test_another_version_of_the_same_node_is_no_change(bench):
    changes = bench.cluster.state.resource_changes
    now = changes.now
    same = changed(sized(cpu="8", memory="1Gi", pods="10"), {"resource_version": "99"})
    bench.cluster.node_changed(same)
    assert list(changes.since(now)) == []
    bench.cluster.node_deleted(same)
    assert list(changes.since(now)) == ["n"]


@given(st.lists(st.integers(0, 3), max_size=6))
def test_cpu_that_is_free_and_used_is_all_there_is(cores):
    bench = Bench(16)
    bench.cluster.node_changed(sized(cpu="8"))
    bench.add(*(wants(f"p{i}", str(each), node="n") for i, each in enumerate(cores)))
    assert free(bench) == 8000 - 1000 * sum(cores)
