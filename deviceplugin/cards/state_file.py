"""The state that outlives the program, in one file: the node's GPUs and their failures.

Registration cannot wait for the API server, where the same inventory is the node's annotation. The
file is replaced in one step, and a checksum shows whether it is complete. Without it, or where it
cannot be written, the plugin goes on: the annotation is the second source.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from deviceplugin import metrics
from deviceplugin.cards.rules import MAX_WAIT_SECONDS, CardHealth, HealthReason, State
from deviceplugin.errors import StateError
from deviceplugin.foreign_files import read_bytes
from gpushare.annotations import inventory
from gpushare.cards.model import Inventory
from gpushare.errors import RecordError
from gpushare.objects.quantity import MAX_UNITS
from gpushare.process import daemon_thread

log = logging.getLogger(__name__)

VERSION: Final = 1
FILE: Final = "state.json"
MAX_BYTES: Final = 16 << 20  # far more than the GPUs of any node need
WRITE_SECONDS: Final = 1.0  # a slower disk is not waited for


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a GPU that was unhealthy, in the file's format.

    ``illnesses`` are the failures not yet forgotten. ``owed`` are seconds, because each boot has
    another clock. ``unreset`` is the load of the driver since which the GPU needs a reset; None if
    it needs none. ``gone_since`` is in seconds since the Unix epoch, 0 if it is there. The defaults
    are for a GPU that is only known to have been unhealthy.
    """

    state: State = State.UNHEALTHY
    why: str = "was unhealthy before the plugin started"
    is_gone: bool = False
    illnesses: int = 0
    owed: float = 0.0
    is_mig: bool = False
    reason: HealthReason = HealthReason.EARLIER
    unreset: str | None = None
    is_cordoned: bool = False
    gone_since: int = 0

    @classmethod
    def of(cls, health: CardHealth, owed: float, *, load: str = "", **more: Any) -> Self:
        """Return what to keep of ``health`` under this ``load`` of the driver."""
        return cls(
            state=health.state,
            why=health.why,
            is_gone=health.is_gone,
            illnesses=health.failures,
            owed=owed,
            reason=health.reason,
            unreset=load if health.needs_reset else None,
            **more,
        )

    def revived(self, now: float, load: str = "") -> CardHealth:
        """Return the GPU's health when another program starts, before the first check.

        A reset that is needed counts as done if the driver was loaded again since.
        """
        if self.state in {State.HEALTHY, State.SUSPECT}:
            return CardHealth(failures=self.illnesses, since=now)
        return CardHealth(
            state=State.UNHEALTHY,
            why=self.why,
            is_gone=self.is_gone,
            is_definite=bool(self.illnesses),  # else its reason was never known
            reason=self.reason,
            needs_reset=self.unreset == load,
            failures=self.illnesses,
            since=now,
            owed=self.owed,
        )


@dataclass(frozen=True, slots=True)
class Saved:
    inventory: Inventory
    healths: Mapping[str, Kept] = field(default_factory=dict)


class _Envelope(msgspec.Struct):
    version: int
    checksum: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Data(msgspec.Struct):
    inventory: msgspec.Raw
    healths: dict[str, Kept]


def encode(saved: Saved) -> bytes:
    cards = msgspec.Raw(inventory.encode(saved.inventory).encode())
    data = msgspec.json.encode(_Data(cards, dict(saved.healths)))
    return msgspec.json.encode(_Envelope(VERSION, _checksum(data), msgspec.Raw(data)))


def decode(content: bytes) -> Saved:
    """Return what ``encode`` wrote; StateError for anything else."""
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version != VERSION:
            writer = "a newer plugin" if envelope.version > VERSION else "another plugin"
            raise StateError(
                f"it has version {envelope.version}, of {writer}: this one reads {VERSION}"
            )
        if envelope.checksum != _checksum(bytes(envelope.data)):
            raise StateError("its checksum does not match: it was damaged, or changed by hand")
        data = msgspec.json.decode(envelope.data, type=_Data)
        cards = inventory.decode(bytes(data.inventory).decode())
    except (msgspec.DecodeError, RecordError, RecursionError, UnicodeDecodeError) as err:
        raise StateError(f"it is incomplete or damaged: {err}") from err
    if any(
        not 0 <= kept.owed <= MAX_WAIT_SECONDS or not 0 <= kept.illnesses < MAX_UNITS
        for kept in data.healths.values()
    ):
        raise StateError("it has numbers that no GPU can have")
    return Saved(cards, data.healths)


class StateFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._kept: Saved | None = None
        self._logged = ""
        self._one_writer = asyncio.Lock()
        self._writing: tuple[Saved, asyncio.Future[None]] | None = None

    def read(self) -> Saved | None:
        """Return what was written last; None, with a log line, where nothing usable is there."""
        try:
            self._kept = decode(read_bytes(self._path, MAX_BYTES))
        except FileNotFoundError:
            log.info("no state file yet", extra={"file": str(self._path)})
        except (OSError, StateError) as err:
            metrics.STATE_ERRORS.labels("read").inc()
            log.warning(
                "the state file cannot be used, the node's annotation is used",
                extra={"file": str(self._path), "why": str(err)},
            )
        return self._kept

    async def keep(self, saved: Saved | None) -> None:
        """Write ``saved``, unless it is on disk already; a failure is only logged."""
        if saved is None:
            return
        async with self._one_writer:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    with contextlib.suppress(OSError):  # reported when it took too long
                        await self._written()
                    if saved == self._kept:
                        return
                    self._writing = (
                        saved,
                        daemon_thread.call(partial(self._write, encode(saved)), "state"),
                    )
                    await self._written()
            except OSError as err:  # TimeoutError is one, and has no text
                self._failed(str(err) or f"not written within {WRITE_SECONDS:g} s")
            else:
                self._logged = ""

    async def _written(self) -> None:
        """Wait for the write in progress, if there is one. Raises OSError if it has failed."""
        if self._writing is None:
            return
        saved, writing = self._writing
        await asyncio.wait({writing})
        self._writing = None
        writing.result()
        self._kept = saved

    def _failed(self, why: str) -> None:
        metrics.STATE_ERRORS.labels("write").inc()
        if self._logged != why:
            log.warning("state file not written", extra={"why": why})
        self._logged = why

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError:
            fresh.unlink(missing_ok=True)  # the disk may be full
            raise
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _checksum(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
