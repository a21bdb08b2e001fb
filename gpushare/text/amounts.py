"""Write amounts of memory for people, in GiB (pure).

What is free rounds down and what is needed rounds up, so that an amount that reads as enough is
enough. What is used never reads as more than there is. Programs get exact units instead.
The live page's format.js has the same rules.
"""

from typing import Final

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


def _tenths(mib: int) -> int:
    return mib * 10 // MIB_PER_GIB


def _written(mib: int, tenths: int) -> str:
    if 0 < mib < MIB_PER_GIB:
        return f"{mib} MiB"
    whole, rest = divmod(tenths, 10)
    return f"{whole:,}.{rest} GiB" if rest else f"{whole:,} GiB"
