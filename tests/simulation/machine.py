"""A machine of the simulation: its own clock, and one process that can be stopped or killed."""

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Final, Literal

MACHINE: Final[ContextVar["Machine | None"]] = ContextVar("MACHINE", default=None)
WALL_AT_START: Final = 1_800_000_000.0


class Machine:
    """Its clock began ``offset`` seconds ago and runs ``rate`` times as fast as true time.

    Its wall clock is off by ``wall_offset``. Code in ``context`` is the machine's process: it
    pauses while the machine is stopped, and ends when it is dead.
    """

    def __init__(
        self,
        name: str,
        true_now: Callable[[], float],
        *,
        offset: float = 0.0,
        rate: float = 1.0,
        wall_offset: float = 0.0,
    ) -> None:
        self.name = name
        self.state: Literal["runs", "stopped", "dead"] = "runs"
        self.held_back: list[asyncio.Handle] = []
        self.context = Context()
        self.context.run(MACHINE.set, self)
        self._true_now = true_now
        self._offset, self._rate = offset, rate
        self._wall_offset = WALL_AT_START + wall_offset

    def monotonic(self) -> float:
        """Return seconds by this machine's clock."""
        return self._offset + self._rate * self._true_now()

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch by this machine's wall clock."""
        return int((self._wall_offset + self._true_now()) * 1e9)

    def true_time(self, moment: float) -> float:
        """Return when this machine's clock shows ``moment``."""
        return (moment - self._offset) / self._rate

    def true_time_of_wall(self, wall_ns: int) -> float:
        """Return when this machine's wall clock shows ``wall_ns``."""
        return wall_ns / 1e9 - self._wall_offset
