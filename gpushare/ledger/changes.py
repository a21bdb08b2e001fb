"""Record which names have changed, for readers at different revisions (pure)."""

from collections.abc import Collection
from itertools import takewhile
from typing import Final

KEPT: Final = 50_000  # names; far more than a cluster has nodes


class Changes:
    """Names in the order of their last change. Each reader keeps ``now`` as of its last read."""

    def __init__(self) -> None:
        self.now = 0
        self._last: dict[str, int] = {}  # name to its last change, oldest first
        self._forgotten = 0

    def add(self, name: str) -> None:
        self.now += 1
        self._last.pop(name, None)
        self._last[name] = self.now
        if len(self._last) > KEPT:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, seen: int) -> Collection[str] | None:
        """Return the names that changed after ``seen``; None if ``seen`` is too old to answer."""
        if seen == self.now:
            return ()  # the usual case
        if seen < self._forgotten:
            return None
        newest_first = reversed(self._last.items())
        return [name for name, at in takewhile(lambda item: item[1] > seen, newest_first)]
