"""Limit how long a search may take (pure): it counts steps, because this code has no clock."""

from typing import Final

MOST_STEPS: Final = 20_000  # of about 1 us: 20 ms
MOST_RANKS: Final = 400_000  # of about 5 us: 2 s


class Budget:
    """``gave_up``: a search ended because there were no steps left, or it was not even begun.

    Ranks are of nodes, to place members one after the other in all areas: they are not searched.
    """

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left, self.gave_up = steps, False
        self._steps, self._ranks = steps, MOST_RANKS

    @property
    def used(self) -> int:
        return self._steps - self.left

    def spend(self, steps: int) -> bool:
        """Use steps; return whether there were enough of them."""
        self.left -= steps
        if self.left < 0:
            self.gave_up = True
        return self.left >= 0

    def may_rank(self, ranks: int) -> bool:
        """Use ranks; return whether there were enough of them."""
        self._ranks -= ranks
        if self._ranks < 0:
            self.gave_up = True
        return self._ranks >= 0
