"""Where time comes from: monotonic for durations, wall time only for what goes on the wire."""

import time
from typing import Final, Protocol

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class BootClock:
    """For what must be over by a moment that others count too: a Lease.

    ``time.monotonic`` stands still while a machine is suspended, and its lease goes on: awake again
    it would believe that it leads. CLOCK_BOOTTIME goes on; elsewhere than on Linux there is none.
    """

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOT)

    def wall_ns(self) -> int:
        return time.time_ns()


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()
