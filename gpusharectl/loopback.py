"""Serves an application to this machine's browser, and to pages of no other site."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from gpushare.errors import SettingsError
from gpushare.live_page.origin import is_of_another_site

HOST: Final = "127.0.0.1"
_END_SECONDS: Final = 1.0


@asynccontextmanager
async def served(app: web.Application, port: int) -> AsyncIterator[str]:
    """Serve ``app`` on loopback while the context lasts; yield the URL of its root, without slash.

    Other host names are rejected, because a site could let its name point to 127.0.0.1. Requests
    that a browser sends for another site's page are rejected, except when a link is followed.
    """
    with _listening(port) as listening:
        port = listening.getsockname()[1]
        own = frozenset({f"{HOST}:{port}", f"localhost:{port}"})

        @web.middleware
        async def reject_others(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.headers.get(hdrs.HOST) not in own:
                return problem(HTTPStatus.MISDIRECTED_REQUEST, f"use {HOST}:{port}")
            if is_of_another_site(request.method, request.headers):
                return problem(HTTPStatus.FORBIDDEN, "pages of other sites cannot ask here")
            return await handler(request)

        app.middlewares.append(reject_others)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_END_SECONDS,
            handler_cancellation=True,  # a stream ends with its page, not with its next heartbeat
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield f"http://{HOST}:{port}"
        finally:
            await runner.cleanup()


def problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text}, status=status)


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
