"""Notes which writes are under way, in a file that outlives the process, for its successor."""

import asyncio
import fcntl
import hashlib
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, Self

import msgspec

from extender.binding.timing import WRITE_SECONDS
from extender.decisions.cluster_state import ClusterState
from gpushare.clock import Clock
from gpushare.errors import UNDECODABLE, ApiError, OutcomeUnknown
from gpushare.groups.sources import key_of
from gpushare.ledger.accounts import Reserve
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

# Memory. In Kubernetes it belongs to the pod, so it outlives a container and no other pod sees it.
FOLDER: Final = Path("/dev/shm")  # noqa: S108 - the file must be there for the next process
BEAT_SECONDS: Final = 0.25
_VERSION: Final = 1
_PLACE_BYTES: Final = 8192  # for one write; a reservation of 100 GPUs has half of it
_FRAME_BYTES: Final = 8
_LEFT_SECONDS: Final = 86400.0  # after that, no extender with this file runs any more


class _Beat(msgspec.Struct):
    version: int
    at: float


class _Note(msgspec.Struct):
    """A write. ``reserve`` is what it gives away, if it does nothing else that has to be known."""

    what: str
    may_land_until: float
    reserve: Reserve | None = None


class WriteJournal:
    """The writes that may still land, of an extender that has no replicas.

    A write is noted before it begins, and forgotten once the API server has said what became of it,
    because then every later list shows it. After an unknown outcome it is forgotten when its
    reservation ends. So a successor knows all that a killed process may still give away: it
    reserves exactly that, as after an unknown outcome of its own, and decides at once.

    The file is believed if its last beat is less than WRITE_SECONDS old: its process was alive
    then. A process that ran between that beat and this read had another file or none, and believed
    neither. So it had to wait for WRITE_SECONDS before its first beat and its first write, and has
    begun none. For the same reason at most one file is believed at any time.

    ``must_wait``: whether predecessors' writes may be under way whose effect cannot be reserved:
    then a list of pods shows all only after WRITE_SECONDS. This is so without a file that can be
    believed, and after any write but the Binding of a pod without a gang: it changes more than
    room, for example which gangs have begun.

    ``clock`` must advance while the machine is suspended.
    """

    def __init__(self, file: int | None, clock: Clock) -> None:
        self._file, self._clock = file, clock
        self._under_way: set[int] = set()
        self._state: ClusterState | None = None
        now = clock.monotonic()
        found = None if file is None else _believed(file, now)
        if found is None:
            self._forget_all()
        self._beats = found is not None  # otherwise not before all is known
        self._notes = found or {}  # by their place in the file
        self.must_wait = found is None or any(
            note.reserve is None and note.may_land_until > now for note in found.values()
        )

    @classmethod
    def open(cls, path: Path, clock: Clock) -> Self:
        """Open or create the file; without one, nothing is noted and the successor has to wait."""
        file = None
        try:
            _remove_left(path.parent, clock)
            file = _locked(path)
        except OSError as err:
            log.warning(
                "writes are not noted, so each start takes 3 s longer",
                extra={"file": str(path), "why": str(err)},
            )
        return cls(file, clock)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def take_over(self, state: ClusterState) -> None:
        """Reserve what predecessors may still give away; call it when ``state`` is listed.

        From now on, the notes have all that may be under way.
        """
        for note in self._notes.values():
            pod = state.pod(note.reserve.pod_uid) if note.reserve is not None else None
            if note.reserve is not None and pod is not None and not pod.node:
                log.info("a former write may still land", extra={"what": note.what})
                state.ledger.reserve(note.reserve)
        self._state, self._beats = state, True
        self.beat()

    @contextmanager
    def noted(
        self, what: str, seconds: float, pod: Pod | None = None, node: str = ""
    ) -> Iterator[None]:
        """Note a write while it is under way; ``pod`` and ``node`` are those of a Binding.

        A write that cannot be noted begins only once the file is not believed any more.
        """
        self._forget_ended()
        reserve = self._reserve_of(pod.uid, node) if pod is not None and not key_of(pod) else None
        place = next(free for free in count(1) if free not in self._notes)
        self._notes[place] = note = _Note(what, self._clock.monotonic() + seconds, reserve)
        self._under_way.add(place)
        is_known = False
        try:
            self._put(place, msgspec.json.encode(note))
            yield
            is_known = True
        except ApiError as err:
            is_known = not isinstance(err, OutcomeUnknown)
            raise
        finally:
            self._under_way.discard(place)
            if is_known:
                self._forget(place)

    async def run(self) -> None:
        """Beat, and forget writes that cannot land any more, until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def beat(self) -> None:
        self._forget_ended()
        if self._beats:
            self._put(0, msgspec.json.encode(_Beat(_VERSION, self._clock.monotonic())))

    def _forget_ended(self) -> None:
        """Forget what cannot land any more; after a reservation, before its room is given again."""
        if self._state is None:
            return
        for place, note in list(self._notes.items()):
            if place not in self._under_way and not self._may_land(note):
                self._forget(place)

    def _may_land(self, note: _Note) -> bool:
        if note.reserve is None:
            return self._clock.monotonic() < note.may_land_until
        return self._reserve_of(note.reserve.pod_uid, note.reserve.node) is not None

    def _reserve_of(self, uid: str, node: str) -> Reserve | None:
        return None if self._state is None else self._state.ledger.reserve_of(uid, node)

    def _forget(self, place: int) -> None:
        del self._notes[place]
        self._put(place, b"")

    def _forget_all(self) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def _put(self, place: int, content: bytes) -> None:
        if self._file is None:
            return
        frame = zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
        try:
            if len(content) > _PLACE_BYTES - _FRAME_BYTES:
                raise OSError(f"a write takes {len(content)} bytes")  # noqa: TRY301
            os.pwrite(self._file, frame + content, place * _PLACE_BYTES)
        except OSError as err:
            log.warning(
                "writes are not noted any more, so the next start takes 3 s longer",
                extra={"why": str(err)},
            )
            self._forget_all()
            self.close()


def path_for(configuration: Path, kubeconfig: str | None) -> Path:
    """Return the journal's file; extenders with another configuration have another one."""
    what = f"{configuration.resolve()}\n{kubeconfig}".encode()
    return FOLDER / f"gpushare-extender-{hashlib.sha256(what).hexdigest()[:16]}"


def _locked(path: Path) -> int:
    """Open the file for this process alone; the kernel unlocks it however the process ends."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError("it is another user's")
    except OSError:
        os.close(file)
        raise
    return file


def _believed(file: int, now: float) -> dict[int, _Note] | None:
    """Return the notes by their place; None if the file does not have all that may be under way."""
    try:
        beat = msgspec.json.decode(_content(file, 0), type=_Beat)
        if beat.version != _VERSION or not 0 <= now - beat.at < WRITE_SECONDS:
            return None
        places = range(1, -(-os.fstat(file).st_size // _PLACE_BYTES))
        written = {place: found for place in places if (found := _content(file, place))}
        return {place: msgspec.json.decode(found, type=_Note) for place, found in written.items()}
    except UNDECODABLE:
        return None


def _content(file: int, place: int) -> bytes:
    """Return what was put there, empty if it was forgotten; DecodeError if it is incomplete."""
    found = os.pread(file, _PLACE_BYTES, place * _PLACE_BYTES)
    sum_, length = (int.from_bytes(found[at : at + 4], "little") for at in (0, 4))
    content = found[_FRAME_BYTES : _FRAME_BYTES + length]
    if len(content) != length or zlib.crc32(content) != sum_:
        raise msgspec.DecodeError("the checksum does not match")
    return content


def _remove_left(folder: Path, clock: Clock) -> None:
    """Remove the files of extenders that were killed and never started again."""
    oldest = clock.wall_ns() / 1e9 - _LEFT_SECONDS
    for each in folder.glob("gpushare-extender-*"):
        with suppress(OSError):  # another user's
            if each.stat().st_mtime < oldest:
                each.unlink()
