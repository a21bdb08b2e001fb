"""What became of reserves whose outcome nobody has told us, and the ledger's own audit."""

import asyncio
import logging
from typing import Final

from extender.bind import WRITE_SECONDS, Binder
from extender.cluster import Cluster
from gpushare.clock import Clock
from gpushare.errors import ApiError, NotFound
from gpushare.kube.client import Kube
from gpushare.ledger import Reserve

log = logging.getLogger(__name__)

# A bound pod shows in our watch within milliseconds; ask only about what is overdue.
OVERDUE_SECONDS: Final = 5.0
EVERY_SECONDS: Final = 1.0
COMPARE_SECONDS: Final = 30.0


_Key = tuple[str, str]  # pod uid and node


class Reconciler:
    """Lets a reserve go only when consistent reads show that its pod is not bound, or gone.

    Not bound takes two reads, as far apart as a write may last: an API server that was paused
    answers the first one while it still works on what had reached it before.
    A pod that is bound keeps its reserve until the watch shows it: the watch is the one way in
    which shares come, so none is ever counted from a state that is older than another.
    """

    def __init__(self, cluster: Cluster, binder: Binder, kube: Kube, clock: Clock) -> None:
        self._cluster, self._binder, self._kube, self._clock = cluster, binder, kube, clock
        self._seen_at: dict[_Key, float] = {}
        self._unbound_at: dict[_Key, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        compared_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.settle()
            if self._clock.monotonic() - compared_at >= COMPARE_SECONDS:
                self._cluster.compare()
                compared_at = self._clock.monotonic()

    async def settle(self) -> None:
        """Look once at every overdue reserve."""
        now = self._clock.monotonic()
        held = {(r.pod_uid, r.node): r for r in self._cluster.ledger.reserves()}
        self._seen_at = {key: self._seen_at.get(key, now) for key in held}
        self._unbound_at = {k: at for k, at in self._unbound_at.items() if k in held}
        for key, reserve in held.items():
            if now - self._seen_at[key] >= OVERDUE_SECONDS and not self._binder.is_open(reserve):
                await self._settle_one(key, reserve)

    async def _settle_one(self, key: _Key, reserve: Reserve) -> None:
        try:
            pod = await self._kube.get_pod(reserve.namespace, reserve.name)
        except NotFound:
            self._let_go(reserve, "pod is gone")
            return
        except ApiError as err:
            log.info("reserve stays", extra={"uid": reserve.pod_uid, "why": str(err)})
            return
        now = self._clock.monotonic()
        if pod.uid != reserve.pod_uid:
            self._let_go(reserve, "pod was replaced")
        elif pod.node or self._binder.is_open(reserve):
            self._unbound_at.pop(key, None)
        elif now - self._unbound_at.setdefault(key, now) >= WRITE_SECONDS:
            self._let_go(reserve, "pod is not bound")

    def _let_go(self, reserve: Reserve, why: str) -> None:
        log.warning(
            "reserve released",
            extra={"uid": reserve.pod_uid, "node": reserve.node, "why": why},
        )
        self._cluster.ledger.release(reserve.pod_uid, reserve.node)
