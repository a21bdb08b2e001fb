"""Waits for a condition, with a deadline whose error says what was observed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from localcluster.errors import DeadlineError

PATIENCE = "LOCALCLUSTER_PATIENCE"
"""Environment variable: how many times longer than usual a wait or a command may take, from 1."""

_TAIL_LINES = 15
_PART = 20
_MOST_INTERVAL = 0.5


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log, or a text that says it has none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - 200 * lines))
            found = log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        found = []
    return "\n".join(found) or "(nothing logged)"


def patient(seconds: float) -> float:
    """Return a limit for this machine: slow ones have more patience."""
    return seconds * float(os.environ.get(PATIENCE, "1"))


def wait_until(
    what: str,
    seen: Callable[[], str | None],
    *,
    seconds: float,
    log: Path | None = None,
    interval: float = 0.05,
) -> None:
    """Return once `seen` answers None; until then it answers what it saw instead.

    Raises DeadlineError after patient(`seconds`) with what was awaited, what was last seen, and the
    end of `log`. `interval` is in seconds, and grows with the wait: each check takes processor
    time from what is awaited.
    """
    began, limit = time.monotonic(), patient(seconds)
    while (last := seen()) is not None:
        waited = time.monotonic() - began
        if waited >= limit:
            text = f"waited {limit:g} s for: {what}; last seen: {last}"
            if log is not None:
                text += f"\nthe end of {log}:\n{tail(log)}"
            raise DeadlineError(text)
        time.sleep(max(interval, min(waited / _PART, _MOST_INTERVAL)))
