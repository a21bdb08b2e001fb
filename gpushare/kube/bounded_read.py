"""Read an answer of the API server within a bound on its bytes: whole, or line by line."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp

from gpushare.errors import TooLarge


async def whole(content: aiohttp.StreamReader, most: int) -> bytes:
    """Return all of it; TooLarge as soon as more than ``most`` bytes have come."""
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > most:
            raise TooLarge(f"the answer has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


async def until_idle(
    content: aiohttp.StreamReader, idle_seconds: float
) -> AsyncGenerator[bytes, None]:
    """Yield what comes, as it comes; TimeoutError once nothing has come for ``idle_seconds``."""
    while True:
        # wait_for loses a cancellation that comes with a part, before Python 3.12.
        async with asyncio.timeout(idle_seconds):
            part = await content.readany()
        if not part:
            return
        yield part


async def lines(parts: AsyncIterator[bytes], most: int) -> AsyncGenerator[bytes, None]:
    """Yield each line without its end; TooLarge as soon as one has more than ``most`` bytes.

    No more of it is held than one line and the part in which it ends.
    """
    begun: list[bytes] = []
    size = 0
    async for part in parts:
        *ends, rest = part.split(b"\n")
        for end in ends:
            if size + len(end) > most:
                raise TooLarge(f"a line has more than {most} bytes")
            begun.append(end)
            yield b"".join(begun)
            begun, size = [], 0
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > most:
            raise TooLarge(f"a line has more than {most} bytes")
    if begun:
        yield b"".join(begun)
