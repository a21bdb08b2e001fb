"""Serve the pages that both programs have: /healthz, /readyz, /metrics and /version."""

import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Final

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    disable_created_metrics,
    generate_latest,
)

from gpushare.errors import SettingsError

# kube-scheduler keeps two idle connections to a host and opens a new one for each further bind. If
# the queue is full, its kernel retries only after a second.
BACKLOG: Final = 1024

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

    async def metrics(_: web.Request) -> web.Response:
        content_type = {"Content-Type": CONTENT_TYPE_LATEST}
        more = await more_metrics()
        return web.Response(body=generate_latest(REGISTRY) + more, headers=content_type)

    async def show_version(_: web.Request) -> web.Response:
        return web.json_response({"version": version(), "python": platform.python_version()})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/version", show_version)


@asynccontextmanager
async def serve(
    app: web.Application, host: str, port: int, *, stop_seconds: float = 60.0
) -> AsyncIterator[None]:
    """Serve ``app`` while the context lasts; raise SettingsError if the address cannot be used.

    At the end, running requests and idle clients have ``stop_seconds`` to finish.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=stop_seconds)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        except OSError as err:
            raise SettingsError(f"cannot listen on {host}:{port}: {err.strerror or err}") from err
        yield
    finally:
        await runner.cleanup()
