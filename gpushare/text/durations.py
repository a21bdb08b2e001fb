"""Write durations for people, as kubectl does (pure)."""

import datetime as dt
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60))


def ago(at: str, now: dt.datetime) -> str:
    """Return ``12m ago`` for a time of the API server; empty if it cannot be read."""
    try:
        seconds = (now - dt.datetime.fromisoformat(at)).total_seconds()
    except (ValueError, TypeError):  # TypeError: without a time zone
        return ""
    return f"{short(seconds)} ago"


def short(seconds: float) -> str:
    """Return ``90s``, ``12m``, ``3h`` or ``2d``, rounded down."""
    for sign, size in _UNITS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{sign}"
    return f"{max(0, int(seconds))}s"
