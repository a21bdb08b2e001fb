"""Write amounts of memory for people, in GiB (pure).

What is free rounds down and what is needed rounds up, so that an amount that reads as enough is
enough. What is used never reads as more than there is. Programs get exact units instead.
The live page's format.js has the same rules.
"""

from typing import Final

from gpushare.contract import RESOURCE_MEMORY
from gpushare.text.counted import counted

MIB_PER_GIB: Final = 1024


def free_gib(mib: int) -> str:
    """Return ``1,039.9 GiB`` or ``512 MiB``: at most one decimal, rounded down."""
    return _written(mib, _tenths(mib))


def needed_gib(mib: int) -> str:
    """Return the same, rounded up."""
    return _written(mib, -(-mib * 10 // MIB_PER_GIB))


def used_gib(mib: int, total: int) -> str:
    """Return what is used of ``total``: what is left by free_gib makes up the total as written.

    Less than a GiB, and more than the total, is rounded up.
    """
    if mib < MIB_PER_GIB or mib > total:
        return needed_gib(mib)
    return _written(mib, _tenths(total) - _tenths(total - mib))


class Amounts:
    """Writes units in GiB; as units if nobody says how large a unit is: ``unit_mib`` is 0."""

    def __init__(self, unit_mib: int) -> None:
        self._unit_mib = unit_mib

    def free(self, units: int) -> str:
        return free_gib(units * self._unit_mib) if self._unit_mib else counted(units, "unit")

    def needed(self, units: int) -> str:
        return needed_gib(units * self._unit_mib) if self._unit_mib else counted(units, "unit")


def to_write(units: int) -> str:
    """Return what to write in a container to request so many units."""
    return f"`{RESOURCE_MEMORY}: {units}`"


def _tenths(mib: int) -> int:
    return mib * 10 // MIB_PER_GIB


def _written(mib: int, tenths: int) -> str:
    if 0 < mib < MIB_PER_GIB:
        return f"{mib} MiB"
    whole, rest = divmod(tenths, 10)
    return f"{whole:,}.{rest} GiB" if rest else f"{whole:,} GiB"
