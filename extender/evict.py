"""Evicts pods whose decision cannot be kept, so that their owners' next ones get another."""

import asyncio
import logging
from typing import Final

from extender.cluster import Cluster
from extender.metrics import EVICTIONS
from extender.notices import Notice
from extender.stuck import Patience
from extender.writer import Writer
from gpushare.clock import Clock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.errors import ApiError, NotFound
from gpushare.kube.retries import Retries
from gpushare.objects import Pod

log = logging.getLogger(__name__)

EVENT: Final = "GpushareEvicted"
EVERY_SECONDS: Final = 1.0


class Evictor:
    """One eviction a round at most: a node whose cards all die must be no stampede.

    ``after_seconds``: how long a reason that may pass is waited for; 0 means never to evict.
    """

    def __init__(
        self, cluster: Cluster, kube: Writer, notice: Notice, clock: Clock, *, after_seconds: float
    ) -> None:
        self._cluster, self._kube, self._notice, self._clock = cluster, kube, notice, clock
        self._is_allowed = after_seconds > 0
        self._patience = Patience(after_seconds)
        self._retries: Retries[str] = Retries(clock, 2.0, 60.0)
        self._asked: set[str] = set()

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
        uids = {pod.uid for pod, _ in due}
        self._asked &= uids
        self._retries.keep_only(uids)
        for pod, why in due:
            if pod.uid not in self._asked and self._retries.is_ready(pod.uid):
                self._retries.tried(pod.uid, landed=await self._evict(pod, why))
                return

    async def _evict(self, pod: Pod, why: str) -> bool:
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        try:
            await self._kube.evict_pod(pod)
        except NotFound:
            log.info("pod is gone already", extra=about)
        except ApiError as err:
            # 429: a PodDisruptionBudget; 409: it is not what the watch has shown any more, and may
            # run by now.
            log.warning("pod not evicted yet", extra={**about, "why": str(err)})
            return False
        else:
            EVICTIONS.labels(why).inc()
            log.warning("pod evicted", extra={**about, "why": why})
            condition = pod.condition(CONDITION_CARD_USABLE)
            said = condition.message if condition is not None else ""
            self._notice(
                pod, EVENT, f"evicted, so that a new pod gets a GPU that can be used: {why}: {said}"
            )
        self._asked.add(pod.uid)
        return True
