"""List a whole collection in pages of bounded size."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from gpushare.errors import UNDECODABLE, ApiError, Gone, TooLarge
from gpushare.kube.client import Kube
from gpushare.kube.managed_fields import decoded
from gpushare.kube.paths import Collection

PAGE: Final = 500
_TRIES: Final = 3

T = TypeVar("T")


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """``items`` are not decoded yet."""

    items: list[msgspec.Raw] | None = None
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_decode_page: Final = msgspec.json.Decoder(Page).decode


async def pages(kube: Kube, collection: Collection) -> AsyncGenerator[Page, None]:
    """Yield the pages of one consistent list.

    A page of more than PAGE_BYTES is requested again with a quarter of its objects: 500 of the
    largest possible objects have 4 GiB. Raises ApiError or one of UNDECODABLE.
    """
    limit, next_page = PAGE, ""
    while True:
        try:
            body = await kube.list_page(collection, limit=limit, next_page=next_page)
        except TooLarge:
            if limit == 1:
                raise
            limit = max(1, limit // 4)
            continue
        await asyncio.sleep(0)  # joining the parts took as long as decoding will
        page = decoded(_decode_page, body)
        yield page
        next_page = page.metadata.next_page
        if not next_page:
            return
        limit = min(PAGE, limit * 2)


async def list_all(kube: Kube, collection: Collection, item: type[T]) -> list[T]:
    """Return all objects of a consistent list. Raises ApiError."""
    decode = msgspec.json.Decoder(item).decode
    for left in reversed(range(_TRIES)):
        try:
            async with aclosing(pages(kube, collection)) as found:
                return [decode(item) async for page in found for item in page.items or ()]
        except Gone:
            if not left:
                raise
        except UNDECODABLE as err:
            raise ApiError(f"list {collection.path}: the answer cannot be read: {err}") from err
    raise AssertionError
