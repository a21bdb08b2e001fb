"""A double of the API server over a real socket, for faults that a real one does not produce.

A test states the response to each request, and the double keeps the requests. Lists and watches
follow the API concepts page: a list has a version, a watch starts after one, 410 means list again.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpushare.clock import Clock
from gpushare.kube.client import Kube
from tests.fakes.certificates import certificate

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FrontDoor:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.content_types: list[str] = []
        self.answers: list[Answer] = []
        self.app = web.Application()
        self.app.router.add_route("*", "/{path:.*}", self._handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.method, request.path, dict(request.query), body))
        self.content_types.append(request.content_type)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    @asynccontextmanager
    async def connect(self, folder: Path, clock: Clock | None = None) -> AsyncIterator[Kube]:
        async with TestServer(self.app) as server:
            path = write_kubeconfig(folder, str(server.make_url("")))
            async with Kube.connect(path, clock) as kube:
                yield kube


@asynccontextmanager
async def over_tls(
    folder: Path,
    *,
    users: Path | None = None,
    days: int = 1,
    address: str = "127.0.0.1",
    answer: Answer | None = None,
) -> AsyncIterator[int]:
    """Yield the port of an API server with a certificate of ``folder/authority.crt``.

    ``users`` signs the client certificates that it requires; without ``answer`` it says {} to
    everybody.
    """
    authority = certificate(folder, "authority")
    path = certificate(folder, "server", signed_by=authority, days=days, address=address)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, path.with_suffix(".key"))
    if users is not None:
        context.load_verify_locations(cafile=str(users))
        context.verify_mode = ssl.CERT_REQUIRED
    door = FrontDoor()
    door.answers = [answer or body({})]
    server = TestServer(door.app, scheme="https")
    await server.start_server(ssl=context)
    assert server.port is not None
    try:
        yield server.port
    finally:
        await server.close()


def kubeconfig(server: str, user: object = None, **cluster: str) -> dict[str, object]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def write_kubeconfig(folder: Path, server: str, user: object = None, **cluster: str) -> str:
    """Return the path of the new file."""
    path = folder / "kubeconfig"
    path.write_bytes(msgspec.json.encode(kubeconfig(server, user, **cluster)))
    return str(path)


def status(code: int, reason: str, message: str = "", *, retry_after: str = "") -> Answer:
    headers = {"Retry-After": retry_after} if retry_after else {}

    async def answer(_: web.Request) -> web.Response:
        body = {"kind": "Status", "code": code, "reason": reason, "message": message}
        return web.json_response(body, status=code, headers=headers)

    return answer


def body(found: object) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(found)

    return answer


def text(found: bytes, code: int = 200) -> Answer:
    """Return a raw response, as a proxy before the API server may send it."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=found, status=code)

    return answer


async def hang(_: web.Request) -> web.Response:
    """Accept the request and never respond."""
    await asyncio.Event().wait()
    raise AssertionError


async def reset(request: web.Request) -> web.Response:
    """Accept the request and close the connection."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def watch(*events: dict[str, object], then: Answer | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(msgspec.json.encode(event) + b"\n")
        if then is not None:
            await then(request)
        return response

    return answer
