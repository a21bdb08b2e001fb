"""Limit how long a search may take (pure): it counts steps, because this code has no clock."""

from typing import Final

MOST_STEPS: Final = 20_000  # of about 1 us: 20 ms


class Budget:
    """``gave_up``: a search ended because there were no steps left, or it was not even begun."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left, self.gave_up = steps, False
        self._steps = steps

    @property
    def used(self) -> int:
        return self._steps - self.left

    def spend(self, steps: int) -> bool:
        """Use steps; return whether there were enough of them."""
        self.left -= steps
        if self.left < 0:
            self.gave_up = True
        return self.left >= 0
