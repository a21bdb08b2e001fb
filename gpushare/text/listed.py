"""Write several words in one phrase (pure)."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 3, *, count: int = 0) -> str:
    """Return the first names, and how many more there are: ``a, b, c and 5 more``.

    There are ``count``, if that is more than the names. Empty without names.
    """
    shown = names[:most]
    more = max(count, len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if shown and more else "")


def all_of(parts: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
