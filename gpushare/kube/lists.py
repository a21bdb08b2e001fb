"""A whole collection at once, page by page: for who looks once and does not watch."""

from typing import Any, Final, Generic, TypeVar

import msgspec

from gpushare.errors import UNDECODABLE, ApiError, Gone
from gpushare.kube.client import Collection, Kube

PAGE: Final = 500
_TRIES: Final = 3

T = TypeVar("T")


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class ListDecoder(Generic[T]):
    """Decodes pages of a list of one kind of item."""

    def __init__(self, item: type[T]) -> None:
        fields: list[Any] = [("items", list[item] | None), ("metadata", ListMeta)]  # type: ignore[valid-type] # made at run time
        self._decode: Any = msgspec.json.Decoder(
            msgspec.defstruct(f"{item.__name__}List", fields)
        ).decode

    def page(self, body: bytes) -> tuple[list[T], ListMeta]:
        """The items of a page and what stands above them; one of UNDECODABLE if it is none."""
        found = self._decode(body)
        return found.items or [], found.metadata


async def list_all(kube: Kube, collection: Collection, item: type[T]) -> list[T]:
    """All of a collection as of one moment. Raises ApiError."""
    decoder = ListDecoder(item)
    for left in reversed(range(_TRIES)):
        try:
            return await _pages(kube, collection, decoder)
        except Gone:
            if not left:
                raise
        except UNDECODABLE as err:
            raise ApiError(f"list {collection.path}: the answer cannot be read: {err}") from err
    raise AssertionError


async def _pages(kube: Kube, collection: Collection, decoder: ListDecoder[T]) -> list[T]:
    found: list[T] = []
    next_page = ""
    while True:
        body = await kube.list_page(collection, limit=PAGE, next_page=next_page)
        items, meta = decoder.page(body)
        found += items
        next_page = meta.next_page
        if not next_page:
            return found
