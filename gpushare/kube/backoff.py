"""Compute how long to wait before a retry: doubling, with full jitter."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from gpushare.clock import Clock

K = TypeVar("K", bound=Hashable)


class Backoff:
    """Delays between 0 and a ceiling that doubles from ``low`` to ``high`` seconds."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high, self._ceiling = low, high, low

    def next(self) -> float:
        """Return the seconds to wait now: at least a tenth of ``low``, so that no loop can spin."""
        ceiling, self._ceiling = self._ceiling, min(self._high, self._ceiling * 2)
        return random.uniform(self._low / 10, ceiling)  # noqa: S311 - no secret

    def reset(self) -> None:
        self._ceiling = self._low


class Retries(Generic[K]):
    """Rejected writes and when each may be retried: after ``low`` to ``high`` seconds.

    Each key has its own delay, so that no write holds up another.
    """

    def __init__(self, clock: Clock, low: float = 0.5, high: float = 30.0) -> None:
        self._clock = clock
        self._bounds = low, high
        self._waiting: dict[K, tuple[Backoff, float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def is_ready(self, key: K) -> bool:
        """Return whether the last write of ``key`` succeeded or its delay is over."""
        return key not in self._waiting or self._waiting[key][1] <= self._clock.monotonic()

    def tried(self, key: K, *, landed: bool) -> None:
        if landed:
            self._waiting.pop(key, None)
            return
        backoff, _ = self._waiting.get(key) or (Backoff(*self._bounds), 0.0)
        self._waiting[key] = backoff, self._clock.monotonic() + backoff.next()

    def keep_only(self, keys: Collection[K]) -> None:
        self.keep_while(keys.__contains__)

    def keep_while(self, is_known: Callable[[K], bool]) -> None:
        """Forget the keys that are not known any more; the cost is that of what is rejected."""
        for key in [key for key in self._waiting if not is_known(key)]:
            del self._waiting[key]

    async def wait(self, change: asyncio.Event, most: float) -> None:
        """Return at the next ``change``, when a retry is due, or after ``most`` seconds."""
        soonest = min((at for _, at in self._waiting.values()), default=float("inf"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(most, max(0.0, soonest - self._clock.monotonic()))):
                await change.wait()
