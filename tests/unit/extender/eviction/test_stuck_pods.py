"""Pods that wait in vain are evicted one by one, whatever the API server answers."""

import pytest

from extender.eviction.stuck_pods import StuckEvictor
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_MIRROR, ANNOTATION_RUNNING_ON
from gpushare.errors import ApiError, Conflict, NotFound, OutcomeUnknown
from gpushare.objects.model import ContainerState, ContainerStatus
from gpushare.objects.scheduling import Present
from gpushare.placement import reasons
from tests.builders import node, pod
from tests.unit.extender.eviction.test_stuck import waiting
from tests.unit.extender.scripted import DELETED, Bench, changed, restocked


class Evictions(Bench):
    def __init__(self, after_seconds=60.0):
        super().__init__(16)
        self.evictor = StuckEvictor(
            self.cluster.state, self.kube, self.notice, after_seconds=after_seconds
        )

    async def rounds(self, count, seconds=1.0):
        for _ in range(count):
            self.time.now += seconds
            await self.evictor.check()

    @property
    def names(self):
        return [name for name, _ in self.kube.evicted]


@pytest.fixture
def bench():
    return Evictions()


async def test_a_stuck_pod_is_evicted_once_and_told_why(bench):
    bench.add(waiting("a", "AnswerStale"))
    await bench.rounds(5)
    assert bench.kube.evicted == [("a", "uid-a")]
    [(name, reason, text)] = bench.told
    assert (name, reason) == ("a", "GpushareEvicted")
    assert "AnswerStale: what is wrong" in text


async def test_one_pod_a_round_is_evicted_and_no_more(bench):
    bench.add(*(waiting(f"p{n}", "AnswerStale") for n in range(5)))
    await bench.rounds(2)
    assert len(bench.names) == 2
    await bench.rounds(10)
    assert sorted(bench.names) == [f"p{n}" for n in range(5)]


async def test_a_card_that_may_come_back_is_waited_for():
    bench = Evictions(after_seconds=60)
    bench.add(waiting("a", "CardUnhealthy"))
    await bench.rounds(60)
    assert not bench.names
    await bench.rounds(2)
    assert bench.names == ["a"]


async def test_a_pod_that_runs_again_stays_also_when_the_watch_is_late(bench):
    bench.add(waiting("a", "CardUnhealthy"))
    runs = waiting("a", "CardUnhealthy", runs=True, resource_version="2")
    bench.kube.pods["a"] = runs
    await bench.rounds(100)
    assert not bench.names
    assert not bench.told
    bench.watch_catches_up()
    await bench.rounds(100)
    assert not bench.names


async def test_a_node_on_which_a_limit_was_missing_takes_no_pods_for_a_while(bench):
    bench.cluster.state.failing_nodes.bound("uid-a", "n", bench.time.now)
    bench.add(waiting("a", "MemoryLimitMissing", runs=True))
    bench.cluster.node_changed(node("other", 16))
    await bench.rounds(1)
    assert bench.names == ["a"]
    found = bench.cluster.scheduling.filter(pod("b", 8), ["n", "other"])
    assert found.fitting == ["other"]
    assert found.final == {"n": reasons.COOLING.text}


async def test_pods_that_a_budget_keeps_do_not_keep_others_from_being_evicted(bench):
    bench.kube.guarded = {f"p{n}" for n in range(60)}
    bench.add(*(waiting(f"p{n}", "MemoryLimitChanged", runs=True) for n in range(60)))
    await bench.rounds(300)
    assert not bench.names
    bench.add(waiting("a", "AnswerStale", namespace="other"))
    await bench.rounds(2)
    assert bench.names == ["a"]
    bench.add(waiting("b", "AnswerStale"))
    await bench.rounds(62)
    assert bench.names == ["a", "b"]


async def test_pods_that_become_due_all_the_time_do_not_keep_another_from_being_evicted(bench):
    bench.kube.guarded = {"a"}
    bench.add(waiting("a", "MemoryLimitChanged", runs=True))
    await bench.rounds(5)
    bench.kube.guarded = set()
    for n in range(200):
        bench.add(waiting(f"p{n}", "MemoryLimitChanged", runs=True))
        await bench.rounds(1)
    assert "a" in bench.names


@pytest.mark.parametrize(("own", "given"), [(604_800, 30), (None, 30), (5, 5), (0, 1)])
async def test_a_pod_without_its_limit_has_no_long_time_to_end(bench, own, given):
    spec = {"termination_grace_period_seconds": own}
    bench.add(changed(waiting("a", "MemoryLimitChanged", runs=True), spec=spec))
    await bench.rounds(1)
    assert (bench.names, bench.kube.grace_seconds) == (["a"], [given])


async def test_a_pod_that_runs_nowhere_has_the_time_to_end_that_it_wants(bench):
    spec = {"termination_grace_period_seconds": 604_800}
    bench.add(changed(waiting("a", "AnswerStale"), spec=spec))
    await bench.rounds(1)
    assert (bench.names, bench.kube.grace_seconds) == (["a"], [None])


async def test_zero_seconds_evict_nothing():
    bench = Evictions(after_seconds=0)
    bench.add(waiting("a", "AnswerStale"))
    await bench.rounds(100)
    assert not bench.names


@pytest.mark.parametrize(
    "error",
    [
        ApiError("would violate the budget", code=429),
        ApiError("forbidden", code=403),
        OutcomeUnknown("no answer"),
        Conflict("uid", code=409),
    ],
    ids=lambda error: str(error.code),
)
async def test_a_refused_eviction_is_tried_again_and_holds_up_no_other(bench, error):
    bench.add(waiting("a", "AnswerStale"), waiting("b", "AnswerStale"))
    bench.kube.outcomes = [error]
    await bench.rounds(2, seconds=0.1)
    assert bench.names == ["b"]
    assert len(bench.told) == 1
    await bench.rounds(3, seconds=60)
    assert bench.names == ["b", "a"]


async def test_a_pod_that_is_gone_needs_no_eviction(bench):
    bench.add(waiting("a", "AnswerStale"))
    bench.kube.outcomes = [NotFound("gone", code=404)]
    await bench.rounds(5)
    assert not bench.names
    assert not bench.told


async def test_a_pod_that_went_away_meanwhile_is_forgotten(bench):
    stuck = waiting("a", "CardUnhealthy")
    bench.add(stuck)
    await bench.rounds(50)
    bench.cluster.pod_deleted(stuck)
    await bench.rounds(50)
    assert not bench.names


ANYWHERE = {
    "it runs": {"container_statuses": (ContainerStatus("main", "x", ContainerState(Present())),)},
    "it is about to go": DELETED,
    "its kubelet makes it again": {"annotations": {ANNOTATION_MIRROR: "x"}},
    "it names a card that the node lacks": {"annotations": {ANNOTATION_CARDS: "GPU-9"}},
    "it may run on the card that it names": {"annotations": {ANNOTATION_RUNNING_ON: "{"}},
}


async def test_a_pod_without_a_decision_goes_also_if_nothing_makes_it_again(bench):
    bench.add(pod("bare", 8, node="n"))
    await bench.rounds(60)
    assert not bench.names
    await bench.rounds(2)
    assert bench.names == ["bare"]
    name, reason, text = bench.told[-1]
    assert (name, reason) == ("bare", "GpushareEvicted")
    assert "without spec.nodeName" in text


@pytest.mark.parametrize("why", ANYWHERE)
async def test_a_pod_without_a_decision_stays_if(bench, why):
    is_status = "container_statuses" in ANYWHERE[why]
    parts = {"status": ANYWHERE[why]} if is_status else {"meta": ANYWHERE[why]}
    bench.add(changed(pod("bare", 8, node="n"), **parts))
    await bench.rounds(100)
    assert not bench.names


async def test_a_pod_without_a_decision_stays_where_the_plugin_binds_early(bench):
    bench.cluster.node_changed(restocked(node("n", 16), binding="early"))
    bench.add(pod("bare", 8, node="n"))
    await bench.rounds(100)
    assert not bench.names


async def test_a_pod_without_a_decision_that_starts_all_the_same_stays(bench):
    bench.add(pod("bare", 8, node="n"))
    await bench.rounds(50)
    bench.cluster.pod_changed(
        changed(
            pod("bare", 8, node="n"), status=ANYWHERE["it runs"], meta={"resource_version": "2"}
        )
    )
    await bench.rounds(100)
    assert not bench.names
