"""A GPU driver for unit tests: what it shows is what was set, errors included."""

from collections.abc import Sequence

from deviceplugin.driver import PhysicalCard, Seen
from deviceplugin.errors import DriverError


class FakeDriver:
    """Set ``shown`` to change the machine, ``silent`` to make the whole driver fail."""

    def __init__(self, *shown: Seen) -> None:
        self.shown: Sequence[Seen] = shown
        self.silent = ""

    def cards(self) -> tuple[Seen, ...]:
        if self.silent:
            raise DriverError(self.silent)
        return tuple(self.shown)


def card(number: int, mib: int = 16276, **words) -> PhysicalCard:
    """A card whose UUID is told by its number."""
    return PhysicalCard(f"GPU-{number:08d}", number, "NVIDIA Fake", mib, 0, **words)
