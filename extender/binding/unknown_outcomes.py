"""What became of reserves whose outcome nobody has told us, and the ledger's own audit."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from extender.binding.binder import READ_SECONDS, WRITE_SECONDS, Binder
from extender.binding.fenced_writer import Writer
from extender.watch.cluster import Cluster
from gpushare.clock import Clock
from gpushare.errors import ApiError, NotFound
from gpushare.ledger.ledger import Reserve
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

# A bound pod shows in our watch within milliseconds; ask only about what is overdue.
OVERDUE_SECONDS: Final = 5.0
EVERY_SECONDS: Final = 1.0
AUDIT_SECONDS: Final = 0.1  # between two slices of a few milliseconds


class Reconciler:
    """Lets a reserve go only when consistent reads show that its pod is not bound, or gone.

    Not bound takes two reads, as far apart as a write may last: an API server that was paused
    answers the first one while it still works on what had reached it before. What is read while
    another attempt begins says nothing about that attempt.

    A pod that is bound keeps its reserve until the watch shows it: the watch is the one way in
    which shares come, so none is ever counted from a state that is older than another. That it has
    not shown it for so long is told to ``watch_is_behind``.
    """

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        kube: Writer,
        clock: Clock,
        *,
        watch_is_behind: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster, self._binder, self._kube, self._clock = cluster, binder, kube, clock
        self._watch_is_behind = watch_is_behind
        self._seen_at: dict[Reserve, float] = {}
        self._unbound_at: dict[Reserve, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.settle()

    async def audit(self) -> None:
        """Compare ledger and pods, a slice at a time, until cancelled."""
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            self._cluster.over.look()
            self._cluster.compare_some()

    async def settle(self) -> None:
        """Look once at every overdue reserve."""
        now = self._clock.monotonic()
        held = dict.fromkeys(self._cluster.ledger.reserves())  # a set's order is not the same twice
        self._seen_at = {reserve: self._seen_at.get(reserve, now) for reserve in held}
        self._unbound_at = {r: at for r, at in self._unbound_at.items() if r in held}
        for reserve in held:
            overdue = now - self._seen_at[reserve] >= OVERDUE_SECONDS
            if overdue and not self._binder.is_open(reserve):
                await self._settle_one(reserve)

    async def _settle_one(self, reserve: Reserve) -> None:
        why, is_bound = "", False
        try:
            async with asyncio.timeout(READ_SECONDS):
                pod = await self._kube.get_pod(reserve.namespace, reserve.name)
        except NotFound:
            why = "pod is gone"
        except (ApiError, TimeoutError) as err:
            log.info("reserve stays", extra={**_fields(reserve), "why": repr(err)})
            return
        else:
            why = self._why_free(reserve, pod)
            is_bound = pod.uid == reserve.pod_uid and bool(pod.node)
        if self._cluster.ledger.reserve_of(reserve.pod_uid, reserve.node) != reserve:
            return
        if why:
            self._let_go(reserve, why)
        elif is_bound:
            self._watch_is_behind()

    def _why_free(self, reserve: Reserve, pod: Pod) -> str:
        """Why a pod that was just read cannot need its reserve any more; empty if it may."""
        if pod.uid != reserve.pod_uid:
            return "pod was replaced"
        if pod.is_terminal:
            return "pod has ended"  # the watch leaves such pods out
        now = self._clock.monotonic()
        if not pod.node and now - self._unbound_at.setdefault(reserve, now) >= WRITE_SECONDS:
            return "pod is not bound"
        return ""

    def _let_go(self, reserve: Reserve, why: str) -> None:
        log.warning("reserve released", extra={**_fields(reserve), "why": why})
        self._cluster.ledger.release(reserve.pod_uid, reserve.node)
        self._cluster.units_freed(reserve.node, "reserve", reserve.pod_uid)


def _fields(reserve: Reserve) -> dict[str, str]:
    name = f"{reserve.namespace}/{reserve.name}"
    return {"pod": name, "uid": reserve.pod_uid, "node": reserve.node}
