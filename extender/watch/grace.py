"""Gives the watch a moment before a pod that waits is refused once more.

A pod that was refused is tried again because of an event: kube-scheduler has just seen a pod end,
say. Our own watch may be a moment behind, and a refusal by what was before that would be the last
word for minutes: nothing else happens to the pod then.
"""

import asyncio
from collections import deque
from typing import Final

from gpushare.clock import Clock

TURNS: Final = 5  # of the event loop: what has arrived already is taken in by then
SECONDS: Final = 0.01
MOST: Final = 20
WITHIN_SECONDS: Final = 4.0  # kube-scheduler waits meanwhile, with all its pods: 5 % of its time


class Hearing:
    """Waits ``MOST`` times in ``WITHIN_SECONDS`` at most, and else only reads what has come.

    Several in a row, because a pod's end is several updates within some 150 ms, kube-scheduler
    tries again at each (eventhandlers.go), and the last of them is the one that counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: deque[float] = deque(maxlen=MOST)

    async def hear(self) -> None:
        """Return once what the watch has brought is known."""
        now = self._clock.monotonic()
        if len(self._waits) < MOST or now - self._waits[0] >= WITHIN_SECONDS:
            self._waits.append(now)
            await asyncio.sleep(SECONDS)
        for _ in range(TURNS):
            await asyncio.sleep(0)
