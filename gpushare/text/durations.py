"""Write durations for people, as kubectl writes ages (pure)."""

from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60))


def short(seconds: float) -> str:
    """Return ``90s``, ``12m``, ``3h`` or ``2d``, rounded down."""
    for sign, size in _UNITS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{sign}"
    return f"{max(0, int(seconds))}s"
