"""Run long computations in slices of time, so that the event loop runs other tasks in between."""

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from gpushare.process.polled_loop import has_arrivals

SLICE_SECONDS: Final = 0.002
RESTS: Final = 4
QUIET_SECONDS: Final = 0.001  # after an answer: its reader needs a CPU, and may ask again at once
MOST_SECONDS: Final = 0.01  # that one slice waits for calls
LOOK_SECONDS: Final = 0.00005  # between two looks at what has arrived

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


async def rest(used: float, *, least: float, most: float) -> None:
    """Sleep RESTS times as long as a round of work has used, within bounds; all in seconds.

    So rounds take a fifth of the time. ``used`` is without the turns that others had meanwhile.
    """
    await asyncio.sleep(min(most, max(least, RESTS * used)))


class Turns:
    """Runs short and long computations, a slice of one at a time, beside calls that are waited for.

    After each ``seconds`` in all, of one computation or of many, other tasks have ``rests`` times
    as long. While one is in a hurry, they have as long if a call is being answered or something has
    arrived, and a turn of the event loop otherwise. Without a hurry no slice begins while a call is
    being answered, and one ends when something arrives, which may be the next call. A call
    is handled in several turns of the event loop: with a slice between each two of them it would
    wait for all of these slices.
    """

    def __init__(self, seconds: float = SLICE_SECONDS, rests: float = 1.0) -> None:
        self._seconds, self._rests = seconds, rests
        self._lock = asyncio.Lock()
        self._used = 0.0  # seconds since others could run
        self._rested = 0.0  # seconds of the slices before that
        self._hurried = self._calls = 0
        self._answered_at = float("-inf")

    @property
    def spent(self) -> float:
        """Return the seconds that all computations have used, without the rests."""
        return self._rested + self._used

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Rest less as long as the context lasts: somebody waits for a result."""
        self._hurried += 1
        try:
            yield
        finally:
            self._hurried -= 1

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let no slice begin as long as the context lasts: a call is being answered."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._answered_at = time.perf_counter()

    async def pause(self) -> None:
        """Let others run between two short computations that are not run in steps."""
        await asyncio.sleep(0)
        await self._let_calls_pass()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run all steps and return their result; nothing else runs after the last step."""
        while True:
            async with self._lock:
                if self._used >= self._seconds:
                    used, self._used = self._used, 0.0
                    self._rested += used
                    await asyncio.sleep(self._rest(used))
                await self._let_calls_pass()
                began, before = time.perf_counter(), self._used
                look_at = before + LOOK_SECONDS
                while self._used < self._seconds:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                    finally:
                        self._used = before + time.perf_counter() - began
                    if self._used >= look_at and not self._hurried:
                        if has_arrivals():
                            break
                        look_at = self._used + LOOK_SECONDS

    def _rest(self, used: float) -> float:
        if not self._hurried:
            return used * self._rests
        return used if self._calls or has_arrivals() else 0.0

    async def _let_calls_pass(self) -> None:
        now = time.perf_counter()
        until = now + MOST_SECONDS
        while now < until and not self._hurried:
            is_quiet = now - self._answered_at >= QUIET_SECONDS
            if is_quiet and not self._calls and not has_arrivals():
                return
            await asyncio.sleep(QUIET_SECONDS)
            now = time.perf_counter()
