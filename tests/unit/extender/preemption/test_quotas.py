"""Nobody is evicted for what the quota of a namespace leaves no room for, by whomever."""

import pytest

from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from tests.unit.extender.preemption.stage import GRACE_SECONDS
from tests.unit.extender.preemption.two_gpus import claimed, fill, staged


def limit(stage, quota):
    """Limit the namespace of what waits; ``fill`` is in another one."""
    for replica in stage.replicas:
        replica.cluster.state.namespaces.put(Namespace("team", quota=parse(quota)))


@pytest.mark.parametrize("gated", [False, True], ids=["ungated", "gated"])
def test_nobody_is_evicted_for_a_pod_over_its_quota_until_that_is_raised(gated):
    with staged() as stage:
        fill(stage)
        stage.start()
        limit(stage, "9")
        stage.put("high", 10, priority=100, namespace="team", gated=gated)
        stage.go(10)
        assert (stage.evicted, stage.nominated, claimed(stage)) == ([], {}, 0)
        limit(stage, "10")
        stage.go(GRACE_SECONDS + 10)
        assert len(stage.evicted) == 1
        assert stage.bound()["high"] == "n"


@pytest.mark.parametrize("priority", [100, 200])
def test_a_pod_over_its_quota_keeps_nobody_from_evicting(priority):
    with staged() as stage:
        fill(stage)
        stage.start()
        limit(stage, "9")
        stage.put("over", 10, priority=priority, namespace="team")
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 5)
        assert stage.bound().get("high") == "n"
        assert "over" not in stage.bound()


def test_nobody_is_evicted_for_a_gang_whose_minimum_is_over_the_quota():
    with staged({"n": (16, 16), "m": (16,)}) as stage:
        fill(stage)
        stage.put_bound("c", 16, "GPU-0", at="m")
        stage.start()
        limit(stage, "47")
        for number in range(3):
            stage.put(f"g-{number}", 16, priority=100, gang="g", minimum=3, namespace="team")
        stage.go(20)
        assert (stage.evicted, claimed(stage)) == ([], 0)


def test_of_two_pods_that_the_quota_permits_one_of_exactly_one_evicts_and_is_placed():
    with staged({"n": (16,), "m": (16,)}) as stage:
        for name in ("n", "m"):
            stage.put_bound(f"on-{name}", 16, "GPU-0", at=name)
        stage.start()
        limit(stage, "16")
        stage.put("p", 16, priority=100, namespace="team")
        stage.put("q", 16, priority=100, namespace="team")
        stage.go(GRACE_SECONDS + 30)
        assert len([name for name in stage.bound() if name in "pq"]) == 1
        ended = [name for name in ("on-n", "on-m") if name not in stage.bound()]
        assert len(ended) == 1
