"""Finds out what became of reservations whose write ended without an answer."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from extender.binding.binder import Binder
from extender.binding.fenced_writer import Writer
from extender.binding.timing import OVERDUE_SECONDS, READ_SECONDS, WRITE_SECONDS
from extender.decisions.cluster_state import ClusterState
from gpushare.clock import Clock
from gpushare.errors import ApiError, NotFound
from gpushare.ledger.accounts import Reserve
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 1.0


class Reconciler:
    """Releases a reservation only if consistent reads show that its pod is not bound, or deleted.

    "Not bound" takes two reads, as far apart as a write may last: an API server that was paused
    answers the first one while it still handles what had reached it before. A read during which
    another attempt begins proves nothing about that attempt.

    A bound pod keeps its reservation until the watch shows the pod: shares come only from the
    watch, so that none is ever counted from an older state. ``watch_is_behind`` is called if the
    watch has not shown the pod for OVERDUE_SECONDS.
    """

    def __init__(
        self,
        state: ClusterState,
        binder: Binder,
        kube: Writer,
        clock: Clock,
        *,
        watch_is_behind: Callable[[], None] = lambda: None,
    ) -> None:
        self._state, self._binder, self._kube, self._clock = state, binder, kube, clock
        self._watch_is_behind = watch_is_behind
        self._seen_at: dict[Reserve, float] = {}
        self._unbound_at: dict[Reserve, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.settle()

    async def settle(self) -> None:
        now = self._clock.monotonic()
        held = dict.fromkeys(self._state.ledger.reserves())  # a set's order is not the same twice
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
        if self._state.ledger.reserve_of(reserve.pod_uid, reserve.node) != reserve:
            return
        if why:
            self._let_go(reserve, why)
        elif is_bound:
            self._watch_is_behind()

    def _why_free(self, reserve: Reserve, pod: Pod) -> str:
        """Return why the pod, just read, cannot need its reservation; empty if it may need it."""
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
        self._state.ledger.release(reserve.pod_uid, reserve.node)
        self._state.freed["reserve"] += 1
        extra = {"node": reserve.node, "what": "reserve", "owner": reserve.pod_uid}
        log.info("units became free", extra=extra)


def _fields(reserve: Reserve) -> dict[str, str]:
    name = f"{reserve.namespace}/{reserve.name}"
    return {"pod": name, "uid": reserve.pod_uid, "node": reserve.node}
