"""Opens the listeners of the configuration, each with its own pages, callers and room."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from extender.metrics.counters import REFUSED_CONNECTIONS
from extender.routes import Routes
from extender.server import tls
from extender.server.authorization import Authorizer, reviewed
from extender.server.browser_origin import addressed
from extender.server.handshakes import PACE_SECONDS, Handshakes
from extender.server.limits import problem
from extender.settings.configuration import Certificate, Listen, Tls, is_loopback
from gpushare.errors import SettingsError
from gpushare.process.lifetime import cancel
from gpushare.telemetry.health import BACKLOG

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0  # kube-scheduler waits no longer for any answer
LINGER_SECONDS: Final = 1.0  # for the rest of a body that was refused
HANDSHAKE_SECONDS: Final = 10.0  # with the wait for a turn
STRANGER_SECONDS: Final = 3.0  # from the turn on, of an address that is not known
# kube-scheduler opens a connection for each bind that runs, and closes an idle one after 90 s:
# were we the first, its next call could meet a closed door.
DECIDING_CONNECTIONS: Final = 2000
DECIDING_IDLE_SECONDS: Final = 95.0
READING_CONNECTIONS: Final = 100
READING_IDLE_SECONDS: Final = 15.0
# Python keeps 0.3 MB for a connection with TLS, from its first byte: with the rest that must stay
# below the memory limit of the manifests. Another replica keeps 80 open.
REPLICA_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Door:
    """``idle_seconds`` is also how long the head of a request may take."""

    name: str
    host: str
    port: int
    connections: int
    idle_seconds: float
    context: ssl.SSLContext | None = None


@asynccontextmanager
async def serve(
    listen: Listen, routes: Routes, authorizer: Authorizer, *gates: Middleware
) -> AsyncIterator[None]:
    """Serve while the context lasts; SettingsError where an address or certificate cannot be used.

    ``gates`` stand before the pages of those who may decide.

    At its end what is being answered has ``STOP_SECONDS``.
    """
    async with AsyncExitStack() as stack:
        first = listen.deciding
        door = Door("deciding", first.host, first.port, DECIDING_CONNECTIONS, DECIDING_IDLE_SECONDS)
        await stack.enter_async_context(opened(door, routes.app(addressed, *gates)))
        if (former := listen.former) is not None:
            door = replace(door, name="former", port=former.port)
            try:
                await stack.enter_async_context(opened(door, routes.app(addressed, *gates)))
            except SettingsError as err:  # none of ours may ever have been asked there
                log.warning("former port not served", extra={"why": str(err)})
        if (second := listen.deciding_tls) is not None:
            door = Door(
                "decidingTls", second.host, second.port, DECIDING_CONNECTIONS,
                DECIDING_IDLE_SECONDS, tls.server_context(second.tls),
            )  # fmt: skip
            app = routes.app(named(second.tls.allowed_names), *gates)
            await stack.enter_async_context(opened(door, app))
        if (third := listen.reading) is not None:
            context = None if third.tls is None else certificate_context(third.tls)
            door = Door(
                "reading", third.host, third.port, READING_CONNECTIONS, READING_IDLE_SECONDS,
                context,
            )  # fmt: skip
            own = (addressed,) if is_loopback(third.host) and third.tls is None else ()
            check = (reviewed(authorizer),) if third.access == "review" else ()
            await stack.enter_async_context(opened(door, routes.reading_app(*own, *check)))
        yield


@asynccontextmanager
async def opened(door: Door, app: web.Application) -> AsyncIterator[None]:
    """Serve one application at a door; SettingsError if its address cannot be used."""
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=STOP_SECONDS,
        keepalive_timeout=door.idle_seconds,
        lingering_time=LINGER_SECONDS,
        logger=log,
    )
    await runner.setup()
    listener: asyncio.Server | None = None
    turns = _Turns()
    pacing = asyncio.create_task(turns.run())
    try:
        server = runner.server
        assert server is not None  # noqa: S101 - setup() has made it

        def connection() -> asyncio.Protocol:
            if len(server.connections) + len(turns.tasks) >= door.connections:
                REFUSED_CONNECTIONS.labels(door.name).inc()
                return _Refused()
            return server() if door.context is None else _Handshake(door, server, turns)

        try:
            listener = await asyncio.get_running_loop().create_server(
                connection,
                door.host,
                door.port,
                backlog=BACKLOG,
            )
        except OSError as err:
            where = f"{door.host}:{door.port}"
            raise SettingsError(f"cannot listen on {where}: {err.strerror or err}") from err
        yield
    finally:
        if listener is not None:
            listener.close()
        await cancel([pacing, *turns.tasks])
        await runner.cleanup()


class _NoFaultOfOurs(logging.Filter):
    """The server would log a stack trace of whatever is no HTTP, and of callers that hang up."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = record.exc_info[1] if record.exc_info else None
        strangers = HttpProcessingError | web.RequestPayloadError | ConnectionError
        return not isinstance(found, strangers)


log.addFilter(_NoFaultOfOurs())


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Turns:
    """Lets handshakes begin, strangers' at a steady pace."""

    def __init__(self) -> None:
        self.handshakes: Handshakes[_Handshake] = Handshakes()
        self.tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def of(self, address: str, who: "_Handshake") -> None:
        """Return when a handshake from ``address`` may begin."""
        if not self.handshakes.is_known(address):
            self.handshakes.wait(address, who)
            self._wake.set()
            await who.turn

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            who = self.handshakes.next()
            if who is None:
                self._wake.clear()
                await self._wake.wait()
            elif not who.turn.done():  # it has not given up meanwhile
                who.turn.set_result(None)
                await asyncio.sleep(PACE_SECONDS)


class _Handshake(asyncio.Protocol):
    """Makes TLS of a connection and hands it over to what ``then`` makes.

    A server that is given the context itself would tell of a connection only after its handshake:
    strangers who never finish one could not be counted, nor refused.
    """

    def __init__(self, door: Door, then: Callable[[], asyncio.Protocol], turns: _Turns) -> None:
        self._door, self._then, self._turns = door, then, turns
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream
        address = str(transport.get_extra_info("peername", ("",))[0])
        self._transport = transport
        entry = self._turns.handshakes.enter(address, self)
        closed = entry.dropped if entry.is_in else self
        if closed is not None:
            REFUSED_CONNECTIONS.labels(self._door.name).inc()
            closed.drop()
        if closed is self:
            return
        transport.pause_reading()
        self._task = asyncio.create_task(self._handshake(transport, address))
        self._turns.tasks.add(self._task)
        self._task.add_done_callback(self._turns.tasks.discard)

    def drop(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()  # a task that is cancelled before it began would not
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._early.append(data)  # what came with the last part of the handshake

    def eof_received(self) -> None:
        self._is_over = True

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True

    async def _handshake(self, transport: asyncio.Transport, address: str) -> None:
        context, secured, handshakes = self._door.context, None, self._turns.handshakes
        assert context is not None  # noqa: S101 - there is no handshake without one
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._turns.of(address, self)
                is_known = handshakes.is_known(address)
                async with asyncio.timeout(None if is_known else STRANGER_SECONDS):
                    secured = await asyncio.get_running_loop().start_tls(
                        transport, self, context, server_side=True
                    )
        except OSError as err:  # ssl.SSLError and TimeoutError are such
            log.debug("no TLS came about", extra={"why": repr(err)})
            return
        finally:
            if secured is None:  # also where the listener ends meanwhile
                transport.abort()
            is_trusted = secured is not None and context.verify_mode == ssl.CERT_REQUIRED
            handshakes.leave(address, self, is_trusted=is_trusted)
        if secured is None or self._is_over:
            transport.close()
            return
        protocol = self._then()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        for data in self._early:
            protocol.data_received(data)


def named(allowed: tuple[str, ...]) -> Middleware:
    """A middleware: only callers whose certificate has one of these names, letter for letter."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if tls.is_allowed(request, allowed):
            return await handler(request)
        shown = ", ".join(sorted(tls.peer_names(request))) or "no name"
        return problem(
            403, f"your certificate says {shown}, which listen.decidingTls does not allow"
        )

    return check


def certificate_context(shown: Certificate) -> ssl.SSLContext:
    """A context that shows a certificate and asks callers for none; follows the files."""
    files = Tls(shown.certificate, shown.key, shown.certificate, ("nobody",))
    inner = tls.Reloading(files, _showing)
    outer = _showing(files)

    def choose(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        connection.context = inner.current()

    outer.sni_callback = choose
    return outer


def _showing(files: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # browsers and older scrapers
    context.load_cert_chain(files.certificate, files.key)
    return context
