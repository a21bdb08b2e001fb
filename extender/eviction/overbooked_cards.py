"""Looks for cards that were given away twice, and mends them one pod at a time."""

import asyncio
import logging
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.eviction.overbooked import Holder, to_evict
from extender.eviction.stuck_pods import EVENT, Evictions
from extender.metrics.counters import EVICTIONS
from extender.watch.cluster import Cluster
from extender.watch.notices import Notice
from gpushare.clock import Clock
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 1.0
SURE_SECONDS: Final = 2.0  # the end of another pod may be just behind in the watch
REASON: Final = "CardOverbooked"
EVICTIONS.labels(REASON)  # from 0: what begins at 1 is no increase to Prometheus


class Mender:
    """Only nodes are looked at on which a pod's share has changed since they were last in order."""

    def __init__(self, cluster: Cluster, kube: Writer, notice: Notice, clock: Clock) -> None:
        self._cluster, self._notice, self._clock = cluster, notice, clock
        self._over_since: dict[str, float] = {}
        self._evictions = Evictions(kube, clock)

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
        self._evictions.keep_only({pod.uid for pod in due.values()})
        for node, pod in due.items():
            is_sure = now - self._over_since[node] >= SURE_SECONDS
            if is_sure and self._evictions.may_ask(pod):
                await self._evict(pod, node)
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

    async def _evict(self, pod: Pod, node: str) -> None:
        if not await self._evictions.ask(pod, REASON):
            return
        log.error(
            "a GPU was given away twice, the newest pod goes",
            extra={"pod": pod.key, "uid": pod.uid, "node": node},
        )
        text = f"evicted before it started: its GPU of node {node} was given away twice"
        self._notice(pod, EVENT, text)
