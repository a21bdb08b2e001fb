"""A GPU driver for unit tests that shows what was set, including errors."""

import queue
import threading
from collections.abc import Sequence

from deviceplugin.driver.interface import CardEvent, PhysicalCard, Seen
from deviceplugin.errors import DriverError


class FakeDriver:
    """Set ``shown`` to change the machine, ``silent`` to make the whole driver fail.

    ``happens`` makes an event; ``deaf`` makes waiting for events fail.
    """

    def __init__(self, *shown: Seen) -> None:
        self.shown: Sequence[Seen] = shown
        self.silent = ""
        self.deaf = ""
        self.waits = 0
        self.answered = 0
        self._looked_at: Sequence[Seen] = shown
        self._events: queue.SimpleQueue[CardEvent] = queue.SimpleQueue()
        self._hanging: dict[int, threading.Event] = {}

    @property
    def heard(self) -> frozenset[str]:
        return frozenset(card.uuid for card in self.shown)

    def count(self) -> int:
        if self.silent:
            raise DriverError(self.silent)
        self.answered += 1
        self._looked_at = tuple(self.shown)
        return len(self._looked_at)

    def card(self, position: int) -> Seen:
        shown = self._looked_at[position]
        if (hanging := self._hanging.get(position)) is not None:
            hanging.wait()
        self.answered += 1
        return shown

    def hang(self, position: int) -> None:
        """Let calls for that card hang."""
        self._hanging[position] = threading.Event()

    def let_go(self, position: int) -> None:
        if (hanging := self._hanging.pop(position, None)) is not None:
            hanging.set()

    def happens(self, uuid: str, xid: int = 0) -> None:
        self._events.put(CardEvent(uuid, xid))

    def next_event(self, seconds: float) -> CardEvent | None:
        self.waits += 1
        if self.deaf:
            raise DriverError(self.deaf)
        try:
            return self._events.get(timeout=min(seconds, 0.1))
        except queue.Empty:
            return None


def card(number: int, mib: int = 16276, **words) -> PhysicalCard:
    """Return a card whose UUID contains its number."""
    return PhysicalCard(f"GPU-{number:08d}", number, "NVIDIA Fake", mib, 0, **words)
