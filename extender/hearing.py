"""Gives the watch a moment before a pod that waits is refused once more.

A pod that was refused is tried again because of an event: kube-scheduler has just seen a pod end,
say. Our own watch may be a moment behind, and a refusal by what was before that would be the last
word for minutes: nothing else happens to the pod then.
"""

import asyncio
from typing import Final

from gpushare.clock import Clock

TURNS: Final = 5  # of the event loop: what has arrived already is taken in by then
SECONDS: Final = 0.01
EVERY_SECONDS: Final = 0.2  # kube-scheduler waits meanwhile, with all its pods


class Hearing:
    """Waits once in ``EVERY_SECONDS`` at most, and else only reads what has come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = float("-inf")

    async def hear(self) -> None:
        """Return once what the watch has brought is known."""
        now = self._clock.monotonic()
        if now - self._last >= EVERY_SECONDS:
            self._last = now
            await asyncio.sleep(SECONDS)
        for _ in range(TURNS):
            await asyncio.sleep(0)
