"""Bind pods to one node at a steady rate, and record how each ends."""

import itertools
import json
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from gpushare.clock import SystemClock
from gpushare.contract import CLASS_NVIDIA_LEGACY
from localcluster.api import Api
from localcluster.errors import ApiError
from localcluster.gpushare import Gpushare
from localcluster.wait import patient, wait_until
from localcluster.workloads import pod
from tests.cluster.expect import bind
from tests.cluster.history import Change, History

PODS: Final = "/api/v1/namespaces/default/pods"
RUNS: Final = 10
_NUMBERS: Final = itertools.count()
_RETRIES: Final = 3  # refused binds that are repeated in one period, beside the new one
_NO_HANDLER: Final[dict[str, Any]] = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": CLASS_NVIDIA_LEGACY},  # a name under which the plugin gives cards
    "handler": "no-handler",
}


@dataclass
class Arrival:
    """One pod. Times are seconds since the epoch; ``bound`` and ``admitted`` are 0 before that.

    A pod that is to run is ``admitted`` when its container runs, others when the kubelet says so.
    """

    name: str
    is_to_run: bool
    uid: str = ""
    refusals: int = 0
    bound: float = 0.0
    admitted: float = 0.0
    failed: str = ""
    is_gone: bool = False


class Outcomes(History):
    """The part of the watch history of all pods that shows how arrivals end."""

    def __init__(self, gpushare: Gpushare) -> None:
        super().__init__(gpushare.cluster)
        self.by_name: dict[str, Arrival] = {}

    def listed(self, found: list[Change]) -> None:
        for change in found:
            self.changed(change)

    def changed(self, change: Change) -> None:
        arrival = self.by_name.get(change.name)
        if arrival is None:
            return
        status = change.pod["status"]
        phase = status.get("phase")
        if arrival.admitted or arrival.failed:
            return
        if phase == "Failed":
            arrival.failed = f"{status.get('reason', '')}: {status.get('message', '')}"
        elif phase == "Running" or (not arrival.is_to_run and status.get("startTime")):
            arrival.admitted = now()


class Arrivals:
    """Bind a pod of one unit in every ``period`` (seconds), without kube-scheduler, until exit.

    A bind that the extender rejects is repeated, as kube-scheduler does. Pods that were admitted or
    have failed are deleted, so that the node never fills. Two cores cannot start five containers a
    second, so only one pod in RUNS is to run. The others name a handler that containerd lacks: the
    kubelet admits them and creates no sandbox.
    """

    def __init__(self, gpushare: Gpushare, node: str, *, period: float = 0.2) -> None:
        self._gpushare = gpushare
        self._node = node
        self._period = period
        self._outcomes = Outcomes(gpushare)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._bind, self._delete_settled)
        ]
        self._waiting: deque[Arrival] = deque()
        self.problem = ""

    def __enter__(self) -> Self:
        self._gpushare.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_NO_HANDLER))
        self._outcomes.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(patient(30))
        with self._gpushare.cluster.api() as api:
            for each in self.all:
                _delete(api, each)
        self._outcomes.__exit__()

    @property
    def all(self) -> list[Arrival]:
        return list(self._outcomes.by_name.values())

    def bound_since(self, moment: float) -> list[Arrival]:
        return [each for each in self.all if each.bound >= moment]

    def wait_bound(self, count: int, *, since: float, seconds: float = 60) -> None:
        """Return once so many pods were bound since a moment; DeadlineError."""

        def few() -> str | None:
            found = len(self.bound_since(since))
            return None if found >= count else f"{found} are"

        wait_until(f"{count} pods to be bound", few, seconds=seconds)

    def wait_settled(self, *, seconds: float = 90) -> None:
        """Return once every pod that is bound by now is admitted or has failed; DeadlineError."""
        bound = [each for each in self.all if each.bound]

        def unsettled() -> str | None:
            if self.problem:
                return self.problem
            left = [each.name for each in bound if not each.admitted and not each.failed]
            return f"{len(left)} are not: {', '.join(left[:5])}" if left else None

        wait_until("every bound pod to be admitted", unsettled, seconds=seconds)

    def _bind(self) -> None:
        due = time.monotonic()
        with self._gpushare.cluster.api() as api:
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                due += self._period
                again = [self._waiting.popleft() for _ in range(min(_RETRIES, len(self._waiting)))]
                number = next(_NUMBERS)
                fresh = Arrival(f"arrival-{number}", is_to_run=not number % RUNS)
                self._outcomes.by_name[fresh.name] = fresh
                try:
                    described = _described(fresh)
                    fresh.uid = api.request("POST", PODS, described)["metadata"]["uid"]
                    for each in (*again, fresh):
                        self._bind_one(each)
                except ApiError as err:
                    self.problem = str(err)

    def _bind_one(self, arrival: Arrival) -> None:
        if bind(self._gpushare, arrival.name, arrival.uid, self._node):
            arrival.refusals += 1
            self._waiting.append(arrival)
        else:
            arrival.bound = now()

    def _delete_settled(self) -> None:
        with self._gpushare.cluster.api() as api:
            while not self._ended.wait(self._period):
                for each in self.all:
                    if each.admitted or each.failed:
                        _delete(api, each)


def _delete(api: Api, arrival: Arrival) -> None:
    if not arrival.is_gone:
        arrival.is_gone = True
        with suppress(ApiError):
            api.request("DELETE", f"{PODS}/{arrival.name}?gracePeriodSeconds=0")


def now() -> float:
    """Return the seconds since the epoch."""
    return SystemClock().wall_ns() / 1e9


def _described(arrival: Arrival) -> dict[str, Any]:
    return pod(
        arrival.name,
        1,
        schedulerName="nobody",
        runtimeClassName="nvidia" if arrival.is_to_run else CLASS_NVIDIA_LEGACY,
        terminationGracePeriodSeconds=0,
        restartPolicy="Never",
    )
