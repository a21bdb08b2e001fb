"""How long to wait before the next try: doubling, with full jitter."""

import random


class Backoff:
    """Waits between 0 and a ceiling that doubles from ``low`` to ``high`` seconds."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high, self._ceiling = low, high, low

    def next(self) -> float:
        """Seconds to wait now. At least a tenth of ``low``, so that no loop can spin."""
        ceiling, self._ceiling = self._ceiling, min(self._high, self._ceiling * 2)
        return random.uniform(self._low / 10, ceiling)  # noqa: S311 - no secret

    def reset(self) -> None:
        self._ceiling = self._low
