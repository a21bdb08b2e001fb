"""Serves an application to this user's browser, and to pages of no other site."""

import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from gpushare.errors import SettingsError
from gpushare.http_server.listeners import Listener, serve_app
from gpushare.http_server.requests import problem
from gpushare.live_page.origin import is_of_another_site

HOST: Final = "127.0.0.1"
_CONNECTIONS: Final = 100
_IDLE_SECONDS: Final = 60.0
_END_SECONDS: Final = 1.0


@asynccontextmanager
async def served(app: web.Application, port: int, *, name: str) -> AsyncIterator[str]:
    """Serve ``app`` on loopback while the context lasts; yield the URL of its root, without slash.

    Raise SettingsError if ``port`` is in use.

    The first part of the URL's path is a secret, because every user of the machine reaches the
    port. The handlers of ``app`` find it in ``request.path``.
    Other host names are rejected, because a site could let its name point to 127.0.0.1. Requests
    that a browser sends for another site's page are rejected, except when a link is followed.
    """
    app, secret = _behind_secret(app)
    own = set[str]()

    @web.middleware
    async def reject_others(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get(hdrs.HOST) not in own:
            hosts = " or ".join(sorted(own))
            return problem(HTTPStatus.MISDIRECTED_REQUEST, f"use {hosts}")
        if is_of_another_site(request.method, request.headers):
            return problem(HTTPStatus.FORBIDDEN, "pages of other sites cannot ask here")
        return await handler(request)

    app.middlewares.append(reject_others)
    listener = Listener(
        name, HOST, port, _CONNECTIONS, _IDLE_SECONDS,
        ends_with_caller=True,  # a stream ends with its page, not with its next heartbeat
        stop_seconds=_END_SECONDS,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(serve_app(listener, app))
        except SettingsError as err:
            raise SettingsError(f"{err}: use --port for another one") from err
        own |= {f"{HOST}:{port}", f"localhost:{port}"}
        yield f"http://{HOST}:{port}/{secret}"


def _behind_secret(app: web.Application) -> tuple[web.Application, str]:
    """Return an application that serves ``app`` below a new secret, and that secret."""
    secret = secrets.token_urlsafe()

    @web.middleware
    async def reject_without_secret(request: web.Request, handler: Handler) -> web.StreamResponse:
        first = request.path.removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(first.encode(errors="replace"), secret.encode()):
            return problem(HTTPStatus.FORBIDDEN, "open the URL that gpushare has printed")
        return await handler(request)

    outer = web.Application(middlewares=[reject_without_secret])
    outer.add_subapp(f"/{secret}", app)
    return outer, secret
