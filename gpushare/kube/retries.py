"""Writes that are tried again: each has a wait of its own, so that none holds up another."""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from gpushare.clock import Clock
from gpushare.kube.backoff import Backoff

K = TypeVar("K", bound=Hashable)


class Retries(Generic[K]):
    """What was refused, and when it may be tried again: after ``low`` to ``high`` seconds."""

    def __init__(self, clock: Clock, low: float = 0.5, high: float = 30.0) -> None:
        self._clock = clock
        self._bounds = low, high
        self._waiting: dict[K, tuple[Backoff, float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def is_ready(self, key: K) -> bool:
        """Whether ``key`` was not refused, or has waited long enough."""
        return key not in self._waiting or self._waiting[key][1] <= self._clock.monotonic()

    def tried(self, key: K, *, landed: bool) -> None:
        if landed:
            self._waiting.pop(key, None)
            return
        backoff, _ = self._waiting.get(key) or (Backoff(*self._bounds), 0.0)
        self._waiting[key] = backoff, self._clock.monotonic() + backoff.next()

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget what is not due any more."""
        self._waiting = {key: wait for key, wait in self._waiting.items() if key in keys}

    def seconds(self, most: float) -> float:
        """How long nothing needs to be tried, ``most`` at most."""
        soonest = min((at for _, at in self._waiting.values()), default=float("inf"))
        return min(most, max(0.0, soonest - self._clock.monotonic()))
