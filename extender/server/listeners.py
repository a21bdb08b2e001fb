"""Serves an application on a listener, with limits on connections and TLS handshakes."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from extender.metrics.counters import REFUSED_CONNECTIONS
from extender.server.handshakes import PACE_SECONDS, Handshakes
from gpushare.errors import SettingsError
from gpushare.process.lifetime import cancel
from gpushare.telemetry.health import BACKLOG

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0  # kube-scheduler does not wait longer for any response
LINGER_SECONDS: Final = 1.0  # for the rest of a rejected body
HANDSHAKE_SECONDS: Final = 10.0  # including the wait for a turn
UNTRUSTED_SECONDS: Final = 3.0  # from the turn on, for an untrusted address
# kube-scheduler opens a connection for each bind in progress, and closes an idle one after 90 s: if
# the extender closed it first, the next call could fail.
DECIDING_CONNECTIONS: Final = 2000
DECIDING_IDLE_SECONDS: Final = 95.0
READING_CONNECTIONS: Final = 100
READING_IDLE_SECONDS: Final = 15.0
# Python keeps 0.3 MB for a TLS connection, from its first byte: together with everything else that
# must stay below the memory limit of the manifests. Another replica keeps 80 open.
REPLICA_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Listener:
    """``idle_seconds`` also limits the time for the head of a request."""

    name: str
    host: str
    port: int
    connections: int
    idle_seconds: float
    context: ssl.SSLContext | None = None


@asynccontextmanager
async def serve_app(listener: Listener, app: web.Application) -> AsyncIterator[None]:
    """Serve one application while the context lasts; raise SettingsError if the address fails.

    At the end, requests in progress have STOP_SECONDS.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=STOP_SECONDS,
        keepalive_timeout=listener.idle_seconds,
        lingering_time=LINGER_SECONDS,
        logger=log,
    )
    await runner.setup()
    sockets: asyncio.Server | None = None
    pacer = _Pacer()
    pacing = asyncio.create_task(pacer.run())
    try:
        server = runner.server
        assert server is not None  # noqa: S101 - setup() has made it

        def connection() -> asyncio.Protocol:
            if len(server.connections) + len(pacer.tasks) >= listener.connections:
                REFUSED_CONNECTIONS.labels(listener.name).inc()
                return _Rejected()
            return server() if listener.context is None else _Handshake(listener, server, pacer)

        try:
            sockets = await asyncio.get_running_loop().create_server(
                connection, listener.host, listener.port, backlog=BACKLOG
            )
        except OSError as err:
            where = f"{listener.host}:{listener.port}"
            raise SettingsError(f"cannot listen on {where}: {err.strerror or err}") from err
        yield
    finally:
        if sockets is not None:
            sockets.close()
        await cancel([pacing, *pacer.tasks])
        await runner.cleanup()


class _WithoutCallersErrors(logging.Filter):
    """Drops the server's stack traces about invalid HTTP and callers that hang up."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = record.exc_info[1] if record.exc_info else None
        return not isinstance(
            found, HttpProcessingError | web.RequestPayloadError | ConnectionError
        )


log.addFilter(_WithoutCallersErrors())


class _Rejected(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Pacer:
    """Starts handshakes, the untrusted ones at a steady pace."""

    def __init__(self) -> None:
        self.handshakes: Handshakes[_Handshake] = Handshakes()
        self.tasks: set[asyncio.Task[None]] = set()
        self._queued = asyncio.Event()

    async def wait_for_turn(self, address: str, handshake: "_Handshake") -> None:
        if not self.handshakes.is_trusted(address):
            self.handshakes.queue(address, handshake)
            self._queued.set()
            await handshake.turn

    async def run(self) -> None:
        while True:
            handshake = self.handshakes.next()
            if handshake is None:
                self._queued.clear()
                await self._queued.wait()
            elif not handshake.turn.done():  # not cancelled in the meantime
                handshake.turn.set_result(None)
                await asyncio.sleep(PACE_SECONDS)


class _Handshake(asyncio.Protocol):
    """Upgrades a connection to TLS, then passes it to the protocol that ``then`` makes.

    A server with its own TLS context reports a connection only after the handshake: clients that
    never finish one could not be counted or rejected.
    """

    def __init__(
        self, listener: Listener, then: Callable[[], asyncio.Protocol], pacer: _Pacer
    ) -> None:
        self._listener, self._then, self._pacer = listener, then, pacer
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream
        address = str(transport.get_extra_info("peername", ("",))[0])
        self._transport = transport
        admission = self._pacer.handshakes.admit(address, self)
        rejected = admission.dropped if admission.is_admitted else self
        if rejected is not None:
            REFUSED_CONNECTIONS.labels(self._listener.name).inc()
            rejected.drop()
        if rejected is self:
            return
        transport.pause_reading()
        self._task = asyncio.create_task(self._handshake(transport, address))
        self._pacer.tasks.add(self._task)
        self._task.add_done_callback(self._pacer.tasks.discard)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()  # a task that is cancelled before it began would not
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._early.append(data)  # arrived with the last part of the handshake

    def eof_received(self) -> None:
        self._is_closed = True

    def connection_lost(self, _: Exception | None) -> None:
        self._is_closed = True

    async def _handshake(self, transport: asyncio.Transport, address: str) -> None:
        context, secured, handshakes = self._listener.context, None, self._pacer.handshakes
        assert context is not None  # noqa: S101 - there is no handshake without one
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._pacer.wait_for_turn(address, self)
                seconds = None if handshakes.is_trusted(address) else UNTRUSTED_SECONDS
                async with asyncio.timeout(seconds):
                    secured = await asyncio.get_running_loop().start_tls(
                        transport, self, context, server_side=True
                    )
        except OSError as err:  # ssl.SSLError and TimeoutError are subclasses
            log.debug("TLS handshake failed", extra={"why": repr(err)})
            return
        finally:
            if secured is None:  # also when the listener closes in the meantime
                transport.abort()
            is_trusted = secured is not None and context.verify_mode == ssl.CERT_REQUIRED
            handshakes.remove(address, self, is_trusted=is_trusted)
        if secured is None or self._is_closed:
            transport.close()
            return
        protocol = self._then()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        for data in self._early:
            protocol.data_received(data)
