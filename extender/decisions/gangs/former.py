"""Remember for a while which gangs were whole when their last live member went (pure)."""

from collections.abc import Collection, Iterable
from typing import Final

KEPT_SECONDS: Final = 3600.0
MOST_KEPT: Final = 1000  # the oldest are forgotten first


class FormerGangs:
    """A controller may replace the last member of a gang a moment after it has gone.

    The successor is placed alone if the others are not created again. Pods without a controller are
    a new gang.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, frozenset[str]]] = {}  # until when, and controllers

    def put(self, owner: str, controllers: Iterable[str], now: float) -> None:
        """Take note that no member of a whole gang is bound any more."""
        self._found.pop(owner, None)
        self._found[owner] = now + KEPT_SECONDS, frozenset(controllers) - {""}
        if len(self._found) > MOST_KEPT:
            del self._found[next(iter(self._found))]

    def includes(self, owner: str, controllers: Collection[str], now: float) -> bool:
        """Return whether these controllers had created members of a gang that was whole."""
        until, before = self._found.get(owner, (0.0, frozenset()))
        return now < until and not before.isdisjoint(controllers)
