"""Finds overbooked GPUs and evicts one pod at a time until each fits again."""

import asyncio
import logging
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.cluster_state import ClusterState
from extender.eviction.rules import BoundPod, to_evict
from extender.eviction.stuck_pods import EVENT, Evictions
from extender.metrics.counters import EVICTIONS
from extender.watch.events import Notice
from gpushare.clock import Clock
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 1.0
SURE_SECONDS: Final = 2.0  # the watch may be about to show the end of another pod
REASON: Final = "CardOverbooked"
EVICTIONS.labels(REASON)  # starts at 0: Prometheus misses an increase from nothing to 1


class OverbookedEvictor:
    """Checks the nodes that have changed since the last check, and those with a pod to evict."""

    def __init__(self, state: ClusterState, kube: Writer, notice: Notice, clock: Clock) -> None:
        self._state, self._notice, self._clock = state, notice, clock
        self._checked_at = 0
        self._over_since: dict[str, float] = {}
        self._evictions = Evictions(kube, clock)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Evict one pod at most; the next check sees what that has changed."""
        now, ledger = self._clock.monotonic(), self._state.ledger
        changed = ledger.changes.since(self._checked_at)
        self._checked_at = ledger.changes.now
        nodes = dict.fromkeys(self._over_since)
        nodes |= dict.fromkeys(ledger.nodes() if changed is None else changed)
        due = {node: pod for node in nodes if (pod := self._due(node)) is not None}
        self._over_since = {node: self._over_since.get(node, now) for node in due}
        self._evictions.keep_only({pod.uid for pod in due.values()})
        for node, pod in due.items():
            is_sure = now - self._over_since[node] >= SURE_SECONDS
            if is_sure and self._evictions.may_ask(pod):
                await self._evict(pod, node)
                return

    def _due(self, node: str) -> Pod | None:
        account = self._state.ledger.account(node)
        for entry in account.cards if account is not None else ():
            if entry.used <= entry.card.units:
                continue
            shares = [s for s in self._state.ledger.shares(node) if entry.card.uuid in s.cards]
            pods = ((self._state.pod(share.pod_uid), share.units) for share in shares)
            holders = [BoundPod(pod, units) for pod, units in pods if pod is not None]
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
