"""Who watches the live page: a stream of changes for each, at his own pace.

Nothing is queued for anybody. Who takes long is told less often, and then what is true by then;
who takes nothing for too long is dropped.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from extender.metrics.counters import VIEWERS
from extender.page.feed import HEARTBEAT, NEVER, Live, ending
from extender.server.authorization import PERMIT, Denied
from extender.server.limits import CHANGES
from extender.watch.cluster import Cluster
from gpushare.contract import EXTENDER_PREFIX
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
HEARTBEAT_SECONDS: Final = 15.0
REVIEW_SECONDS: Final = 15.0  # between two questions whether he still may; answers are remembered
TAKE_SECONDS: Final = 10.0  # for an event, before who does not take it is dropped
END_SECONDS: Final = 1.0
_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Accel-Buffering": "no",  # a proxy before it passes on what comes
}


class Viewers:
    """Looks at the cluster for all who watch together, and only while somebody does."""

    def __init__(self, cluster: Cluster, leads: Callable[[], bool]) -> None:
        self._cluster, self._leads = cluster, leads
        self._live: Live | None = None
        self._looked_at = 0.0
        self._looking, self._turn = asyncio.Lock(), asyncio.Lock()
        self._ending = asyncio.Event()
        self._open: dict[asyncio.Task[None], asyncio.BaseTransport | None] = {}

    def add_to(self, app: web.Application) -> None:
        path = f"{EXTENDER_PREFIX}/{CHANGES}"
        app.router.add_get(path, self._show, name=CHANGES, allow_head=False)
        app.on_shutdown.append(self._end)

    async def _show(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        task = asyncio.create_task(self._stream(request, response))
        self._open[task] = request.transport
        VIEWERS.inc()
        try:
            await task
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        except Exception:
            log.exception("the live page failed")
            if request.transport is not None:
                request.transport.abort()
        finally:
            task.cancel()
            del self._open[task]
            VIEWERS.dec()
            if not self._open:
                self._live = None
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse) -> None:
        loop = asyncio.get_running_loop()
        seen = NEVER
        said_at = reviewed_at = loop.time()
        permit = request.get(PERMIT)
        while not self._ending.is_set():
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("he is gone")
            if permit is not None and loop.time() - reviewed_at >= REVIEW_SECONDS:
                try:
                    await permit.check()
                except Denied as err:
                    await self._say(response, ending(str(err)))
                    break
                reviewed_at = loop.time()
            live = await self._look()
            now = live.now
            for event in live.events(seen):
                await self._say(response, event)
                said_at = loop.time()
            seen = now
            if loop.time() - said_at >= HEARTBEAT_SECONDS:
                await self._say(response, HEARTBEAT)
                said_at = loop.time()
            await self._rest()
        else:
            await self._say(response, ending("the extender ends"))
        await response.write_eof()

    async def _look(self) -> Live:
        """What is known now, or was known LOOK_SECONDS ago."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if self._live is None:
                self._live, self._looked_at = Live(self._cluster, self._leads), -LOOK_SECONDS
            if loop.time() - self._looked_at >= LOOK_SECONDS:
                await in_slices(self._live.look())
                self._looked_at = loop.time()
            return self._live

    async def _say(self, response: web.StreamResponse, event: bytes) -> None:
        """Send one event, when everything else has had a turn since the last one to anybody."""
        async with self._turn:
            await asyncio.sleep(0)
        async with asyncio.timeout(TAKE_SECONDS):
            await response.write(event)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._ending.wait()
        except TimeoutError:
            pass

    async def _end(self, _app: web.Application) -> None:
        """End all streams at once: they would last as long as a stop waits for answers."""
        self._ending.set()
        if not self._open:
            return
        _, slow = await asyncio.wait(list(self._open), timeout=END_SECONDS)
        for task in slow:
            transport = self._open.get(task)
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
