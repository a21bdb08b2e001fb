"""Streams of changes to the live pages of all viewers, each at the pace of its receiver.

Nothing is queued. A slow receiver gets fewer events, with the state at the time they are sent; one
that accepts nothing for too long is disconnected.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

from extender.decisions.cluster_state import ClusterState
from extender.metrics.counters import VIEWERS
from extender.page.cluster_feed import ClusterFeed
from extender.server.authorization import PERMIT, Denied
from extender.server.paths import CHANGES, NAMESPACE_CHANGES
from gpushare.contract import EXTENDER_PREFIX
from gpushare.live_page.feed import HEADERS, HEARTBEAT, NEVER, last_event
from gpushare.live_page.history import History
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

UPDATE_SECONDS: Final = 0.25
HEARTBEAT_SECONDS: Final = 15.0
REVIEW_SECONDS: Final = 15.0  # between two checks of the viewer's right; answers are cached
SEND_SECONDS: Final = 10.0  # for an event, before a receiver that does not accept it is dropped
STOP_SECONDS: Final = 1.0


class _Right:
    """Checks a viewer's right again every REVIEW_SECONDS; ``permit`` is None if none is needed."""

    def __init__(self, permit: Callable[[], Awaitable[object]] | None) -> None:
        self._permit = permit
        self._checked_at = asyncio.get_running_loop().time()

    async def check(self) -> None:
        """Raise Denied if the viewer does not have the right now, or that is not known."""
        now = asyncio.get_running_loop().time()
        if self._permit is not None and now - self._checked_at >= REVIEW_SECONDS:
            await self._permit()
            self._checked_at = now


class ChangeStreams:
    """Updates one feed for all viewers, and only while there are any."""

    def __init__(
        self, state: ClusterState, leads: Callable[[], bool], history: History, *, usage: bool
    ) -> None:
        self._state, self._leads, self._history, self._usage = state, leads, history, usage
        self._feed: ClusterFeed | None = None
        self._updated_at = 0.0
        self._updating, self._sending = asyncio.Lock(), asyncio.Lock()
        self._stopping = asyncio.Event()
        self._open: dict[asyncio.Task[None], asyncio.Transport | None] = {}

    def add_to(self, app: web.Application) -> None:
        add, path = app.router.add_get, f"{EXTENDER_PREFIX}/{CHANGES}"
        add(path, self._handle, name=CHANGES, allow_head=False)
        path += "/{namespace}"
        add(path, self._handle, name=NAMESPACE_CHANGES, allow_head=False)
        app.on_shutdown.append(self._stop)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=HEADERS)
        await response.prepare(request)
        task = asyncio.create_task(self._stream(request, response))
        self._open[task] = request.transport
        VIEWERS.inc()
        try:
            await task
        except Exception as err:
            if not isinstance(err, ConnectionError | TimeoutError):
                log.exception("the live page failed")
            if request.transport is not None:
                request.transport.abort()
        finally:
            task.cancel()
            del self._open[task]
            VIEWERS.dec()
            if not self._open:
                self._feed = None
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse) -> None:
        why = "the extender is shutting down"
        try:
            await self._tell(request, response)
        except Denied as err:
            why = str(err)
        await self._send(response, last_event(why))
        await response.write_eof()

    async def _tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send what changes until the extender stops; raise Denied if the right is revoked."""
        loop = asyncio.get_running_loop()
        seen, sampled = NEVER, 0
        sent_at = loop.time()
        right, only = _Right(request.get(PERMIT)), request.match_info.get("namespace", "")
        while not self._stopping.is_set():
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the viewer hung up")
            await right.check()
            feed = await self._updated()
            revision = feed.revision
            for event in feed.events(seen, only):
                await right.check()  # a slow receiver may take minutes for all of them
                await self._send(response, event)
                sent_at = loop.time()
            seen = revision
            if sampled != self._history.count:
                sampled = self._history.count
                await self._send(response, self._history.event())
            if loop.time() - sent_at >= HEARTBEAT_SECONDS:
                await self._send(response, HEARTBEAT)
                sent_at = loop.time()
            with suppress(TimeoutError):
                async with asyncio.timeout(UPDATE_SECONDS):
                    await self._stopping.wait()

    async def _updated(self) -> ClusterFeed:
        """Return the feed, at most UPDATE_SECONDS old."""
        loop = asyncio.get_running_loop()
        async with self._updating:
            if self._feed is None:
                self._feed = ClusterFeed(self._state, self._leads, usage=self._usage)
                self._updated_at = -UPDATE_SECONDS
            if loop.time() - self._updated_at >= UPDATE_SECONDS:
                await in_slices(self._feed.update())
                self._updated_at = loop.time()
            return self._feed

    async def _send(self, response: web.StreamResponse, event: bytes) -> None:
        """Send one event; everything else gets a turn since the last event to any viewer."""
        async with self._sending:
            await asyncio.sleep(0)
        async with asyncio.timeout(SEND_SECONDS):
            await response.write(event)

    async def _stop(self, _app: web.Application) -> None:
        """End all streams: the shutdown would wait for them until its time limit."""
        self._stopping.set()
        if not self._open:
            return
        _, slow = await asyncio.wait(list(self._open), timeout=STOP_SECONDS)
        for task in slow:
            transport = self._open.get(task)
            if transport is not None:
                transport.abort()
