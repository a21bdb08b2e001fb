"""Reads whose a process is, and since when it runs, from /proc."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deviceplugin.usage.cgroup_paths import owner_of
from deviceplugin.usage.rules import VisibleProcess
from gpushare.clock import Clock

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second
_STARTED: Final = 19  # the place of starttime after the name, which may be any text (proc(5))
_US: Final = 1_000_000


def visible(proc: Path, pids: Iterable[int]) -> dict[int, VisibleProcess]:
    """Return the processes that are visible below ``proc`` now."""
    found = {}
    for pid in pids:
        try:
            group = (proc / str(pid) / "cgroup").read_text(errors="replace")
            stat = (proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            continue  # it has ended since, or is not visible
        ticks = int(stat.rpartition(")")[2].split()[_STARTED]) + 1  # a part of a tick is cut off
        found[pid] = VisibleProcess(owner_of(group), ticks * _US // _TICKS)
    return found


def booted_us(clock: Clock) -> int:
    """Return when the machine was booted, in microseconds since the Unix epoch.

    The monotonic time of ``clock`` counts from the boot.
    """
    since_boot_us = int(clock.monotonic() * _US)
    return clock.wall_ns() // 1000 - since_boot_us
