"""Take a long piece of work in slices of time, so that the event loop answers others in between."""

import asyncio
import time
from collections.abc import Generator, Iterable
from typing import Final, TypeVar

SLICE_SECONDS: Final = 0.002

T = TypeVar("T")


async def in_slices(steps: Iterable[None]) -> None:
    """Take all steps, and let others go on after every SLICE_SECONDS of them."""
    began = time.perf_counter()
    for _ in steps:
        if time.perf_counter() - began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


async def run_in_turns(steps: Generator[None, None, T], turn: asyncio.Lock) -> T:
    """Take all steps, and return what they come to.

    All that share a ``turn`` have one slice at a time together, and everything else has as much
    time after it.
    """
    while True:
        async with turn:
            began = time.perf_counter()
            took = 0.0
            while took < SLICE_SECONDS:
                try:
                    next(steps)
                except StopIteration as end:
                    found: T = end.value
                    return found
                took = time.perf_counter() - began
            await asyncio.sleep(took)
