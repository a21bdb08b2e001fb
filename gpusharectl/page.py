"""``gpushare page``: serve an extender's live page on this machine, and nothing else."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final

import aiohttp
import click
from aiohttp import hdrs, web

from gpushare.contract import EXTENDER_PORT, EXTENDER_PREFIX
from gpushare.errors import ApiError, SettingsError
from gpushare.kube.client import Kube
from gpusharectl.reach.extender import Extender, extender
from gpusharectl.reach.options import Target, asks_an_extender

HOST: Final = "127.0.0.1"
PAGE: Final = f"{EXTENDER_PREFIX}/page"
PAGES: Final = (
    PAGE,
    f"{PAGE}/{{file}}",
    f"{EXTENDER_PREFIX}/changes",
    f"{EXTENDER_PREFIX}/explain/{{namespace}}/{{pod}}",
)
# By these the extender recognizes requests that other sites' pages cause.
_PASSED: Final = (hdrs.ORIGIN, "Sec-Fetch-Site", "Sec-Fetch-Mode")
_NOT_KEPT: Final = frozenset({"transfer-encoding", "content-length", "connection", "date"})
_END_SECONDS: Final = 1.0


@click.command("page")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=EXTENDER_PORT,
    show_default=True,
    help="Port on this machine's loopback interface; 0 for any free one.",
)
@click.option("-b", "--browse", is_flag=True, help="Open the page in the browser.")
@asks_an_extender
async def page(target: Target, *, port: int, browse: bool) -> None:
    """Show every GPU and the Pending pods live in a browser."""
    async with target.connect() as kube, AsyncExitStack() as stack:
        upstream = _Upstream(target, kube, stack)
        await upstream.get()
        async with served(upstream, port) as url:
            click.echo(f"{url}\nPress Ctrl-C to end.")
            if browse:
                click.launch(url)
            with suppress(asyncio.CancelledError):  # Ctrl-C
                await asyncio.Event().wait()


class _Upstream:
    """Connects to an extender, and to another one if it no longer answers."""

    def __init__(self, target: Target, kube: Kube, stack: AsyncExitStack) -> None:
        self._target, self._kube, self._stack = target, kube, stack
        self._found: Extender | None = None
        self._finding = asyncio.Lock()

    async def get(self) -> Extender:
        """Return an extender that answers; ApiError if none does."""
        async with self._finding:
            if self._found is None:
                await self._stack.aclose()
                found = extender(self._target, self._kube)
                self._found = await self._stack.enter_async_context(found)
            return self._found

    def lost(self, found: Extender) -> None:
        """Forget an extender that does not answer; ``get`` finds another one."""
        if self._found is found:
            self._found = None


@asynccontextmanager
async def served(upstream: _Upstream, port: int) -> AsyncIterator[str]:
    """Serve the page while the context lasts; yield its URL."""
    with _listening(port) as listening:
        port = listening.getsockname()[1]
        own = frozenset({f"{HOST}:{port}", f"localhost:{port}"})

        async def pass_on(request: web.Request) -> web.StreamResponse:
            if request.headers.get(hdrs.HOST) not in own:
                return _problem(HTTPStatus.MISDIRECTED_REQUEST, f"use {HOST}:{port}")
            if not {".", ".."}.isdisjoint(request.path.split("/")):  # it would be another page
                return _problem(HTTPStatus.NOT_FOUND, "page not found")
            return await _pass_on(request, upstream)

        app = web.Application()
        for each in PAGES:
            app.router.add_get(each, pass_on, allow_head=False)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_SECONDS)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield f"http://{HOST}:{port}{PAGE}"
        finally:
            await runner.cleanup()


def _listening(port: int) -> socket.socket:
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
    except OSError as err:
        made.close()
        text = f"cannot listen on port {port} of {HOST} ({err.strerror})"
        raise SettingsError(f"{text}: use --port for another one") from err
    return made


async def _pass_on(request: web.Request, upstream: _Upstream) -> web.StreamResponse:
    passed = {name: request.headers[name] for name in _PASSED if name in request.headers}
    response: web.StreamResponse | None = None
    found = None
    try:
        found = await upstream.get()
        async with found.opened(request.path_qs, passed) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _NOT_KEPT}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
    except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as err:
        if response is None:
            if found is not None:
                upstream.lost(found)
            return _problem(HTTPStatus.BAD_GATEWAY, str(err) or "the extender does not answer")
        if request.transport is not None:
            request.transport.close()  # the page notices the end, and asks again
    return response


def _problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text}, status=status)
