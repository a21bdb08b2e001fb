"""Evicts pods whose decision cannot be kept, or that have none."""

import asyncio
import logging
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.cluster_state import ClusterState
from extender.decisions.tries import Tries
from extender.eviction.rules import (
    GRACE_SECONDS,
    LIMIT_MISSING,
    NO_DECISION,
    OF_RUNNING,
    StuckPods,
)
from extender.metrics.counters import EVICTIONS
from extender.watch.events import Notice
from gpushare.clock import Clock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.errors import ApiError, NotFound
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVENT: Final = "GpushareEvicted"
EVERY_SECONDS: Final = 1.0


class Evictions:
    """Asks the API server to evict pods, each until it agrees or the pod is deleted.

    With ``any_version`` a pod is evicted also if it has changed since the watch showed it.
    """

    def __init__(self, kube: Writer, clock: Clock, *, any_version: bool = False) -> None:
        self._kube, self._any_version = kube, any_version
        self._retries: Retries[str] = Retries(clock, 2.0, 60.0)
        self._asked: set[str] = set()

    def keep_only(self, uids: set[str]) -> None:
        """Forget all pods but these: no others are to be evicted."""
        self._asked &= uids
        self._retries.keep_only(uids)

    def may_ask(self, pod: Pod) -> bool:
        """Return whether the pod is not evicted yet, and no attempt failed just now."""
        return pod.uid not in self._asked and self._retries.is_ready(pod.uid)

    async def ask(self, pod: Pod, why: str) -> bool:
        """Evict the pod; return whether it was evicted."""
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        is_evicted = False
        try:
            if why in OF_RUNNING:  # it may change often
                grace_seconds = max(1, min(pod.grace_seconds, GRACE_SECONDS))
                await self._kube.evict_pod(pod, any_version=True, grace_seconds=grace_seconds)
            else:
                await self._kube.evict_pod(pod, any_version=self._any_version)
        except NotFound:
            log.info("pod is gone already", extra=about)
        except ApiError as err:
            # 429: a PodDisruptionBudget; 409: the pod has changed since the watch showed it, and
            # may run by now.
            log.warning("pod not evicted yet", extra={**about, "why": str(err)})
            self._retries.tried(pod.uid, landed=False)
            return False
        else:
            EVICTIONS.labels(why).inc()
            is_evicted = True
        self._retries.tried(pod.uid, landed=True)
        self._asked.add(pod.uid)
        return is_evicted


class StuckEvictor:
    """Evicts one pod per round at most, also if all GPUs of a node fail at once.

    ``after_seconds``: how long a reason that may pass must last; 0 means never to evict.
    """

    def __init__(
        self, state: ClusterState, kube: Writer, notice: Notice, *, after_seconds: float
    ) -> None:
        self._pods, self._ledger, self._clock = state.pods, state.ledger, state.clock
        self._failing_nodes = state.failing_nodes
        self._notice = notice
        self._is_allowed = after_seconds > 0
        self._stuck = StuckPods(after_seconds)
        self._evictions = Evictions(kube, state.clock)
        self._tries: Tries[str] = Tries(new_first=False)

    async def run(self) -> None:
        while self._is_allowed:
            await asyncio.sleep(EVERY_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Evict the pod that is due and was not tried for the longest time.

        Namespaces take turns: a PodDisruptionBudget may refuse any number of running pods for ever,
        and any number may become due.
        """
        if not self._is_allowed:
            return
        records = {**self._pods.with_trouble, **self._pods.unplaced}
        pods = [
            (record.pod, self._ledger.share(uid))
            for uid, record in records.items()
            if record.pod is not None
        ]
        now = self._clock.monotonic()
        due = {pod.uid: (pod, why) for pod, why in self._stuck.due(pods, now)}
        self._evictions.keep_only(set(due))
        waiting = {uid: (pod.metadata.namespace,) for uid, (pod, _) in due.items()}
        resting = {uid for uid, (pod, _) in due.items() if not self._evictions.may_ask(pod)}
        for uid in self._tries.choose(waiting, 1, now, resting):
            await self._evict(*due[uid])

    async def _evict(self, pod: Pod, why: str) -> None:
        if not await self._evictions.ask(pod, why):
            return
        if why == LIMIT_MISSING:
            self._failing_nodes.unlimited(pod.uid, self._clock.monotonic())
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        log.warning("pod evicted", extra={**about, "why": why})
        self._notice(pod, EVENT, _text(pod, why))


def _text(pod: Pod, why: str) -> str:
    if why == NO_DECISION:
        return (
            f"evicted: it was bound to node {pod.node} without a decision on a GPU, so no "
            f"container of it that requests GPU memory can start: create it without spec.nodeName, "
            f"for a kube-scheduler that uses the gpushare extender"
        )
    condition = pod.condition(CONDITION_CARD_USABLE)
    detail = condition.message if condition is not None else ""
    return f"evicted, so that a new pod gets a usable GPU: {why}: {detail}"
