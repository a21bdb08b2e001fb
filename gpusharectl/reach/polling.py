"""Repeat a question until its answer is final, or the time is over."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

POLL_SECONDS: Final = 0.5

T = TypeVar("T")


async def poll(ask: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Ask until the answer is true or ``seconds`` are over; return the last answer."""
    end = time.monotonic() + seconds
    while True:
        answer = await ask()
        if answer or time.monotonic() >= end:
            return answer
        await asyncio.sleep(POLL_SECONDS)
