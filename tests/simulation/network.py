"""The network between a replica and the API server, in place of ``aiohttp.ClientSession``.

The real client uses it, and so handles statuses, time limits and lost answers as in production.
"""

import asyncio
from dataclasses import dataclass, replace
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, Final, Self

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol

from gpushare.errors import ApiError
from tests.simulation.apiserver import (
    Answer,
    ApiServer,
    Request,
    bookmark,
    event_lines,
    refusal,
    selector_of,
)
from tests.simulation.faults import Fault, Faults
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import Machine
from tests.simulation.store import Store, server_time
from tests.simulation.trace import Trace

# bind.UNACKNOWLEDGED_SECONDS and the second until the kernel sends again: nothing is delivered
# later than that.
DELIVERED_SECONDS: Final = 3.0
AGAIN_SECONDS: Final = 0.25  # a cut connection is tried again
BOOKMARK_SECONDS: Final = 30.0
STOPPED_SECONDS: Final = (0.5, 3.0, 7.0, 10.0, 12.0, 15.0)  # another leads 9 s later, or more
WINDOWS: Final = (5.0, 20.0, 290.0)  # after which the server ends a watch
LINE_BYTES: Final = 2**21


@dataclass
class Services:
    """What all replicas' links share."""

    loop: VirtualLoop
    store: Store
    server: ApiServer
    faults: Faults
    trace: Trace


class Link:
    """One replica's link to the API server; ``is_cut`` while nothing passes.

    ``is_silent`` while its open watches bring nothing and seem to work.
    """

    def __init__(self, services: Services, machine: Machine) -> None:
        self.is_cut = self.is_silent = False
        self.machine = machine
        self._services, self._loop = services, services.loop
        self._faults, self._rng = services.faults, services.faults.rng

    async def request(
        self,
        method: str,
        url: object,
        *,
        data: aiohttp.BytesPayload | None = None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own signature
        **_: object,
    ) -> "Response":
        async with asyncio.timeout(timeout.total):
            return await self._exchange(method, str(url), data, timeout)

    async def _exchange(
        self,
        method: str,
        url: str,
        data: aiohttp.BytesPayload | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own signature
    ) -> "Response":
        request = Request.of(method, url, data._value if data is not None else b"", self._name)
        fault = self._faults.of(request)
        self._say(request, f"sends{f', fault: {fault}' if fault else ''}")
        await asyncio.sleep(self._rng.uniform(0, 0.002))
        if fault == "stopped before sending":
            self.stop_for(self._rng.choice(STOPPED_SECONDS))
            await asyncio.sleep(0)  # on waking this continues before any time limit is checked
        if fault == "no connection":
            raise no_connection()
        if data is not None:
            try:
                await data.write_with_length(Nowhere(), None)
            except ApiError as err:
                # As aiohttp's ClientRequest.write_bytes.
                raise aiohttp.ClientConnectionError("Failed to send bytes") from err
        answered: asyncio.Future[Response] = self._loop.create_future()
        if fault != "request lost":
            late = self._rng.uniform(0, DELIVERED_SECONDS - 0.1)
            delay = late if fault == "request late" else self._delay()
            self._loop.after(delay, self._arrive, request, fault, self._loop.now, answered)
        async with asyncio.timeout(timeout.sock_connect if timeout.total is None else None):
            return await answered

    def _arrive(
        self, request: Request, fault: Fault, sent_at: float, answered: asyncio.Future["Response"]
    ) -> None:
        if self.is_cut:
            if self._loop.now - sent_at + AGAIN_SECONDS < DELIVERED_SECONDS:
                self._loop.after(AGAIN_SECONDS, self._arrive, request, fault, sent_at, answered)
            return
        slow = request.seconds if fault == "server slow" else 0.0
        working = min(request.seconds, self._rng.uniform(0.0005, 0.01) + self._rng.random() * slow)
        self._loop.after(working, self._work, request, fault, answered)

    def _work(self, request: Request, fault: Fault, answered: asyncio.Future["Response"]) -> None:
        services = self._services
        if fault == "failed, not done":
            answer = refusal(self._rng.choice((500, 503, 504)), "InternalError", "no leader")
        elif fault == "throttled":
            answer = refusal(429, "TooManyRequests", **{"Retry-After": "1"})
        elif fault == "conflict":
            answer = refusal(409, "Conflict", "the object has been modified")
        elif request.is_watch:
            answer = services.server.why_no_watch(request) or Answer()
        else:
            answer = services.server.answer(request)
            if fault == "failed, done":
                answer = refusal(500, "InternalError", "etcdserver: request timed out")
        self._say(request, f"is answered {answer.status}{f', {fault}' if fault else ''}")
        date = format_datetime(server_time(self._loop.now), usegmt=True)
        answer = replace(answer, headers={"Date": date, **answer.headers})
        if fault != "answer lost":
            self._loop.after(self._delay(), self._bring, request, answer, answered, 0)

    def _bring(
        self, request: Request, answer: Answer, answered: asyncio.Future["Response"], tries: int
    ) -> None:
        if self.is_cut and tries * AGAIN_SECONDS < DELIVERED_SECONDS:
            self._loop.after(AGAIN_SECONDS, self._bring, request, answer, answered, tries + 1)
        elif not (self.is_cut or answered.done()):
            response = Response(answer, self._loop)
            if request.is_watch and answer.status == 200:
                _Watch(self, self._services, request, response.content)
            else:
                response.content.feed_eof()
            answered.set_result(response)

    def stop_for(self, seconds: float) -> None:
        """Stop the process between two steps, as SIGSTOP does."""
        if self.machine.state != "runs":
            return
        self.machine.state = "stopped"
        self._services.trace.say(self._name, f"the process is stopped for {seconds} s")
        self._loop.after(seconds, self.go_on)

    def go_on(self) -> None:
        """Continue the process, unless it was killed."""
        if self.machine.state == "stopped":
            self._services.trace.say(self._name, "the process goes on")
            self._loop.resume(self.machine)

    def _delay(self) -> float:
        return self._rng.uniform(0.0005, 0.01)

    @property
    def _name(self) -> str:
        return self.machine.name

    def _say(self, request: Request, what: str) -> None:
        if self._services.trace.is_kept:
            words = request.path.rsplit("/", 3)[-3:]
            self._services.trace.say(self._name, f"{request.method} {'/'.join(words)} {what}")


class Response:
    """Replace ``aiohttp.ClientResponse``; the body is a real stream."""

    def __init__(self, answer: Answer, loop: VirtualLoop) -> None:
        self.status, self.headers = answer.status, answer.headers
        self.content = aiohttp.StreamReader(Unpaused(loop), LINE_BYTES, loop=loop)
        self.content.feed_data(answer.body)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.content.is_eof():
            self.content.feed_eof()


class _Watch:
    """Write changes into a stream, in order and with a delay."""

    def __init__(
        self, link: Link, services: Services, request: Request, stream: aiohttp.StreamReader
    ) -> None:
        self._link, self._services, self._stream = link, services, stream
        self._kind = request.path.rsplit("/", 1)[1]
        self._selector = selector_of(request)
        self._version = int(request.query["resourceVersion"])
        faults = services.faults
        self._lag = faults.rng.choice(faults.lags)
        self._is_due = False
        window = min(float(request.query["timeoutSeconds"]), faults.rng.choice(WINDOWS))
        self._ends_at = services.loop.now + window
        services.store.listeners.append(self._changed)
        services.loop.after(BOOKMARK_SECONDS, self._bookmark)
        services.loop.after(window, self._changed)
        self._changed()

    def _changed(self, _: object = None) -> None:
        if not self._is_due:
            self._is_due = True
            lag = self._services.faults.rng.uniform(0.0005, self._lag)
            self._services.loop.after(lag, self._bring)

    def _bring(self) -> None:
        if self._is_over():
            return
        services, stream = self._services, self._stream
        if self._link.is_cut or self._link.is_silent:
            services.loop.after(AGAIN_SECONDS, self._bring)
            return
        self._is_due = False
        changes = services.store.since(self._kind, self._version)
        lines = event_lines(changes, self._selector)
        if changes:
            self._version = changes[-1].version
        if lines and services.faults.cuts_watch():
            data = b"".join(lines)
            stream.feed_data(data[: services.faults.rng.randrange(len(data))])
            self._close()
            stream.set_exception(aiohttp.ClientPayloadError("connection lost"))
            return
        for line in lines:
            stream.feed_data(line)
        if services.loop.now >= self._ends_at:
            self._close()
            stream.feed_eof()

    def _bookmark(self) -> None:
        if self._is_over():
            return
        if not (self._is_due or self._link.is_cut or self._link.is_silent):
            self._version = self._services.store.version
            self._stream.feed_data(bookmark(self._kind, self._version))
        self._services.loop.after(BOOKMARK_SECONDS, self._bookmark)

    def _is_over(self) -> bool:
        if self._link.machine.state == "dead" or self._stream.is_eof():
            self._close()
        return self._changed not in self._services.store.listeners

    def _close(self) -> None:
        if self._changed in self._services.store.listeners:
            self._services.store.listeners.remove(self._changed)


class Unpaused(BaseProtocol):
    """Accept any amount, since no socket is left unread."""

    connected = True

    def pause_reading(self) -> None: ...

    def resume_reading(self, resume_parser: bool = True) -> None: ...


class Nowhere(AbstractStreamWriter):
    """Discard a request's body, which reaches the server directly."""

    async def write(self, chunk: object) -> None: ...

    async def write_eof(self, chunk: bytes = b"") -> None: ...

    async def drain(self) -> None: ...

    def enable_compression(self, encoding: str = "deflate", strategy: Any = None) -> None: ...

    def enable_chunking(self) -> None: ...

    async def write_headers(self, status_line: str, headers: Any) -> None: ...


def no_connection() -> aiohttp.ClientConnectorError:
    key = SimpleNamespace(host="apiserver", port=443, is_ssl=True, ssl=True)
    return aiohttp.ClientConnectorError(key, OSError(111, "Connection refused"))
