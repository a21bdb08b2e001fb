"""A cluster of paper nodes whose kube-scheduler calls the recording extender."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import msgspec

from bench.apiserver import PODS, ApiServer
from bench.scheduler import READY_SECONDS, Mode, Scheduler
from bench.throughput import cluster_up
from bench.waiting_pods.recording import Recording, recording
from bench.world import CARD_UNITS, HELD, LABEL, Shape, fill, node_name, pod
from gpushare.kube.client import MERGE_PATCH, STRATEGIC_PATCH
from gpushare.objects.model import Pod
from localcluster.controlplane import SCHEDULER
from localcluster.versions import Version
from localcluster.wait import wait_until

GATE: Final = "bench.gpushare/waiting"
GATED: Final = {"schedulingGates": [{"name": GATE}]}
HIGH: Final = "bench-high"  # a PriorityClass above the other pods' 0
UPDATES_PER_SECOND: Final = 50
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_HIGH: Final = {"metadata": {"name": HIGH}, "value": 1000}
_MOST_UPDATES: Final = 12
_MODE: Final = Mode("recording extender", "recording")
_QUIET_SECONDS: Final = 2.0
_WAIT_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Attempts:
    """What rejected attempts cost kube-scheduler, each, in milliseconds.

    ``wall`` is by kube-scheduler's own metric and includes ``answer``, the extender's time.
    ``writes`` are the Events and status patches of one.
    """

    rate: float
    cpu: float
    wall: float
    answer: float
    writes: float


@dataclass
class Setting:
    shape: Shape
    api: ApiServer
    scheduler: Scheduler
    extender: Recording

    @property
    def node_names(self) -> list[str]:
        return [node_name(number) for number in range(self.shape.nodes)]

    async def create(self, pods: Sequence[Mapping[str, Any]]) -> None:
        await self.api.each("POST", PODS, pods)

    async def delete(self, group: str) -> None:
        await self.api.delete_all(PODS, f"{LABEL}={group}")

    async def delete_each(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Delete pods one by one: thousands at once can take longer than a request may."""
        found = [{"metadata": each["metadata"], "gracePeriodSeconds": 0} for each in pods]
        await self.api.each("DELETE", _pod_path, found)

    async def read(self, name: str) -> Pod:
        return msgspec.json.decode(await self.api.request("GET", f"{PODS}/{name}"), type=Pod)

    async def patch(self, name: str, body: Mapping[str, Any], part: str = "") -> None:
        path = f"{PODS}/{name}{part}"
        await self.api.request("PATCH", path, body, content_type=STRATEGIC_PATCH)

    async def attempts(self) -> float:
        return sum((await asyncio.to_thread(self.scheduler.attempts)).values())

    async def until(
        self, what: str, reached: Callable[[], bool], seconds: float = _WAIT_SECONDS
    ) -> None:
        """Return once this is reached; raise TimeoutError after some seconds."""
        end = time.perf_counter() + seconds
        while not reached():
            if time.perf_counter() > end:
                raise TimeoutError(f"waited {seconds:g} s for: {what}")
            await asyncio.sleep(0.01)

    async def until_quiet(self, seconds: float = _QUIET_SECONDS) -> None:
        """Return once kube-scheduler has attempted nothing for this time."""
        last, since = -1.0, time.perf_counter()
        while time.perf_counter() - since < seconds:
            if (now := await self.attempts()) != last:
                last, since = now, time.perf_counter()
            await asyncio.sleep(0.2)

    async def rejected_again(self, names: Sequence[str], times: int) -> Attempts:
        """Make kube-scheduler try these pods again, and measure its attempts.

        A changed annotation is one event for kube-scheduler and leads to one attempt.
        """
        before = await self._totals()
        own = len(self.extender.calls)
        began = time.perf_counter()
        for _ in range(times):
            made = [
                {"metadata": {"name": name, "annotations": {"bench": str(next(_numbers))}}}
                for name in names
            ]
            await self.api.each("PATCH", _pod_path, made, content_type=MERGE_PATCH)
        await self.until_unasked()
        passed = time.perf_counter() - began - _QUIET_SECONDS
        calls = self.extender.calls[own:]
        count, wall, cpu, writes = (
            b - a for a, b in zip(before, await self._totals(), strict=True)
        )
        return Attempts(
            rate=count / passed,
            cpu=cpu / count * 1000,
            wall=wall / count * 1000,
            answer=sum(each.seconds for each in calls) / len(calls) * 1000,
            writes=writes / count,
        )

    async def until_unasked(self) -> None:
        """Return once filter has not been called for a while."""
        last, since = -1, time.perf_counter()
        while time.perf_counter() - since < _QUIET_SECONDS:
            if (now := len(self.extender.calls)) != last:
                last, since = now, time.perf_counter()
            await asyncio.sleep(0.1)

    async def _totals(self) -> tuple[float, float, float, float]:
        name = "scheduler_scheduling_attempt_duration_seconds"
        found = [
            sum(
                number
                for labels, number in await asyncio.to_thread(self.scheduler.metric, name + part)
                if labels["result"] == "unschedulable"
            )
            for part in ("_count", "_sum")
        ]
        asked = await self.api.requests()
        writes = sum(number for key, number in asked.items() if key in _WRITES)
        cpu = self.scheduler.cpu_seconds(_MODE)[SCHEDULER]
        return found[0], found[1], cpu, writes


_numbers: Final = itertools.count()


def _pod_path(body: Mapping[str, Any]) -> str:
    return f"{PODS}/{body['metadata']['name']}"


_WRITES: Final = {
    ("POST", "events", ""),
    ("PATCH", "events", ""),
    ("PATCH", "pods", "status"),
}


@asynccontextmanager
async def prepared(shape: Shape, version: Version) -> AsyncIterator[Setting]:
    """Start a cluster, fill it, and start kube-scheduler with the recording extender."""
    with cluster_up(version) as cluster:
        async with ApiServer.of(cluster) as api, recording(api) as extender:
            scheduler = Scheduler(cluster)
            scheduler.use(_MODE)
            wait_until(
                "kube-scheduler to serve", partial(_unready, scheduler), seconds=READY_SECONDS
            )
            await api.request("POST", _CLASSES, _HIGH)
            await fill(api, shape)
            found = Setting(shape, api, scheduler, extender)
            await found.until_quiet()
            yield found


def _unready(scheduler: Scheduler) -> str | None:
    try:
        scheduler.attempts()
    except OSError as err:
        return str(err)
    return None


class Updates:
    """Changes an annotation of bound pods in turn, so many times a second while it is entered.

    A slow API server makes it slower: at most ``_MOST_UPDATES`` are under way.
    """

    def __init__(self, setting: Setting, per_second: int = UPDATES_PER_SECOND) -> None:
        self._setting, self._per_second = setting, per_second
        self._names = bound_pods(setting.shape)
        self.made = 0

    async def __aenter__(self) -> Self:
        self._driving = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._driving

    async def _drive(self) -> None:
        began = time.perf_counter()
        free = asyncio.Semaphore(_MOST_UPDATES)
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await free.acquire()
                group.create_task(self._change(number, free))
                due = began + (number + 1) / self._per_second
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def _change(self, number: int, free: asyncio.Semaphore) -> None:
        path = f"{PODS}/{self._names[number % len(self._names)]}"
        body = {"metadata": {"annotations": {"bench-update": str(number)}}}
        await self._setting.api.request("PATCH", path, body, content_type=MERGE_PATCH)
        self.made += 1
        free.release()


def bound_pods(shape: Shape) -> list[str]:
    """Return names of pods that ``fill`` has bound."""
    return [f"held-{number}-0-0" for number in range(shape.nodes)]


def waiting_pods(group: str, count: int, **spec: Any) -> list[dict[str, Any]]:
    """Return pods that request GPU memory."""
    return [pod(f"{group}-{number}", 4, group, spec=spec) for number in range(count)]


def filling_pods(nodes: Sequence[str]) -> list[dict[str, Any]]:
    """Return bound pods of priority 0 that leave no GPU memory beside the pods of ``fill``."""
    units = CARD_UNITS - HELD[1]
    return [pod(f"low-{name}", units, "low", spec={"nodeName": name}) for name in nodes]


def plain_pod(name: str, group: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that requests no GPU memory, so that the extender is not called."""
    found = pod(name, 0, group, spec=spec)
    found["spec"]["containers"][0]["resources"].pop("limits")
    return found
