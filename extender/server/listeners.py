"""Serves an application on a listener, with limits on connections and TLS handshakes."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from extender.metrics.counters import REFUSED_CONNECTIONS
from extender.server.eviction import OpenConnection, choose
from extender.server.handshakes import MAX_PER_UNTRUSTED, PACE_SECONDS, Handshakes
from gpushare.errors import SettingsError
from gpushare.process.lifetime import cancel
from gpushare.telemetry.health import BACKLOG

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0  # kube-scheduler does not wait longer for any response
LINGER_SECONDS: Final = 1.0  # for the rest of a rejected body
HANDSHAKE_SECONDS: Final = 10.0  # including the wait for a turn
UNTRUSTED_SECONDS: Final = 3.0  # from the turn on, for an untrusted address
ACCEPTED_AT_ONCE: Final = 64
ACCEPT_AGAIN_SECONDS: Final = 1.0  # once files or memory are exhausted
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# kube-scheduler opens a connection for each bind in progress, and closes an idle one after 90 s: if
# the extender closed it first, the next call could fail.
DECIDING_CONNECTIONS: Final = 2000
DECIDING_IDLE_SECONDS: Final = 95.0
READING_CONNECTIONS: Final = 100
READING_IDLE_SECONDS: Final = 15.0
# A TLS connection takes 0.3 MB, from the turn of its handshake: together with everything else that
# must stay below the memory limit of the manifests. Another replica keeps 80 open.
REPLICA_CONNECTIONS: Final = 1000
# The API server shows no certificate, so its address stays untrusted.
ADMISSION_HANDSHAKES: Final = 64
ADMISSION_FIRST_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Listener:
    """``idle_seconds`` also limits the time for the head of a request.

    With TLS, ``first_seconds`` limits it for the first one, from the turn of the handshake on, and
    ``handshakes`` in progress are allowed for one untrusted address.
    """

    name: str
    host: str
    port: int
    connections: int
    idle_seconds: float
    context: ssl.SSLContext | None = None
    first_seconds: float | None = None
    handshakes: int = MAX_PER_UNTRUSTED


@asynccontextmanager
async def serve_app(listener: Listener, app: web.Application) -> AsyncIterator[None]:
    """Serve one application while the context lasts; raise SettingsError if the address fails.

    At the end, requests in progress have STOP_SECONDS. A full listener with TLS closes an idle
    connection of the busiest address for one of another address.
    """
    pacer = _Pacer(listener.handshakes)
    requests = _Requests()
    if listener.context is not None:
        app.middlewares.insert(0, requests.observe)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=STOP_SECONDS,
        keepalive_timeout=listener.idle_seconds,
        lingering_time=LINGER_SECONDS,
        logger=log,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - setup() has made it
    room = _Room(listener, server, pacer, requests)
    try:
        if listener.context is None:
            accepting = _accept_plain(listener, server, room)
        else:
            accepting = _accept_tls(listener, server, room, pacer, requests)
        async with accepting:
            yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _accept_plain(
    listener: Listener, server: web.Server, room: "_Room"
) -> AsyncIterator[None]:
    def connection() -> asyncio.Protocol:
        if room.is_full():
            REFUSED_CONNECTIONS.labels(listener.name).inc()
            return _Rejected()
        return server()

    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(connection, sock=each, backlog=BACKLOG)
        for each in await _listening_sockets(listener)
    ]
    try:
        yield
    finally:
        for each in servers:
            each.close()


@asynccontextmanager
async def _accept_tls(
    listener: Listener,
    server: web.Server,
    room: "_Room",
    pacer: "_Pacer",
    requests: "_Requests",
) -> AsyncIterator[None]:
    def protocol() -> web.RequestHandler:
        made = server()
        requests.expect(made, listener.first_seconds)
        return made

    def begin(connection: socket.socket, address: str) -> None:
        _Handshake(connection, address, listener, protocol, pacer).begin(room)

    acceptors = [_Acceptor(each, begin) for each in await _listening_sockets(listener)]
    pacing = asyncio.create_task(pacer.run())
    try:
        yield
    finally:
        for acceptor in acceptors:
            acceptor.close()
        for handshake in list(pacer.tasks.values()):
            handshake.drop()
        await cancel([pacing, *pacer.tasks])


async def _listening_sockets(listener: Listener) -> list[socket.socket]:
    """Return one for each address of the listener's host; raise SettingsError if one fails."""
    loop, made = asyncio.get_running_loop(), list[socket.socket]()
    try:
        found = await loop.getaddrinfo(
            listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys((each[0], each[4]) for each in found))
        for number, (family, address) in enumerate(addresses, 1):
            try:
                made.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as err:
                # A name such as localhost may have an address of a family that is turned off.
                is_off = err.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
                if not is_off or (number == len(addresses) and not made):
                    raise
    except OSError as err:
        for each in made:
            each.close()
        where = f"{listener.host}:{listener.port}"
        raise SettingsError(f"cannot listen on {where}: {err.strerror or err}") from err
    return made


class _Acceptor:
    """Calls ``begin`` with each connection of a listening socket, and the caller's address."""

    def __init__(
        self, listening: socket.socket, begin: Callable[[socket.socket, str], None]
    ) -> None:
        self._listening, self._begin = listening, begin
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._start()

    def close(self) -> None:
        self._stop()
        if self._again is not None:
            self._again.cancel()
        self._listening.close()

    def _start(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _stop(self) -> None:
        self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as err:
                if err.errno not in _EXHAUSTED:
                    continue  # of the one connection
                log.warning("cannot accept a connection", extra={"why": str(err)})
                self._stop()
                self._again = self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._start)
                return
            connection.setblocking(False)
            self._begin(connection, str(peer[0]))


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


class _Requests:
    """Knows which connections have a request in progress, and which never had one."""

    def __init__(self) -> None:
        self._in_progress: set[object] = set()
        self._silent: set[object] = set()

    @property
    def observe(self) -> Middleware:
        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._silent.discard(connection)
            self._in_progress.add(connection)
            try:
                return await handler(request)
            finally:
                self._in_progress.discard(connection)

        return observe

    def expect(self, protocol: web.RequestHandler, seconds: float | None) -> None:
        """Close the connection unless it has a request within ``seconds``, handshake included."""
        if seconds is None:
            return
        self._silent.add(protocol)

        def end() -> None:
            if protocol in self._silent:
                self._silent.discard(protocol)
                _abort(protocol)

        asyncio.get_running_loop().call_later(seconds, end)

    def connections(self, server: web.Server) -> Iterator[OpenConnection]:
        """Return the established connections, the oldest first."""
        for each in server.connections:
            if each.transport is not None and not each.transport.is_closing():
                address = str(each.transport.get_extra_info("peername", ("",))[0])
                yield OpenConnection(address, each not in self._in_progress, partial(_abort, each))


def _abort(protocol: web.RequestHandler) -> None:
    if protocol.transport is not None:
        protocol.transport.abort()  # close() would wait for the client


class _Room:
    """Counts the connections of a listener; a full one may close an idle one for another."""

    def __init__(
        self, listener: Listener, server: web.Server, pacer: "_Pacer", requests: _Requests
    ) -> None:
        self._listener, self._server = listener, server
        self._pacer, self._requests = pacer, requests

    def is_full(self) -> bool:
        used = len(self._server.connections) + len(self._pacer.in_progress())
        return used >= self._listener.connections

    def make(self, address: str) -> bool:
        """Return whether one more connection of the address fits; close another one if needed."""
        if not self.is_full():
            return True
        established = self._requests.connections(self._server)
        closed = choose(address, [*established, *self._pacer.connections()])
        if closed is not None:
            REFUSED_CONNECTIONS.labels(self._listener.name).inc()
            closed.close()
        return closed is not None


class _Pacer:
    """Starts handshakes, the untrusted ones at a steady pace."""

    def __init__(self, max_per_untrusted: int) -> None:
        self.handshakes: Handshakes[_Handshake] = Handshakes(max_per_untrusted)
        self.tasks: dict[asyncio.Task[None], _Handshake] = {}
        self._queued = asyncio.Event()

    def in_progress(self) -> list["_Handshake"]:
        """Return the handshakes whose connection the server does not have yet."""
        return [each for each in self.tasks.values() if not each.is_established]

    def connections(self) -> Iterator[OpenConnection]:
        """Return the connections whose handshake is in progress, the oldest first."""
        for each in self.in_progress():
            if not each.is_dropped:
                yield OpenConnection(each.address, is_idle=True, close=partial(self._close, each))

    def _close(self, handshake: "_Handshake") -> None:
        self.handshakes.remove(handshake.address, handshake, is_trusted=False)
        handshake.drop()

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


class _Handshake:
    """A connection until its TLS handshake has ended; nothing is read from it before its turn.

    A server with its own TLS context reports a connection only after the handshake: clients that
    never finish one could not be counted or rejected.
    """

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        listener: Listener,
        then: Callable[[], web.RequestHandler],
        pacer: _Pacer,
    ) -> None:
        self.address = address
        self.is_dropped = False
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listener, self._then, self._pacer = listener, then, pacer
        self._connection = connection
        self._protocol: web.RequestHandler | None = None  # from its turn on
        self._task: asyncio.Task[None] | None = None

    @property
    def is_established(self) -> bool:
        return self._protocol is not None and self._protocol.transport is not None

    def begin(self, room: "_Room") -> None:
        """Begin to wait for a turn, or close a connection: this one or one with less right."""
        if not room.make(self.address):
            rejected: _Handshake | None = self
        else:
            admission = self._pacer.handshakes.admit(self.address, self)
            rejected = admission.dropped if admission.is_admitted else self
        if rejected is not None:
            REFUSED_CONNECTIONS.labels(self._listener.name).inc()
            rejected.drop()
        if rejected is self:
            return
        self._task = asyncio.create_task(self._run())
        self._pacer.tasks[self._task] = self
        self._task.add_done_callback(self._pacer.tasks.pop)

    def drop(self) -> None:
        self.is_dropped = True
        self._close()  # a task that is cancelled before it began would not
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        context, handshakes = self._listener.context, self._pacer.handshakes
        assert context is not None  # noqa: S101 - there is no handshake without one
        is_done = False
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._pacer.wait_for_turn(self.address, self)
                seconds = None if handshakes.is_trusted(self.address) else UNTRUSTED_SECONDS
                self._protocol = protocol = self._then()
                async with asyncio.timeout(seconds):
                    await asyncio.get_running_loop().connect_accepted_socket(
                        lambda: protocol, self._connection, ssl=context
                    )
            is_done = True
        except OSError as err:  # ssl.SSLError and TimeoutError are subclasses
            log.debug("TLS handshake failed", extra={"why": repr(err)})
        finally:
            self._close()  # also when the listener closes in the meantime
            is_trusted = is_done and context.verify_mode == ssl.CERT_REQUIRED
            handshakes.remove(self.address, self, is_trusted=is_trusted)

    def _close(self) -> None:
        if self._protocol is None:  # later the event loop closes it
            self._connection.close()
