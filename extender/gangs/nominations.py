"""Removes the nominated nodes of released pods that have no slot there any more."""

import asyncio
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.gates.patch import no_nomination_patch
from extender.gates.releaser import Outcome, Releaser
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod

EVERY_SECONDS: Final = 0.5
STALE_SECONDS: Final = 2.0  # a new leader plans first


class StaleNominations:
    """kube-scheduler lets no pod of the same or a lower priority use what a nominated pod needs.

    Since 1.35 it keeps a nominated node also if the pod does not fit there.
    """

    def __init__(self, state: ClusterState, releaser: Releaser) -> None:
        self._state, self._releaser = state, releaser
        self._since: dict[str, float] = {}  # by uid
        self._removed: set[str] = set()
        self._retries: Retries[str] = Retries(state.clock)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Remove what has been stale for STALE_SECONDS.

        A pod that is nominated for the same node later was nominated by kube-scheduler.
        """
        now, nominated = self._state.clock.monotonic(), self._state.nominated
        stale = {uid: pod for uid, pod in nominated.items() if self._is_stale(pod)}
        self._since = {uid: self._since.get(uid, now) for uid in stale}
        self._retries.keep_only(stale)
        self._removed = {uid for uid in self._removed if self._is_known(uid)}
        due = [
            pod
            for uid, pod in stale.items()
            if now - self._since[uid] >= STALE_SECONDS
            and uid not in self._removed
            and self._retries.is_ready(uid)
        ]
        await asyncio.gather(*map(self._remove, due))

    async def _remove(self, pod: Pod) -> None:
        outcome = await self._releaser.nominate(pod, no_nomination_patch(pod))
        is_done = outcome in {Outcome.RELEASED, Outcome.GONE}
        self._retries.tried(pod.uid, landed=is_done)
        if is_done:
            self._removed.add(pod.uid)

    def _is_stale(self, pod: Pod) -> bool:
        slot = self._state.ledger.slot_of(pod.uid)
        return slot is None or slot.node != pod.status.nominated_node_name

    def _is_known(self, uid: str) -> bool:
        return self._state.pod(uid) is not None or self._state.groups.of(uid) is not None
