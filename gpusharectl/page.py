"""``gpushare page``: serve an extender's live page on this machine, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final

import aiohttp
import click
from aiohttp import hdrs, web

from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import ApiError
from gpushare.http_server.requests import problem
from gpushare.kube.client import Kube
from gpushare.live_page import feed, origin
from gpushare.live_page.files import PAGE
from gpusharectl import loopback
from gpusharectl.reach.extender import Extender, NoExtender, extender
from gpusharectl.reach.namespace import in_namespace
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.rights import Lacking
from gpusharectl.terminal.page_options import browse_option, port_option
from gpusharectl.terminal.say import say

PAGES: Final = (
    PAGE,
    f"{PAGE}/{{file:.+}}",
    f"{EXTENDER_PREFIX}/{feed.PATH}",
    f"{EXTENDER_PREFIX}/{feed.PATH}/{{namespace}}",
    f"{EXTENDER_PREFIX}/usage",
    f"{EXTENDER_PREFIX}/usage/{{namespace}}",
    f"{EXTENDER_PREFIX}/explain/{{namespace}}/{{pod}}",
)
NOT_ENCRYPTED: Final = (
    "tokens are sent only with TLS: start gpushare page with --server https://..."
)
# By these the extender recognizes requests that other sites' pages cause.
_PASSED: Final = (hdrs.ORIGIN, origin.SITE, origin.MODE, origin.DESTINATION)
# The body is passed on decompressed.
_NOT_KEPT: Final = frozenset(
    {"transfer-encoding", "content-encoding", "content-length", "connection", "date"}
)


@click.command("page")
@port_option
@browse_option
@in_namespace("Show the pods of this namespace, and of others only how much they use.")
@asks_an_extender
async def page(target: Target, *, port: int, browse: bool, namespace: str | None) -> None:
    """Show every GPU and the Pending pods live in a browser.

    With --namespace, a token of an account that may list the pods of that namespace suffices.
    """
    async with target.connect() as kube, AsyncExitStack() as stack:
        upstream = _Upstream(target, kube, stack)
        try:
            await upstream.get()
        except Lacking as err:
            raise NoExtender(err.without_extender, code=err.code) from err
        async with served(upstream, port) as bare:
            url = f"{bare}#only={namespace}" if namespace else bare
            say(f"{url}\nPress Ctrl-C to end.")
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

    async def pass_on(request: web.Request) -> web.StreamResponse:
        if not {".", ".."}.isdisjoint(request.path.split("/")):  # it would be another page
            return problem(HTTPStatus.NOT_FOUND, "page not found")
        return await _pass_on(request, upstream)

    app = web.Application()
    for each in PAGES:
        app.router.add_get(each, pass_on, allow_head=False)
    async with loopback.served(app, port, name="page") as url:
        yield url + PAGE


async def _pass_on(request: web.Request, upstream: _Upstream) -> web.StreamResponse:
    passed = {name: request.headers[name] for name in _PASSED if name in request.headers}
    response: web.StreamResponse | None = None
    found = None
    try:
        found = await upstream.get()
        if hdrs.AUTHORIZATION in request.headers:  # a token that was entered on the page
            if not found.is_encrypted:
                return problem(HTTPStatus.UNAUTHORIZED, NOT_ENCRYPTED)
            passed[hdrs.AUTHORIZATION] = request.headers[hdrs.AUTHORIZATION]
        path = "/" + request.path_qs.split("/", 2)[2]  # the extender does not learn the secret
        async with found.opened(path, passed) as answer:
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
            why = str(err) if found is None else found.silence(err)
            return problem(HTTPStatus.BAD_GATEWAY, why)
        if request.transport is not None:
            request.transport.close()  # the page notices the end, and asks again
    return response
