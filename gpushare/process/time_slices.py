"""Run long computations in slices of time, so that the event loop runs other tasks in between."""

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

SLICE_SECONDS: Final = 0.002
SHORT_SECONDS: Final = 0.0005
RESTS: Final = 4.0

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


async def run_in_turns(steps: Generator[None, None, T], turn: asyncio.Lock) -> T:
    """Run all steps and return their result.

    Of the callers that share ``turn``, one runs a slice at a time, and after it all other tasks
    have as much time.
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


class Turns:
    """Runs short and long computations that nobody waits for, beside calls that are waited for.

    After each SHORT_SECONDS in all, of one computation or of many, other tasks have RESTS times as
    long; while one is in a hurry, they have as long.
    """

    def __init__(self) -> None:
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
                if self._used >= SHORT_SECONDS:
                    used, self._used = self._used, 0.0
                    await asyncio.sleep(used if self._hurried else used * RESTS)
                began, before = time.perf_counter(), self._used
                while self._used < SHORT_SECONDS:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                    finally:
                        self._used = before + time.perf_counter() - began
