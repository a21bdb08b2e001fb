"""A node that fails our pods at admission is left alone for a while, and only for that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.decisions.failing_nodes import (
    FIRST_SECONDS,
    MOST_SECONDS,
    WITHIN_SECONDS,
    FailingNodes,
)
from extender.watch.cluster import FailedPodHandler
from gpushare.errors import NoRoom
from gpushare.objects.model import ContainerStatus
from gpushare.placement import reasons
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench, changed

REJECTED = "UnexpectedAdmissionError"


def ended(name, reason=REJECTED, message=None):
    made = pod(name, 8, node="n", phase="Failed")
    return changed(made, status={"reason": reason, "message": message})


def fail(cooldown, now, count=1, *, reason=REJECTED, name="n"):
    for number in range(count):
        cooldown.bound(f"uid-{name}{now}-{number}", name, now)
        cooldown.failed(ended(f"{name}{now}-{number}", reason), now)


@pytest.fixture
def cooldown():
    return FailingNodes()


@pytest.mark.parametrize("reason", [REJECTED, "OutOfcpu", "OutOfaliyun.com/gpu-mem"])
def test_two_rejected_pods_close_a_node_for_a_while(cooldown, reason):
    fail(cooldown, 100.0, reason=reason)
    assert not cooldown.is_cooling("n", 100.0)
    fail(cooldown, 105.0, reason=reason)
    assert cooldown.is_cooling("n", 105.0)
    assert cooldown.cooling(105.0) == {"n"}
    assert not cooldown.is_cooling("other", 105.0)
    assert not cooldown.is_cooling("n", 105.0 + FIRST_SECONDS)


def run_unlimited(cooldown, now):
    """A pod that was bound starts, and is evicted because its memory limit is missing."""
    cooldown.bound(f"uid-{now}", "n", now)
    cooldown.started(f"uid-{now}", now)
    cooldown.unlimited(f"uid-{now}", now)


def test_a_missing_memory_limit_closes_its_node_for_ever_longer_whatever_starts_there():
    cooldown, now, pauses = FailingNodes(), 100.0, []
    for _ in range(6):
        cooldown.bound("uid-other", "n", now)
        run_unlimited(cooldown, now)
        cooldown.started("uid-other", now)
        pauses.append(next(s for s in range(1000) if not cooldown.is_cooling("n", now + s)))
        now += pauses[-1]
    assert pauses == [5, 10, 20, 40, 60, 60]


def test_a_missing_limit_makes_no_single_rejection_close_the_node(cooldown):
    run_unlimited(cooldown, 100.0)
    cooldown.bound("uid-c", "n", 200.0)
    cooldown.started("uid-c", 201.0)
    fail(cooldown, 300.0)
    assert not cooldown.is_cooling("n", 300.0)


def test_a_pod_that_this_extender_did_not_bind_closes_no_node(cooldown):
    cooldown.unlimited("uid-a", 100.0)
    cooldown.bound("uid-b", "n", 100.0)
    cooldown.started("uid-b", 100.0)
    cooldown.unlimited("uid-b", 100.0 + 61.0)
    assert not cooldown.cooling(161.0)


@pytest.mark.parametrize(
    "why",
    [
        "no healthy devices present; cannot allocate unhealthy devices aliyun.com/gpu-mem",
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unavailable",
        "device plugin Allocate rpc failed with err: rpc error: code = Canceled desc = grpc",
    ],
)
def test_one_pod_that_no_plugin_answered_for_closes_its_node(cooldown, why):
    cooldown.bound("uid-a", "n", 100.0)
    cooldown.failed(ended("a", message=f"Pod was rejected: Allocate failed due to {why}"), 100.1)
    assert cooldown.is_cooling("n", 100.1)


def test_one_pod_that_the_plugin_refused_closes_nothing(cooldown):
    cooldown.bound("uid-a", "n", 100.0)
    why = "device plugin Allocate rpc failed with err: rpc error: code = FailedPrecondition"
    cooldown.failed(ended("a", message=why), 100.1)
    assert not cooldown.is_cooling("n", 100.1)


@pytest.mark.parametrize("reason", ["", "Evicted", "NodeAffinity", "Error"])
def test_pods_that_ended_otherwise_close_nothing(cooldown, reason):
    fail(cooldown, 100.0, 5, reason=reason)
    assert not cooldown.is_cooling("n", 100.0)


def test_pods_that_we_have_not_bound_close_nothing(cooldown):
    for number in range(10):
        cooldown.failed(ended(f"stranger-{number}"), 100.0)
    assert not cooldown.is_cooling("n", 100.0)


def test_failures_far_apart_close_nothing(cooldown):
    for number in range(10):
        fail(cooldown, number * (WITHIN_SECONDS + 1))
        assert not cooldown.cooling(number * (WITHIN_SECONDS + 1))


def test_while_it_goes_on_each_pause_is_twice_as_long_up_to_a_minute():
    cooldown, now, pauses = FailingNodes(), 100.0, []
    fail(cooldown, now)
    for _ in range(6):
        fail(cooldown, now := now + 0.1, 3)  # those bound before the pause lengthen it no more
        began = now
        while cooldown.is_cooling("n", now):
            now += 0.5
        pauses.append(round(now - began))
    assert pauses == [5, 10, 20, 40, 60, 60]


def test_a_pod_that_starts_ends_it_all(cooldown):
    fail(cooldown, 100.0, 2)
    cooldown.bound("uid-good", "n", 101.0)
    cooldown.started("uid-good", 102.0)
    assert not cooldown.is_cooling("n", 102.0)
    fail(cooldown, 103.0)
    assert not cooldown.is_cooling("n", 103.0), "it takes two again"


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=40))
def test_no_node_is_ever_closed_for_longer_than_a_minute(steps):
    cooldown, now = FailingNodes(), 0.0
    for passed, fails in steps:
        now += passed
        if fails:
            fail(cooldown, now)
        else:
            cooldown.bound("uid-ok", "n", now)
            cooldown.started("uid-ok", now)
        assert not cooldown.is_cooling("n", now + MOST_SECONDS)


async def cooling_bench():
    bench = Bench(16)
    for name in "ab":
        await bench.add_and_bind(pod(name, 4))
        bench.cluster.pod_failed(ended(name))
        bench.cluster.pod_deleted(pod(name, 4))
    assert bench.cluster.figures()["gpushare_extender_cooling_nodes"] == 1
    return bench


def asked(bench, *nodes):
    return bench.cluster.scheduling.filter(pod("next", 4), nodes)


async def test_a_pod_goes_to_another_node_meanwhile():
    bench = await cooling_bench()
    bench.cluster.node_changed(node("other", 16))
    found = asked(bench, "n", "other")
    assert found.fitting == ["other"]
    assert found.final == {"n": reasons.COOLING.text}


async def test_without_another_node_bind_refuses_so_that_kube_scheduler_tries_again():
    bench = await cooling_bench()
    bench.cluster.node_changed(node("full", 2))
    found = asked(bench, "n", "full")
    assert found.fitting == ["n"]
    assert set(found.final) == {"full"}
    bench.add(pod("next", 4))
    with pytest.raises(NoRoom, match="tried again shortly"):
        await bench.bind(pod("next", 4))
    assert bench.held == [(0, 0)]
    bench.time.now += FIRST_SECONDS
    await bench.bind(pod("next", 4))


async def test_pods_that_had_failed_before_they_were_listed_close_nothing():
    bench = Bench(16)
    for name in "ab":
        await bench.add_and_bind(pod(name, 4))
    watch = FailedPodHandler(bench.cluster)
    watch.replaced([ended("a"), ended("b")])
    assert bench.cluster.figures()["gpushare_extender_cooling_nodes"] == 0
    for name in "ab":
        watch.changed(ended(name))
    assert bench.cluster.figures()["gpushare_extender_cooling_nodes"] == 1


async def test_a_node_that_is_named_twice_is_answered_all_the_same():
    bench = await cooling_bench()
    assert set(asked(bench, "n", "n").fitting) == {"n"}


async def test_a_container_that_starts_opens_its_node_again():
    bench = await cooling_bench()
    bench.time.now += FIRST_SECONDS
    await bench.add_and_bind(pod("good", 4))
    started = {"phase": "Running", "container_statuses": (ContainerStatus("main", "x://1"),)}
    bench.cluster.pod_changed(changed(bench.kube.pods["good"], status=started))
    await bench.add_and_bind(pod("bad", 4))
    bench.cluster.pod_failed(ended("bad"))
    assert bench.cluster.figures()["gpushare_extender_cooling_nodes"] == 0


def test_nodes_that_come_and_go_are_not_remembered_for_ever(cooldown):
    for number in range(100):
        fail(cooldown, 1000.0 * number, 2, name=f"n{number}")
    assert len(cooldown._nodes) == 1
