"""TLS handshakes of a listener: in turn, and within limits on their number and time."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from aiohttp import web

from gpushare.http_server.eviction import OpenConnection
from gpushare.http_server.handshakes import PACE_SECONDS, Handshakes
from gpushare.process.lifetime import cancel

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10.0  # including the wait for a turn
UNTRUSTED_SECONDS: Final = 3.0  # from the turn on, for an untrusted address


class Pacer:
    """Starts handshakes, the untrusted ones at a steady pace."""

    def __init__(self, max_per_untrusted: int) -> None:
        self.handshakes: Handshakes[_Handshake] = Handshakes(max_per_untrusted)
        self.tasks: dict[asyncio.Task[None], _Handshake] = {}
        self._queued = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start handshakes while the context lasts; drop those in progress at its end."""
        pacing = asyncio.create_task(self._run())
        try:
            yield
        finally:
            for handshake in list(self.tasks.values()):
                handshake.drop()
            await cancel([pacing, *self.tasks])

    def connections(self) -> Iterator[OpenConnection]:
        """Return the connections whose handshake is in progress, the oldest first."""
        for each in self.tasks.values():
            if not each.is_established and not each.is_dropped:
                yield OpenConnection(each.address, is_idle=True, close=partial(self._close, each))

    def _close(self, handshake: "_Handshake") -> None:
        self.handshakes.remove(handshake.address, handshake, is_trusted=False)
        handshake.drop()

    async def wait_for_turn(self, address: str, handshake: "_Handshake") -> None:
        if not self.handshakes.is_trusted(address):
            self.handshakes.queue(address, handshake)
            self._queued.set()
            await handshake.turn

    async def _run(self) -> None:
        while True:
            handshake = self.handshakes.next()
            if handshake is None:
                self._queued.clear()
                await self._queued.wait()
            elif not handshake.turn.done():  # not cancelled in the meantime
                handshake.turn.set_result(None)
                await asyncio.sleep(PACE_SECONDS)


def begin_handshake(
    connection: socket.socket,
    address: str,
    context: ssl.SSLContext,
    then: Callable[[], web.RequestHandler],
    pacer: Pacer,
    *,
    has_room: bool,
) -> list["_Handshake"]:
    """Begin to wait for a turn, or close a connection: this one or one with less right.

    Return the handshakes that were closed for lack of room.
    """
    handshake = _Handshake(connection, address, context, then, pacer)
    rejected: _Handshake | None = handshake
    if has_room:
        admission = pacer.handshakes.admit(address, handshake)
        rejected = admission.dropped if admission.is_admitted else handshake
    if rejected is not handshake:
        handshake.begin()
    if rejected is None:
        return []
    rejected.drop()
    return [rejected]


class _Handshake:
    """A connection until its TLS handshake has ended; nothing is read from it before its turn.

    A server with its own TLS context reports a connection only after the handshake: clients that
    never finish one could not be counted or rejected.
    """

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        context: ssl.SSLContext,
        then: Callable[[], web.RequestHandler],
        pacer: Pacer,
    ) -> None:
        self.address = address
        self.is_dropped = False
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._context, self._then, self._pacer = context, then, pacer
        self._connection = connection
        self._protocol: web.RequestHandler | None = None  # from its turn on
        self._task: asyncio.Task[None] | None = None

    @property
    def is_established(self) -> bool:
        return self._protocol is not None and self._protocol.transport is not None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._pacer.tasks[self._task] = self
        self._task.add_done_callback(self._pacer.tasks.pop)

    def drop(self) -> None:
        self.is_dropped = True
        self._close()  # a task that is cancelled before it began would not
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        context, handshakes = self._context, self._pacer.handshakes
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
