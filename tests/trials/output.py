"""Print the lines of a trial, each with the seconds since its start."""

import time
from collections.abc import Callable, Sequence

_MOST = 100

Say = Callable[[str], None]


def printer() -> Say:
    """Return a function that prints a line with the seconds since this call."""
    began = time.monotonic()
    return lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)


def exit_code(say: Say, problems: Sequence[str]) -> int:
    """Print the first problems; return 1 if there are any."""
    for text in problems[:_MOST]:
        say(f"  {text[:300]}")
    return int(bool(problems))
