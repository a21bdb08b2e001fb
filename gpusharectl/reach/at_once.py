"""Ask many programs, a few at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

AT_ONCE: Final = 20

T = TypeVar("T")
K = TypeVar("K")


async def each_of(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T]:
    """Return what ``ask`` returns for each key."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(key: K) -> T:
        async with room:
            return await ask(key)

    wanted = list(keys)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))
