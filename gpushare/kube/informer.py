"""List and watch one collection, and report every change to a handler.

The informer lists in pages, then watches from the list's version with bookmarks. It resumes a
dropped connection from the last version seen, and lists again only after 410 Gone. Every retry
waits with jitter, at least as long as the server demands, and a silent connection is closed. The
library's informer does none of this (4,000 requests in 2 s against a server that answers 500).
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from gpushare.errors import UNDECODABLE, ApiError, Gone, TooLarge
from gpushare.kube.backoff import Backoff
from gpushare.kube.client import Kube
from gpushare.kube.interning import Interner
from gpushare.kube.lists import Page, pages
from gpushare.kube.managed_fields import decoded
from gpushare.kube.paths import Collection
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

WINDOW_SECONDS = 290
IDLE_SECONDS = 90.0  # the API server sends a bookmark a minute
LIST_AFTER_FAILURES = 10
MOST_RETRY_AFTER = 30.0
# Lines that arrive together are read without a pause; other tasks run after this many.
EVENTS_AT_ONCE = 16
# After an event that took longer, other tasks get as much time: a large one takes 30 ms.
LONG_SECONDS = 0.002
LARGE_BYTES = 64 * 1024  # of a line that is not decoded only for its version
CAUSES = ("ended", "expired", "silent", "behind", "refused", "lost")

_BEGINS: Final = re.compile(rb'{"type":"(ADDED|MODIFIED|DELETED)","object":')


class _Meta(Protocol):
    @property
    def resource_version(self) -> str: ...


class Versioned(Protocol):
    """An object of the API server, decoded."""

    @property
    def metadata(self) -> _Meta: ...


T = TypeVar("T", bound=Versioned)


class Handler(Protocol[T]):
    """Called in order, never concurrently. ``replaced`` gets the whole collection.

    It may return steps, which are run with pauses for other tasks.
    """

    def replaced(self, items: list[T], /) -> Iterator[None] | None: ...
    def changed(self, item: T, /) -> None: ...
    def deleted(self, item: T, /) -> None: ...


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _Version


class Informer(Generic[T]):
    """Keeps a handler informed; ``synced`` is set after the first list.

    ``restarts`` counts the ends of watches by CAUSES: ``ended`` (by the server, every few minutes),
    ``expired`` (410: list again), ``silent`` (no line for too long), ``behind`` (see ``cut``),
    ``refused`` (any other response), ``lost`` (the connection).

    Objects whose JSON does not contain the bytes ``naming`` are skipped, however large they are.
    ``read`` decodes an object if it is not decoded as ``item``; it raises one of UNDECODABLE.

    ``run`` raises an ApiError whose HTTP status is in ``final``, and retries after all others.
    """

    def __init__(
        self,
        kube: Kube,
        collection: Collection,
        item: type[T],
        handler: Handler[T],
        *,
        naming: bytes = b"",
        read: Callable[[memoryview | msgspec.Raw], T] | None = None,
        final: Container[int] = (),
    ) -> None:
        self._kube, self._collection, self._handler = kube, collection, handler
        self._naming, self._final = naming, final
        decode: Callable[[memoryview | msgspec.Raw], Any] = (
            read_pod if item is Pod else msgspec.json.Decoder(item).decode
        )
        self._decode_item: Callable[[memoryview | msgspec.Raw], T] = read or decode
        self._decode_event = msgspec.json.Decoder(_WatchEvent).decode
        self._resource_version = ""
        self._heard_at = self._opened_at = time.monotonic()
        self._watching: asyncio.Timeout | None = None
        self._is_cut = False
        self._lists_wanted = self._lists_made = 0
        self._has_ended = False
        self._wake = asyncio.Event()
        self._listed = asyncio.Condition()
        self._parts = Interner()
        self.synced = asyncio.Event()
        self.restarts: Counter[str] = Counter()

    @property
    def age(self) -> float:
        """Return the seconds since the last event, bookmark or list."""
        return time.monotonic() - self._heard_at

    def cut(self, *, silent_seconds: float = 0.0) -> None:
        """End the open watch, which is behind, and resume it from the last version.

        Do nothing if a line arrived within ``silent_seconds`` or the watch was opened since then.
        """
        silent = time.monotonic() - max(self._heard_at, self._opened_at)
        if self._is_cut or silent < silent_seconds:
            return
        self._is_cut = self._end_watch()

    async def relist(self) -> None:
        """List again, and return when the handler has the result; the watch resumes from it.

        Use it to see everything that others wrote until now, even if the connection has been dead
        for a while. Return at once if ``run`` has raised an error.
        """
        self._lists_wanted += 1
        wanted = self._lists_wanted
        self._wake.set()
        self._end_watch()
        async with self._listed:
            await self._listed.wait_for(lambda: self._has_ended or self._lists_made >= wanted)

    def _end_watch(self) -> bool:
        """End the watch if one is open; return whether there was one."""
        if self._watching is None or self._watching.expired():
            return False
        self._watching.reschedule(0.0)
        return True

    async def run(self) -> None:
        backoff = Backoff(0.1, 30.0)
        failures = 0
        while True:
            try:
                if not self._resource_version or self._lists_made < self._lists_wanted:
                    await self._list()
                    self.synced.set()
                    backoff.reset()
                if await self._watch(backoff):
                    continue
                failures = 0  # the server ends every watch after a while
                self.restarts["ended"] += 1
            except Gone as err:
                log.info("watch expired, listing again", extra={"why": str(err)})
                self.restarts["expired"] += 1
                self._resource_version = ""
                backoff.reset()  # the server answers: what failed before is over
            except (ApiError, OSError, ValueError, *UNDECODABLE) as err:
                if isinstance(err, ApiError) and err.code in self._final:
                    async with self._listed:
                        self._has_ended = True
                        self._listed.notify_all()
                    raise
                log.warning(
                    "list or watch failed, retrying",
                    extra={"path": self._collection.path, "why": repr(err)},
                )
                if self._resource_version:
                    self.restarts[self._cause(err)] += 1
                failures += 1
                if isinstance(err, TooLarge) or failures % LIST_AFTER_FAILURES == 0:
                    # A line that is too long would be sent again from the same version, and a
                    # version from before a restore of etcd is never answered with 410.
                    self._resource_version = ""
                seconds = err.retry_after if isinstance(err, ApiError) else 0.0
                await asyncio.sleep(min(seconds, MOST_RETRY_AFTER))
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next()):
                    await self._wake.wait()

    def _cause(self, err: Exception) -> str:
        if isinstance(err, TimeoutError):
            return "behind" if self._is_cut else "silent"
        return "refused" if isinstance(err, ApiError) and err.code else "lost"

    async def _list(self) -> None:
        items: list[T] = []
        version = ""
        wanted = self._lists_wanted
        self._wake.clear()
        async with aclosing(pages(self._kube, self._collection)) as found:
            async for page in found:
                await in_slices(self._decode_page(page, items))
                version = page.metadata.resource_version
        self._heard_at = time.monotonic()
        await in_slices(self._handler.replaced(items) or ())
        self._resource_version = version
        async with self._listed:
            self._lists_made = wanted
            self._listed.notify_all()

    def _decode_page(self, page: Page, items: list[T]) -> Iterator[None]:
        for raw in page.items or ():
            if not self._naming or self._naming in bytes(raw):
                item = self._decode_item(raw)
                self._share(item)
                items.append(item)
            yield

    async def _watch(self, backoff: Backoff) -> bool:
        """Watch until the server ends it (return False) or another list is wanted (True)."""
        self._is_cut, self._opened_at = False, time.monotonic()
        try:
            async with asyncio.timeout(None) as self._watching:
                if self._lists_made < self._lists_wanted:
                    return True
                await self._watch_on(backoff)
        except TimeoutError:
            if self._lists_made == self._lists_wanted:
                raise
            return True
        finally:
            self._watching = None
        return False

    async def _watch_on(self, backoff: Backoff) -> None:
        lines = self._kube.watch(
            self._collection,
            since=self._resource_version,
            window_seconds=WINDOW_SECONDS,
            idle_seconds=IDLE_SECONDS,
        )
        applied = 0
        async with aclosing(lines):
            async for line in lines:
                began = self._heard_at = time.monotonic()
                decoded(self._handle_line, line)
                backoff.reset()
                applied += 1
                took = time.monotonic() - began
                if took >= LONG_SECONDS:
                    await asyncio.sleep(took)
                elif applied % EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _handle_line(self, line: bytes) -> None:
        is_named = self._naming in line
        if len(line) > LARGE_BYTES:
            # A later event or bookmark has the version of a skipped one, too.
            if is_named:
                self._handle_large(line)
            return
        event = self._decode_event(line)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            text = f"watch ended: {status.code} {status.reason}: {status.message}"
            raise (Gone if status.code == 410 else ApiError)(text, code=status.code)  # noqa: PLR2004
        if event.type == "BOOKMARK" or not is_named:
            seen = msgspec.json.decode(event.object, type=_Versioned)
            self._resource_version = seen.metadata.resource_version
            return
        self._report(event.type, event.object)

    def _handle_large(self, line: bytes) -> None:
        """Decode the object without decoding the event around it, which would take as long."""
        begins = _BEGINS.match(line)
        if begins is None or not line.endswith(b"}"):
            event = self._decode_event(line)
            self._report(event.type, event.object)
            return
        self._report(begins[1].decode(), memoryview(line)[begins.end() : -1])

    def _report(self, kind: str, body: memoryview | msgspec.Raw) -> None:
        item = self._decode_item(body)
        self._share(item)
        if kind == "DELETED":
            self._handler.deleted(item)
        else:
            self._handler.changed(item)
        self._resource_version = item.metadata.resource_version

    def _share(self, item: T) -> None:
        if isinstance(item, Pod):
            self._parts.share(item)
