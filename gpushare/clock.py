"""Provide time: monotonic for durations, wall time only for values on the wire."""

import time
from typing import Final, Protocol

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; they never decrease."""

    def wall_ns(self) -> int:
        """Return the nanoseconds since the Unix epoch."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()


class BootClock(SystemClock):
    """A clock for deadlines that other machines also count, such as that of a Lease.

    ``time.monotonic`` stops while a machine is suspended, so a resumed leader would believe that it
    still leads. CLOCK_BOOTTIME continues; outside of Linux, ``time.monotonic`` is used.
    """

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOT)
