"""Looks for cards that were given away twice, and mends them one pod at a time."""

import asyncio
import logging
from typing import Final

from extender.cluster import Cluster
from extender.evict import EVENT
from extender.metrics import EVICTIONS
from extender.notices import Notice
from extender.overbooked import Holder, to_evict
from extender.writer import Writer
from gpushare.clock import Clock
from gpushare.errors import ApiError, NotFound
from gpushare.kube.retries import Retries
from gpushare.objects import Pod

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 1.0
SURE_SECONDS: Final = 2.0  # the end of another pod may be just behind in the watch
REASON: Final = "CardOverbooked"


class Mender:
    """Only nodes are looked at on which a pod's share has changed since they were last in order."""

    def __init__(self, cluster: Cluster, kube: Writer, notice: Notice, clock: Clock) -> None:
        self._cluster, self._kube, self._notice, self._clock = cluster, kube, notice, clock
        self._over_since: dict[str, float] = {}
        self._retries: Retries[str] = Retries(clock, 2.0, 60.0)
        self._asked: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Evict one pod at most; the next look sees what that has changed."""
        now = self._clock.monotonic()
        nodes = self._over_since.keys() | self._cluster.touched_nodes
        self._cluster.touched_nodes.clear()
        due = {node: pod for node in nodes if (pod := self._due(node)) is not None}
        self._over_since = {node: self._over_since.get(node, now) for node in due}
        uids = {pod.uid for pod in due.values()}
        self._asked &= uids
        self._retries.keep_only(uids)
        for node, pod in due.items():
            is_sure = now - self._over_since[node] >= SURE_SECONDS
            if is_sure and pod.uid not in self._asked and self._retries.is_ready(pod.uid):
                self._retries.tried(pod.uid, landed=await self._evict(pod, node))
                return

    def _due(self, node: str) -> Pod | None:
        account = self._cluster.ledger.account(node)
        for entry in account.cards if account is not None else ():
            if entry.used <= entry.card.units:
                continue
            shares = [s for s in self._cluster.ledger.shares(node) if entry.card.uuid in s.cards]
            pods = ((self._cluster.pod(share.pod_uid), share.units) for share in shares)
            holders = [Holder(pod, units) for pod, units in pods if pod is not None]
            if (pod := to_evict(entry.card.uuid, entry.card.units, holders)) is not None:
                return pod
        return None

    async def _evict(self, pod: Pod, node: str) -> bool:
        """Whether nothing is left to be tried. Just this pod as it was seen: not one that runs."""
        try:
            await self._kube.evict_pod(pod)
        except NotFound:
            log.info("pod is gone already", extra={"pod": pod.key})
        except ApiError as err:
            log.warning("pod not evicted yet", extra={"pod": pod.key, "why": str(err)})
            return False
        else:
            EVICTIONS.labels(REASON).inc()
            log.error(
                "a GPU was given away twice, the newest pod goes",
                extra={"pod": pod.key, "uid": pod.uid, "node": node},
            )
            text = f"evicted before it started: its GPU of node {node} was given away twice"
            self._notice(pod, EVENT, text)
        self._asked.add(pod.uid)
        return True
