"""Lets a plugin that stands by take over from the one that serves.

The kubelet rejects a pod for good if it admits it while no plugin is registered, so the next plugin
registers while the old one still answers. They communicate over a socket in the state folder, one
message a line: the old plugin sends TAKE_OVER, the new one REGISTERED, the old one LEFT. A closed
connection means that its process has ended. Where no socket can be created only the lock decides,
and the next plugin registers after the old one has ended.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deviceplugin.lifecycle.instance_lock import InstanceLock
from deviceplugin.server.grpc_server import is_served
from gpushare.process.lifetime import cancel

log = logging.getLogger(__name__)

FILE: Final = "handover.sock"
TAKE_OVER: Final = b"take over\n"
REGISTERED: Final = b"registered\n"
LEFT: Final = b"left\n"
_POLL_SECONDS: Final = 0.1


class Predecessor:
    """The plugin that this one takes over from, until it has left."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ends(self) -> None:
        """Return once the old plugin has ended; it sends nothing before this one has registered."""
        with contextlib.suppress(OSError, ValueError):
            await self._reader.readline()

    async def leaves(self) -> None:
        """Report that the kubelet reads our list; return once the old plugin has left."""
        with contextlib.suppress(OSError, ValueError):
            self._writer.write(REGISTERED)
            await self._writer.drain()
            await self._reader.readline()
        self._writer.close()


class Standby:
    """A plugin that waits until it may serve."""

    def __init__(self, folder: Path, lock: InstanceLock) -> None:
        self._path = folder / FILE
        self._lock = lock

    async def its_turn(self) -> Predecessor | None:
        """Return when this plugin may serve: its predecessor, or None where none is left."""
        asked = asyncio.create_task(self._asked())
        try:
            while True:
                held = asyncio.create_task(self._lock.held())
                await asyncio.wait({held, asked}, return_when=asyncio.FIRST_COMPLETED)
                held.cancel()
                if asked.done():
                    return asked.result()
                if not is_served(self._path):
                    return None
                # Another plugin was asked to take over, and is about to get the lock.
                await self._lock.try_again()
        finally:
            await cancel([asked])

    async def _asked(self) -> Predecessor:
        while True:
            with contextlib.suppress(OSError, ValueError):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                try:
                    if await reader.readline() == TAKE_OVER:
                        return Predecessor(reader, writer)
                except BaseException:
                    writer.close()
                    raise
                writer.close()
            await asyncio.sleep(_POLL_SECONDS)


class Successors:
    """The plugins that stand by for this one, in the order of their arrival."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._waiting: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._came = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Accept plugins that stand by while the context lasts."""
        try:
            server = await self._listen()
        except (OSError, ValueError) as err:
            log.warning("no plugin can stand by for this one", extra={"why": str(err)})
            yield
            return
        try:
            yield
        finally:
            server.close()
            for _, writer in self._waiting:
                writer.close()

    @property
    def are_waiting(self) -> bool:
        """Whether a plugin stands by."""
        return bool(self._waiting)

    async def come(self) -> None:
        """Return once a plugin stands by."""
        await self._came.wait()

    async def take_over(self) -> "Successor | None":
        """Return the first plugin that has registered with the kubelet; None where none does.

        This may take long: a plugin that was asked to take over keeps trying, and no other may
        serve meanwhile. If it ends, its connection closes.
        """
        while self._waiting:
            reader, writer = self._waiting[0]
            why = "it has ended"
            try:
                writer.write(TAKE_OVER)
                await writer.drain()
                if await reader.readline() == REGISTERED:
                    del self._waiting[0]
                    return Successor(writer)
            except (OSError, ValueError) as err:
                why = repr(err)
            log.warning("a plugin that stood by did not register", extra={"why": why})
            del self._waiting[0]
            writer.close()
        self._came.clear()
        return None

    async def _listen(self) -> asyncio.Server:
        # The socket of a killed plugin still exists, and so does that of the predecessor, which
        # needs no more successors.
        fresh = self._path.with_name(f"{FILE}.{os.urandom(4).hex()}")
        mask = os.umask(0o077)
        try:
            server = await asyncio.start_unix_server(self._connected, str(fresh))
        finally:
            os.umask(mask)
        try:
            fresh.replace(self._path)
        except OSError:
            server.close()
            raise
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._waiting.append((reader, writer))
        self._came.set()
        log.info("another plugin stands by", extra={"waiting": len(self._waiting)})


class Successor:
    """The plugin that has taken over."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def let_go(self) -> None:
        """Report that the kubelet has dropped this plugin."""
        with contextlib.suppress(OSError):
            self._writer.write(LEFT)
            await self._writer.drain()
        self._writer.close()
