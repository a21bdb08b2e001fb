"""Evicts pods whose decision cannot be kept, so that their owners' next ones get another."""

import asyncio
import logging
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.eviction.stuck import Patience
from extender.metrics.counters import EVICTIONS
from extender.watch.cluster import Cluster
from extender.watch.notices import Notice
from gpushare.clock import Clock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.errors import ApiError, NotFound
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVENT: Final = "GpushareEvicted"
EVERY_SECONDS: Final = 1.0


class Evictions:
    """Asks for the end of pods, each until the API server grants it or the pod is gone."""

    def __init__(self, kube: Writer, clock: Clock) -> None:
        self._kube = kube
        self._retries: Retries[str] = Retries(clock, 2.0, 60.0)
        self._asked: set[str] = set()

    def keep_only(self, uids: set[str]) -> None:
        """Forget all pods but these: no others are to go any more."""
        self._asked &= uids
        self._retries.keep_only(uids)

    def may_ask(self, pod: Pod) -> bool:
        """Whether nothing was reached yet for this pod, and it was not tried just now."""
        return pod.uid not in self._asked and self._retries.is_ready(pod.uid)

    async def ask(self, pod: Pod, why: str) -> bool:
        """Whether it was evicted by this: just this pod as it was seen, not one that runs."""
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        is_evicted = False
        try:
            await self._kube.evict_pod(pod)
        except NotFound:
            log.info("pod is gone already", extra=about)
        except ApiError as err:
            # 429: a PodDisruptionBudget; 409: it is not what the watch has shown any more, and may
            # run by now.
            log.warning("pod not evicted yet", extra={**about, "why": str(err)})
            self._retries.tried(pod.uid, landed=False)
            return False
        else:
            EVICTIONS.labels(why).inc()
            is_evicted = True
        self._retries.tried(pod.uid, landed=True)
        self._asked.add(pod.uid)
        return is_evicted


class Evictor:
    """One eviction a round at most: a node whose cards all die must be no stampede.

    ``after_seconds``: how long a reason that may pass is waited for; 0 means never to evict.
    """

    def __init__(
        self, cluster: Cluster, kube: Writer, notice: Notice, clock: Clock, *, after_seconds: float
    ) -> None:
        self._cluster, self._notice, self._clock = cluster, notice, clock
        self._is_allowed = after_seconds > 0
        self._patience = Patience(after_seconds)
        self._evictions = Evictions(kube, clock)

    async def run(self) -> None:
        """Until cancelled."""
        while self._is_allowed:
            await asyncio.sleep(EVERY_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Evict the first pod that is due and was not tried just now."""
        if not self._is_allowed:
            return
        due = self._patience.due(self._cluster.in_trouble.values(), self._clock.monotonic())
        self._evictions.keep_only({pod.uid for pod, _ in due})
        for pod, why in due:
            if self._evictions.may_ask(pod):
                await self._evict(pod, why)
                return

    async def _evict(self, pod: Pod, why: str) -> None:
        if not await self._evictions.ask(pod, why):
            return
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        log.warning("pod evicted", extra={**about, "why": why})
        condition = pod.condition(CONDITION_CARD_USABLE)
        said = condition.message if condition is not None else ""
        self._notice(
            pod, EVENT, f"evicted, so that a new pod gets a GPU that can be used: {why}: {said}"
        )
