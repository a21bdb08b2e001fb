"""Run long computations in slices of time, so that the event loop runs other tasks in between."""

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

SLICE_SECONDS: Final = 0.002

T = TypeVar("T")


async def in_slices(steps: Iterable[None]) -> None:
    """Run all steps, and let other tasks run after every SLICE_SECONDS."""
    began = time.perf_counter()
    for _ in steps:
        if time.perf_counter() - began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


def run_all(steps: Generator[None, None, T]) -> T:
    """Run all steps without a pause and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


class Turns:
    """Runs short and long computations, a slice of one at a time, beside calls that are waited for.

    After each ``seconds`` in all, of one computation or of many, other tasks have ``rests`` times
    as long; while one is in a hurry, they have as long.
    """

    def __init__(self, seconds: float = SLICE_SECONDS, rests: float = 1.0) -> None:
        self._seconds, self._rests = seconds, rests
        self._lock = asyncio.Lock()
        self._used = 0.0  # seconds since others could run
        self._hurried = 0

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Rest less as long as the context lasts: somebody waits for a result."""
        self._hurried += 1
        try:
            yield
        finally:
            self._hurried -= 1

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run all steps and return their result; nothing else runs after the last step."""
        while True:
            async with self._lock:
                if self._used >= self._seconds:
                    used, self._used = self._used, 0.0
                    await asyncio.sleep(used if self._hurried else used * self._rests)
                began, before = time.perf_counter(), self._used
                while self._used < self._seconds:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                    finally:
                        self._used = before + time.perf_counter() - began
