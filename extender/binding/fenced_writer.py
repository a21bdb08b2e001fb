"""The one way in which the extender writes: nothing is begun that might end after its lease."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from extender.metrics.counters import WRITES_HELD_BACK
from gpushare.clock import Clock
from gpushare.errors import NotLeading, OutcomeUnknown
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

SIDE_SECONDS: Final = 2.0  # evictions and events


class Writer:
    """Stands where ``Kube`` stands for what reads and writes; raises NotLeading in its place.

    ``ends_at``: by ``clock``, when every write of this process must have ended. It is asked when a
    write begins, never remembered: the process may have slept since.
    """

    def __init__(self, kube: Kube, clock: Clock, ends_at: Callable[[], float]) -> None:
        self._kube, self._clock, self._ends_at = kube, clock, ends_at
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._may_land_until = -math.inf

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """A consistent read, whoever leads."""
        return await self._kube.get_pod(namespace, name)

    async def bind_pod(
        self, pod: Pod, node: str, annotations: Mapping[str, str], *, seconds: float
    ) -> None:
        what = f"binding of {pod.key}"
        async with self._write(seconds, what):
            # Between here and the socket there are tasks and handshakes, and the process may sleep.
            await self._kube.bind_pod(
                pod,
                node,
                annotations,
                seconds=seconds,
                may_go=lambda: self._check(seconds, what),
            )

    async def evict_pod(self, pod: Pod) -> None:
        async with self._write(SIDE_SECONDS, f"eviction of {pod.key}"):
            await self._kube.evict_pod(pod, seconds=SIDE_SECONDS)

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        async with self._write(SIDE_SECONDS, "event"):
            await self._kube.create_event(namespace, event, seconds=SIDE_SECONDS)

    async def quiet(self) -> None:
        """Return once no write is under way and none may land any more.

        To be called when no new one can begin: no lease, or about to be let go of.
        """
        await self._idle.wait()
        await asyncio.sleep(max(0.0, self._may_land_until - self._clock.monotonic()))

    def _check(self, seconds: float, what: str) -> float:
        """Return what time it is; raise NotLeading where a write would be begun too late."""
        now = self._clock.monotonic()
        if now + seconds > self._ends_at():
            WRITES_HELD_BACK.inc()
            raise NotLeading(
                f"{what} was not begun: it may last {seconds:g} s, and this replica's lease ends "
                "before that"
            )
        return now

    @asynccontextmanager
    async def _write(self, seconds: float, what: str) -> AsyncIterator[None]:
        begun = self._check(seconds, what)
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        except (OutcomeUnknown, asyncio.CancelledError):
            self._may_land_until = max(self._may_land_until, begun + seconds)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
            if (late := self._clock.monotonic() - begun - seconds) > 1:
                # Asleep in the middle of it: what was sent on waking may have come too late.
                log.warning("a write took longer than it may", extra={"what": what, "late": late})
