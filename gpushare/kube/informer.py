"""List and watch one collection into a handler, for ever.

Pages, then a watch from the list's version with bookmarks; a dropped connection is resumed from
the last version seen, only 410 Gone lists again. Every retry waits with jitter and a silent
connection is cut: the library's informer does neither (4,000 requests in 2 s against a 500).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gpushare.errors import ApiError, Gone
from gpushare.kube.backoff import Backoff
from gpushare.kube.client import Collection, Kube
from gpushare.objects import Node, ObjectMeta, Pod

log = logging.getLogger(__name__)

PAGE = 500
WINDOW_SECONDS = 290
IDLE_SECONDS = 90.0  # the API server sends a bookmark a minute
LIST_AFTER_FAILURES = 10

T = TypeVar("T", bound=Pod | Node)


class Handler(Protocol[T]):
    """Called in order, never concurrently. ``replaced`` states the whole collection."""

    def replaced(self, items: list[T], /) -> None: ...
    def changed(self, item: T, /) -> None: ...
    def deleted(self, item: T, /) -> None: ...


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class _Versioned(msgspec.Struct):
    metadata: ObjectMeta


class Informer(Generic[T]):
    """Keeps a handler informed; ``synced`` is set once the first list has been handed over."""

    def __init__(
        self, kube: Kube, collection: Collection, item: type[T], handler: Handler[T]
    ) -> None:
        self._kube, self._collection, self._handler = kube, collection, handler
        list_type = msgspec.defstruct(
            f"{item.__name__}List",
            [("items", list[item] | None), ("metadata", _ListMeta)],  # type: ignore[valid-type] # made at run time
        )
        self._decode_list: Callable[[bytes], Any] = msgspec.json.Decoder(list_type).decode
        self._decode_item = msgspec.json.Decoder(item).decode
        self._decode_event = msgspec.json.Decoder(_WatchEvent).decode
        self._resource_version = ""
        self._lists_wanted = self._lists_made = 0
        self._wake = asyncio.Event()
        self._listed = asyncio.Condition()
        self._watching: asyncio.Timeout | None = None
        self.synced = asyncio.Event()

    async def relist(self) -> None:
        """Return once a list that was asked for after this call has been handed over.

        The watch goes on from there. For who must know what others wrote until now, over a
        connection that may have been dead for a while.
        """
        self._lists_wanted += 1
        wanted = self._lists_wanted
        self._wake.set()
        if self._watching is not None and not self._watching.expired():
            self._watching.reschedule(0)
        async with self._listed:
            await self._listed.wait_for(lambda: self._lists_made >= wanted)

    async def run(self) -> None:
        """Until cancelled; never returns by itself."""
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
            except Gone as err:
                log.info("watch expired, listing again", extra={"why": str(err)})
                self._resource_version = ""
            except (ApiError, OSError, ValueError, msgspec.DecodeError) as err:
                # ValueError: a line longer than the client's buffer.
                log.warning(
                    "list or watch failed, retrying",
                    extra={"path": self._collection.path, "why": repr(err)},
                )
                failures += 1
                if failures % LIST_AFTER_FAILURES == 0:
                    # A version from before etcd was restored is never answered with 410.
                    self._resource_version = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next()):
                    await self._wake.wait()

    async def _list(self) -> None:
        items: list[T] = []
        next_page = ""
        wanted = self._lists_wanted
        self._wake.clear()
        while True:
            body = await self._kube.list_page(self._collection, limit=PAGE, next_page=next_page)
            page = self._decode_list(body)
            items += page.items or ()
            next_page = page.metadata.next_page
            if not next_page:
                break
        self._handler.replaced(items)
        self._resource_version = page.metadata.resource_version
        async with self._listed:
            self._lists_made = wanted
            self._listed.notify_all()

    async def _watch(self, backoff: Backoff) -> bool:
        """Until the server ends it: False; or until another list is wanted: True."""
        try:
            async with asyncio.timeout(None) as self._watching:
                if self._lists_made < self._lists_wanted:
                    return True
                await self._watch_on(backoff)
        except TimeoutError:
            if self._watching is None or not self._watching.expired():
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
        async with aclosing(lines):
            async for line in lines:
                self._apply(self._decode_event(line))
                backoff.reset()

    def _apply(self, event: _WatchEvent) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            text = f"watch ended: {status.code} {status.reason}: {status.message}"
            raise (Gone if status.code == 410 else ApiError)(text, code=status.code)  # noqa: PLR2004
        if event.type == "BOOKMARK":
            bookmark = msgspec.json.decode(event.object, type=_Versioned)
            self._resource_version = bookmark.metadata.resource_version
            return
        item = self._decode_item(event.object)
        if event.type == "DELETED":
            self._handler.deleted(item)
        else:
            self._handler.changed(item)
        self._resource_version = item.metadata.resource_version
