"""Serves an application on a listener, with limits on connections, heads, bodies and receivers.

Every listener of the extender, the device plugin and the command line is one of these. Anybody may
reach most of them, and each shares its event loop with what its program is for.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from gpushare.errors import SettingsError
from gpushare.http_server.eviction import OpenConnection, choose
from gpushare.http_server.handshakes import MAX_PER_UNTRUSTED
from gpushare.http_server.requests import guard
from gpushare.http_server.tls_connections import Pacer, begin_handshake
from gpushare.process.lifetime import cancel

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0  # kube-scheduler does not wait longer for any response
# kube-scheduler keeps two idle connections to a host and opens a new one for each further bind. If
# the queue is full, its kernel retries only after a second.
BACKLOG: Final = 1024
LINGER_SECONDS: Final = 1.0  # closing a connection with unread data also resets its response
ACCEPTED_AT_ONCE: Final = 64
ACCEPT_AGAIN_SECONDS: Final = 1.0  # once files or memory are exhausted
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

# Strangers need not learn versions. aiohttp has no setting for this header.
vars(web_response)["SERVER_SOFTWARE"] = "gpushare"


def _ignore(_listener: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Listener:
    """``idle_seconds`` also limits the time for the head of a request.

    With TLS, ``first_seconds`` limits it for the first one, from the turn of the handshake on, and
    ``handshakes`` in progress are allowed for one untrusted address. ``keeps_alive``: whether a
    connection serves more than one request. ``ends_with_caller``: whether a handler is cancelled
    when its caller hangs up. At the end, requests in progress have ``stop_seconds``. ``refused`` is
    called with the listener's name for each connection that is closed for lack of room.
    """

    name: str
    host: str
    port: int
    connections: int
    idle_seconds: float
    context: ssl.SSLContext | None = None
    first_seconds: float | None = None
    handshakes: int = MAX_PER_UNTRUSTED
    keeps_alive: bool = True
    ends_with_caller: bool = False
    stop_seconds: float = STOP_SECONDS
    refused: Callable[[str], None] = _ignore


@asynccontextmanager
async def serve_app(listener: Listener, app: web.Application) -> AsyncIterator[int]:
    """Serve one application while the context lasts; yield the port.

    Raise SettingsError if the address cannot be used. A full listener closes an idle connection of
    the busiest address for one of another address.
    """
    requests = _Requests()
    app.middlewares.insert(0, guard(keeps_alive=listener.keeps_alive))
    app.middlewares.insert(0, requests.observe)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=listener.stop_seconds,
        keepalive_timeout=listener.idle_seconds,
        # The guard rejects compressed bodies. This loop would decompress those that nobody reads.
        auto_decompress=False,
        lingering_time=0,
        handler_cancellation=listener.ends_with_caller,
        logger=log,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - setup() has made it
    try:
        accepting = _accept_plain if listener.context is None else _accept_tls
        async with accepting(listener, server, requests) as port:
            yield port
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _accept_plain(
    listener: Listener, server: web.Server, requests: "_Requests"
) -> AsyncIterator[int]:
    opening: dict[asyncio.Task[None], tuple[web.RequestHandler, OpenConnection]] = {}

    def not_established() -> list[OpenConnection]:
        return [one for protocol, one in opening.values() if protocol.transport is None]

    room = _Room(listener, server, requests, not_established)

    async def establish(protocol: web.RequestHandler, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # the caller has hung up
            await loop.connect_accepted_socket(lambda: protocol, connection)

    def begin(connection: socket.socket, address: str) -> None:
        if not room.make(address):
            listener.refused(listener.name)
            connection.close()
            return
        protocol = server()
        task = asyncio.create_task(establish(protocol, connection))
        opening[task] = protocol, OpenConnection(address, is_idle=True, close=task.cancel)

        def end(task: asyncio.Task[None]) -> None:
            del opening[task]
            if protocol.transport is None:
                connection.close()

        task.add_done_callback(end)

    try:
        async with _accepting(listener, begin) as port:
            yield port
    finally:
        await cancel(list(opening))


@asynccontextmanager
async def _accept_tls(
    listener: Listener, server: web.Server, requests: "_Requests"
) -> AsyncIterator[int]:
    pacer = Pacer(listener.handshakes)
    room = _Room(listener, server, requests, lambda: list(pacer.connections()))
    context = listener.context
    assert context is not None  # noqa: S101 - it selects this function

    def protocol() -> web.RequestHandler:
        made = server()
        requests.expect(made, listener.first_seconds)
        return made

    def begin(connection: socket.socket, address: str) -> None:
        has_room = room.make(address)
        for _ in begin_handshake(connection, address, context, protocol, pacer, has_room=has_room):
            listener.refused(listener.name)

    async with _accepting(listener, begin) as port, pacer.running():
        yield port


@asynccontextmanager
async def _accepting(
    listener: Listener, begin: Callable[[socket.socket, str], None]
) -> AsyncIterator[int]:
    sockets = await _listening_sockets(listener)
    acceptors = [_Acceptor(each, begin) for each in sockets]
    try:
        yield int(sockets[0].getsockname()[1])
    finally:
        for acceptor in acceptors:
            acceptor.close()


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
    """Calls ``begin`` with each connection of a listening socket, and the caller's address.

    asyncio's own servers try all connections of a full queue again when files are exhausted, and
    log an error for each (python/cpython asyncio/selector_events.py, _accept_connection).
    """

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


class _Requests:
    """Knows which connections have a request in progress, and which never had one."""

    def __init__(self) -> None:
        self._in_progress: dict[object, web.Request] = {}
        self._silent: set[object] = set()

    @property
    def observe(self) -> Middleware:
        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._silent.discard(connection)
            self._in_progress[connection] = request
            try:
                response = await handler(request)
            finally:
                self._in_progress.pop(connection, None)
            transport = request.transport
            if not (request.content.is_eof() or transport is None or transport.is_closing()):
                # Nobody wants the rest of the body. The caller has time to read its answer, which
                # also slows it down: meanwhile it has one connection fewer.
                transport.pause_reading()
                await asyncio.sleep(LINGER_SECONDS)
                transport.abort()  # to close a TLS connection would read until its caller agrees
            return response

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
        """Return the established connections, the oldest first.

        One whose request has not arrived completely is idle: nothing is lost but its caller's time.
        """
        for each in server.connections:
            if each.transport is not None and not each.transport.is_closing():
                address = str(each.transport.get_extra_info("peername", ("",))[0])
                request = self._in_progress.get(each)
                is_idle = request is None or not request.content.is_eof()
                yield OpenConnection(address, is_idle, partial(_abort, each))


def _abort(protocol: web.RequestHandler) -> None:
    if protocol.transport is not None:
        protocol.transport.abort()  # close() would wait for the client


class _Room:
    """Counts the connections of a listener; a full one may close an idle one for another.

    ``opening`` returns the connections that the server does not have yet.
    """

    def __init__(
        self,
        listener: Listener,
        server: web.Server,
        requests: _Requests,
        opening: Callable[[], list[OpenConnection]],
    ) -> None:
        self._listener, self._server, self._requests = listener, server, requests
        self._opening = opening

    def make(self, address: str) -> bool:
        """Return whether one more connection of the address fits; close another one if needed."""
        opening = self._opening()
        if len(self._server.connections) + len(opening) < self._listener.connections:
            return True
        left = [*self._requests.connections(self._server), *opening]
        if len(left) < self._listener.connections:
            return True  # the server still counts those whose callers have just hung up
        closed = choose(address, left)
        if closed is not None:
            self._listener.refused(self._listener.name)
            closed.close()
        return closed is not None
