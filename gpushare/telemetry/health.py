"""The pages that both programs have: /healthz, /readyz, /metrics and /version."""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Sequence
from importlib import metadata
from typing import Final

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    disable_created_metrics,
    generate_latest,
)

# Rendering the metrics uses at most a quarter of the program's time, however many callers ask.
_REST: Final = 3

# Prometheus detects counter resets without a _created series for each counter.
disable_created_metrics()  # type: ignore[no-untyped-call]

WhyNotReady = Callable[[], Sequence[str]]
Remarks = Callable[[], Sequence[str]]
MoreMetrics = Callable[[], Awaitable[bytes]]


def version() -> str:
    return metadata.version("gpushare")


async def nothing() -> bytes:
    return b""


def add_pages(
    app: web.Application,
    why_not_ready: WhyNotReady,
    more_metrics: MoreMetrics = nothing,
    remarks: Remarks = tuple,
) -> None:
    """Add the four pages; ``why_not_ready`` returns reasons, and no reason means ready.

    ``more_metrics`` renders metrics that take too long to collect in one step. ``remarks`` are also
    listed by /readyz, but do not change its status.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = why_not_ready()
        lines = [*(reasons or ("ok",)), *(f"to be set right: {each}" for each in remarks())]
        return web.Response(status=503 if reasons else 200, text="\n".join(lines) + "\n")

    rendering = _Rendering(more_metrics)

    async def metrics(_: web.Request) -> web.Response:
        content_type = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=await rendering.next(), headers=content_type)

    async def show_version(_: web.Request) -> web.Response:
        return web.json_response({"version": version(), "python": platform.python_version()})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/version", show_version)


class _Rendering:
    """Renders the metrics, once for all callers that wait, and then rests."""

    def __init__(self, more_metrics: MoreMetrics) -> None:
        self._more_metrics = more_metrics
        self._waiting: asyncio.Task[bytes] | None = None
        self._rested_at = 0.0

    async def next(self) -> bytes:
        """Return the metrics as they are after this call."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._render())
        return await asyncio.shield(self._waiting)  # for the other callers

    async def _render(self) -> bytes:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._rested_at - loop.time())
        self._waiting, began = None, loop.time()
        try:
            return generate_latest(REGISTRY) + await self._more_metrics()
        finally:
            ended = loop.time()
            self._rested_at = ended + _REST * (ended - began)
