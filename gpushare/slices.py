"""Take a long piece of work in slices of time, so that the event loop answers others in between."""

import asyncio
import time
from collections.abc import Generator, Iterable
from typing import Any, Final, TypeVar

SLICE_SECONDS: Final = 0.002

T = TypeVar("T")


async def in_slices(steps: Iterable[None]) -> None:
    """Take all steps, and let others go on after every SLICE_SECONDS of them."""
    began = time.perf_counter()
    for _ in steps:
        if time.perf_counter() - began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


async def found_in_slices(steps: Generator[Any, None, T]) -> T:
    """Take all steps as ``in_slices`` does, and return what they come to."""

    def kept() -> Generator[Any, None, None]:
        found.append((yield from steps))

    found: list[T] = []
    await in_slices(kept())
    return found[0]
