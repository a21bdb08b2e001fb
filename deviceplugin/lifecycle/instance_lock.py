"""One gpushare device plugin a node: a second one waits for the first to end or hand over.

Two would replace each other's socket forever, and each would answer calls by only what it has seen
itself. The kernel releases the lock when its process ends, however that ends.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final, Self

log = logging.getLogger(__name__)

FILE: Final = "lock"
_POLL_SECONDS: Final = 0.03  # a pod that is admitted while no plugin serves fails for good


class InstanceLock:
    """Use as an async context manager, which tries to get the lock while it lasts.

    ``why_waiting`` is empty unless another process holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: int | None = None
        self._getting: asyncio.Task[None] | None = None
        self.why_waiting = ""

    async def __aenter__(self) -> Self:
        self._getting = asyncio.create_task(self._get())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def held(self) -> None:
        """Return once this process has the lock; at once where none can be created."""
        if self._getting is not None:
            await asyncio.shield(self._getting)

    async def try_again(self) -> None:
        """Release the lock, and try to get it again."""
        await self._end()
        self._getting = asyncio.create_task(self._get(after=_POLL_SECONDS * 3))

    async def _end(self) -> None:
        if self._getting is not None:
            self._getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._getting
        self._close()

    async def _get(self, after: float = 0.0) -> None:
        """Go on without a lock where none can be created: a single plugin needs none."""
        await asyncio.sleep(after)
        try:
            await self._acquire()
        except OSError as err:
            log.warning(
                "no lock against a second plugin on this node",
                extra={"file": str(self._path), "why": str(err)},
            )
        self.why_waiting = ""

    async def _acquire(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(self._file):
                if not self.why_waiting:
                    holder = os.pread(self._file, 256, 0).decode(errors="replace")
                    self.why_waiting = (
                        f"another device plugin ({holder or 'unnamed'}) holds "
                        f"{self._path}: waiting for it to end"
                    )
                    log.info("waiting", extra={"why": self.why_waiting})
                await asyncio.sleep(_POLL_SECONDS)
            _write(self._file, f"{os.uname().nodename} {os.getpid()}")
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(file: int, text: str) -> None:
    # For the plugin that waits; a full disk must not stop the plugin.
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
    except OSError as err:
        log.warning("the lock file does not name its holder", extra={"why": str(err)})
