"""Pods that cannot start get one Event and a condition, without delays by other pods."""

import asyncio

import msgspec
import pytest

from deviceplugin.errors import Reason, Refused
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.report.refusals import RefusalReport
from gpushare.clock import SystemClock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.errors import ApiError, Conflict, NotFound, OutcomeUnknown
from gpushare.objects.model import PodCondition
from tests.fakes.pods import pod
from tests.waiting import eventually, running


class Api:
    """Pods whose conditions can be set, as the API server merges them; it tells the watch."""

    def __init__(self, watch: NodePods) -> None:
        self.watch = watch
        self.fails: dict[str, list[ApiError]] = {}
        self.conditions: list[tuple[str, str, str | None]] = []
        self.events: dict[str, dict] = {}
        self.event_fails: list[ApiError] = []
        self.event_lands = True
        self.tried = 0
        self.stirred = asyncio.Condition()

    async def set_pod_condition(self, namespace, name, uid, condition, changed_at) -> None:
        await self._stir()
        if self.fails.get(name):
            raise self.fails[name].pop()
        self.conditions.append((name, condition.status, condition.reason))

    async def create_event(self, namespace, event) -> None:
        await self._stir()
        name = event["metadata"]["name"]
        if self.event_fails:
            if self.event_lands:
                self.events[name] = event
            raise self.event_fails.pop()
        if name in self.events:
            raise Conflict("AlreadyExists", code=409)
        self.events[name] = event

    async def _stir(self) -> None:
        self.tried += 1
        async with self.stirred:
            self.stirred.notify_all()


class Bench:
    def __init__(self) -> None:
        self.watch = NodePods()
        self.api = Api(self.watch)
        self.report = RefusalReport(kube=self.api, pods=self.watch, clock=SystemClock())

    def refuse(self, owner, reason=Reason.CARD_UNHEALTHY, *, is_tried_again=True) -> None:
        err = Refused("what is wrong", pod=owner, reason=reason)
        self.report.refused(err, is_tried_again=is_tried_again)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def with_condition(before, status: str, reason: str = "CardUnhealthy", *, version="2", **more):
    condition = PodCondition(CONDITION_CARD_USABLE, status, reason, "what is wrong")
    meta = msgspec.structs.replace(before.metadata, resource_version=version)
    changed = msgspec.structs.replace(before.status, conditions=(condition,), **more)
    return msgspec.structs.replace(before, metadata=meta, status=changed)


async def test_a_rejected_start_sets_the_condition_until_the_pod_may_start(bench) -> None:
    waiting = pod("a")
    bench.watch.changed(waiting)
    async with running(bench.report.run()):
        bench.refuse(waiting)
        await eventually(lambda: bench.api.conditions and bench.api.events)
        for _ in range(3):
            bench.refuse(waiting)  # as the kubelet tries again
        bench.watch.changed(with_condition(waiting, "False"))
        bench.report.may_start(waiting.uid)
        await eventually(lambda: len(bench.api.conditions) == 2)
    assert bench.api.conditions == [("a", "False", "CardUnhealthy"), ("a", "True", "Started")]
    [event] = bench.api.events.values()
    assert event["reason"] == "GpushareCannotStart"
    assert event["message"] == "what is wrong"
    assert event["involvedObject"]["uid"] == waiting.uid


async def test_a_start_right_after_a_rejection_is_reported(bench) -> None:
    waiting = pod("a")
    bench.watch.changed(waiting)
    async with running(bench.report.run()):
        bench.refuse(waiting)
        await eventually(lambda: bench.api.conditions)
        bench.report.may_start(waiting.uid)  # the watch has not shown the condition yet
        await eventually(lambda: len(bench.api.conditions) == 2)
    assert bench.api.conditions[-1][1] == "True"


async def test_a_pod_that_failed_at_admission_gets_only_an_event(bench) -> None:
    failed, waits = pod("failed"), pod("waits")
    bench.watch.replaced([failed, waits])
    async with running(bench.report.run()):
        bench.refuse(failed, Reason.NO_DECISION, is_tried_again=False)
        bench.refuse(waits)
        await eventually(lambda: len(bench.api.events) == 2 and bench.api.conditions)
    assert [name for name, *_ in bench.api.conditions] == ["waits"]


async def test_a_pod_that_the_watch_does_not_show_yet_gets_its_event_and_condition(bench) -> None:
    async with running(bench.report.run()):
        bench.refuse(pod("unseen"))
        await eventually(lambda: bench.api.conditions and bench.api.events)


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("no answer"),
        ApiError("the server is busy", code=429),
        ApiError("forbidden", code=403),
        OutcomeUnknown("internal", code=500),
    ],
    ids=lambda error: str(error.code),
)
async def test_a_failed_write_is_retried(bench, error) -> None:
    waiting = pod("a")
    bench.watch.changed(waiting)
    bench.api.fails["a"] = [error]
    bench.api.event_fails, bench.api.event_lands = [error], False
    async with running(bench.report.run()):
        bench.refuse(waiting)
        await eventually(lambda: bench.api.conditions and bench.api.events)


async def test_an_event_with_an_unknown_outcome_is_not_duplicated(bench) -> None:
    waiting = pod("a")
    bench.watch.changed(waiting)
    bench.api.event_fails = [OutcomeUnknown("no answer")]
    async with running(bench.report.run()):
        bench.refuse(waiting)
        await eventually(lambda: bench.api.tried >= 3)
    assert len(bench.api.events) == 1


@pytest.mark.parametrize("error", [NotFound("gone", code=404), Conflict("uid", code=409)])
async def test_a_deleted_pod_delays_no_other(bench, error) -> None:
    gone, other = pod("gone"), pod("other")
    bench.watch.replaced([gone, other])
    bench.api.fails["gone"] = [error] * 1000
    async with running(bench.report.run()):
        bench.refuse(gone)
        bench.refuse(other)
        await eventually(lambda: bench.api.conditions)
    assert bench.api.conditions == [("other", "False", "CardUnhealthy")]


async def test_a_restarted_plugin_corrects_the_condition_of_a_running_pod(bench) -> None:
    started = with_condition(pod("runs", started=True), "False")
    waiting = with_condition(pod("waits"), "False")
    bench.watch.replaced([started, waiting])
    async with running(bench.report.run()):
        await eventually(lambda: bench.api.conditions)
        bench.refuse(waiting)  # the kubelet tries it again: all is said already
        bench.watch.changed(pod("another"))
        await asyncio.sleep(0)
    assert bench.api.conditions == [("runs", "True", "Started")]
    assert not bench.api.events


async def test_an_ended_pod_gets_no_condition(bench) -> None:
    ended = with_condition(pod("ended"), "False", phase="Failed")
    bench.watch.replaced([ended])
    async with running(bench.report.run()):
        bench.report.may_start(ended.uid)
        bench.refuse(pod("other"))
        await eventually(lambda: bench.api.conditions)
    assert [name for name, *_ in bench.api.conditions] == ["other"]


async def test_a_rejection_without_a_pod_is_reported_on_no_pod(bench) -> None:
    async with running(bench.report.run()):
        bench.report.refused(Refused("no container holds these"), is_tried_again=True)
        bench.refuse(pod("other"))
        await eventually(lambda: bench.api.conditions)
    assert [name for name, *_ in bench.api.conditions] == ["other"]
