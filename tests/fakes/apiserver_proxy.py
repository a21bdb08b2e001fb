"""A proxy in front of the real API server that injects faults.

It ends TLS with its own certificate and forwards requests with their credentials. A fault affects
a number of matching requests, or all until it is removed.
"""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from localcluster.wait import patient
from tests.fakes.certificates import certificate

_PASSED_ON = ("Authorization", "Content-Type", "Accept")
_PASSED_BACK = ("Content-Type", "Retry-After")
_BODY = 256 * 2**20
_LINE = 4 * 2**20
_ANSWERS = {
    "409": (409, "Conflict", {}),
    "410": (410, "Expired", {}),
    "429": (429, "TooManyRequests", {"Retry-After": "1"}),
    "500": (500, "InternalError", {}),
    "503": (503, "ServiceUnavailable", {}),
}


class Kind(StrEnum):
    """What happens to a request or, from WATCH_ERROR on, to an open watch."""

    CONFLICT = "409"
    GONE = "410"
    TOO_MANY = "429"  # with Retry-After: 1
    INTERNAL = "500"
    UNAVAILABLE = "503"
    HANG = "hang"  # never reaches the API server
    RESET = "reset"  # the same, and the connection is cut
    LOST = "lost"  # done, and the connection is cut instead of an answer
    UNANSWERED = "unanswered"  # done, and no answer comes
    LATE = "late"  # reaches the API server after ``seconds``, whether somebody waits or not
    WATCH_ERROR = "watch error 410"
    WATCH_CUT = "watch cut in a line"
    WATCH_SILENT = "watch silent"


_OF_OPEN_WATCHES = frozenset({Kind.WATCH_ERROR, Kind.WATCH_CUT, Kind.WATCH_SILENT})


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    is_watch: bool


def binds(asked: Asked) -> bool:
    return asked.method == "POST" and asked.path.endswith("/binding")


def reads_pod(asked: Asked) -> bool:
    return asked.method == "GET" and "/pods/" in asked.path


def lists(asked: Asked) -> bool:
    return asked.method == "GET" and asked.path in _COLLECTIONS and not asked.is_watch


def watches(asked: Asked) -> bool:
    return asked.path in _COLLECTIONS and asked.is_watch


_COLLECTIONS = ("/api/v1/pods", "/api/v1/nodes")


@dataclass
class Fault:
    """Affects ``times`` requests, None for all; ``met`` counts them."""

    kind: Kind
    matches: Callable[[Asked], bool]
    times: int | None = 1
    seconds: float = 0.0
    met: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_spent(self) -> bool:
        return self.times is not None and self.met >= self.times


class Proxy:
    """Runs in a thread from ``__enter__`` to ``__exit__``; any other thread adds faults."""

    def __init__(
        self, server: str, authority: Path, folder: Path, *, address: str = "127.0.0.1"
    ) -> None:
        self._server, self._address = server, address
        self._context = ssl.create_default_context(cafile=str(authority))
        self.authority = certificate(folder, "steered-apiserver", address=address)
        self.port = 0
        self._faults: list[Fault] = []
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(patient(10))
        if self._problem is not None or not self.port:
            raise RuntimeError("the proxy did not start") from self._problem
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(patient(10))

    @property
    def url(self) -> str:
        return f"https://{self._address}:{self.port}"

    def fault(
        self,
        kind: Kind,
        matches: Callable[[Asked], bool],
        *,
        times: int | None = 1,
        seconds: float = 0.0,
    ) -> Fault:
        """Add a fault for the next matching requests; earlier faults come first."""
        made = Fault(kind, matches, times, seconds)
        self._faults.append(made)
        return made

    def heal(self) -> None:
        """Remove all faults; hanging requests are cut, late ones still arrive."""
        faults, self._faults = self._faults, []

        def let_go() -> None:
            for each in faults:
                each.over.set()

        self._loop.call_soon_threadsafe(let_go)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as problem:  # noqa: BLE001 - raised by __enter__
            self._problem = problem
        finally:
            self._ready.set()
            left = asyncio.all_tasks(self._loop)
            for each in left:
                each.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    async def _serve(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority, self.authority.with_suffix(".key"))
        connector = aiohttp.TCPConnector(limit=0, ssl=self._context)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=_LINE
        ) as self._session:
            app = web.Application(client_max_size=_BODY)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, self._address, 0, ssl_context=context).start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def _take(self, asked: Asked, *, is_open: bool = False) -> Fault | None:
        for each in self._faults:
            fits = is_open == (each.kind in _OF_OPEN_WATCHES)
            if fits and not each.is_spent and each.matches(asked):
                each.met += 1
                return each
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.path, "watch" in request.query)
        sent = await request.read()
        fault = self._take(asked)
        if fault is not None and fault.kind in _ANSWERS:
            code, reason, made = _ANSWERS[fault.kind]
            return web.json_response(_status(code, reason), status=code, headers=made)
        if fault is not None and fault.kind in {Kind.HANG, Kind.RESET}:
            if fault.kind is Kind.HANG:
                await fault.over.wait()
            return _cut(request)
        if fault is not None and fault.kind is Kind.LATE:
            await asyncio.sleep(fault.seconds)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers["Accept-Encoding"] = "identity"
        url = self._server + request.raw_path
        try:
            async with self._session.request(
                request.method, url, data=sent, headers=headers
            ) as found:
                if asked.is_watch and found.status == web.HTTPOk.status_code:
                    return await self._pass_watch(request, asked, found)
                body = await found.read()
                back = {name: found.headers[name] for name in _PASSED_BACK if name in found.headers}
        except aiohttp.ClientError:
            return _cut(request)
        if fault is not None and fault.kind in {Kind.LOST, Kind.UNANSWERED}:
            if fault.kind is Kind.UNANSWERED:
                await fault.over.wait()
            return _cut(request)
        return web.Response(status=found.status, body=body, headers=back)

    async def _pass_watch(
        self, request: web.Request, asked: Asked, found: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        with suppress(ConnectionError, aiohttp.ClientError):
            while line := await found.content.readline():
                fault = self._take(asked, is_open=True)
                match fault.kind if fault is not None else None:
                    case Kind.WATCH_ERROR:
                        event = {"type": "ERROR", "object": _status(410, "Expired")}
                        await answer.write(json.dumps(event).encode() + b"\n")
                        break
                    case Kind.WATCH_CUT:
                        await answer.write(line[: len(line) // 2])
                        return _cut(request)
                    case Kind.WATCH_SILENT:
                        assert fault is not None
                        await fault.over.wait()
                        return _cut(request)
                    case _:
                        await answer.write(line)
            await answer.write_eof()
        return answer


def _status(code: int, reason: str) -> dict[str, Any]:
    text = "made up by the tests' proxy"
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": text}


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
