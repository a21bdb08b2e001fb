"""Judge what a trial with hostile objects has found (pure).

A trial that tried nothing fails too.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MOST_RATIO: Final = 2.0
LEAST_CALLS: Final = 200  # that were answered: two of them are above the 99th percentile


@dataclass(frozen=True)
class Found:
    """Milliseconds of filter, the fastest first; infinite without an answer."""

    calm: list[float]
    hostile: list[float]
    writes: int
    taken: Mapping[str, int]  # objects that the API server accepted in hostile turns, by kind
    connections: int  # half-open ones
    bound: int  # ordinary pods

    @property
    def ratio(self) -> float:
        """Return how many times as long filter's 99th percentile is with hostile objects."""
        slow, usual = percentile(self.hostile, 0.99), percentile(self.calm, 0.99)
        return slow / usual if 0 < usual < math.inf else math.inf


def percentile(rising: list[float], part: float) -> float:
    """Return the value below which ``part`` of the sorted values are; infinite without any."""
    return rising[min(len(rising) - 1, int(len(rising) * part))] if rising else math.inf


def broken(found: Found, kinds: Collection[str], least_connections: int) -> list[str]:
    """Return what was not tried at all or too little, and whether filter took too long."""
    texts = []
    for name, calls in (("without", found.calm), ("with", found.hostile)):
        answered = sum(map(math.isfinite, calls))
        if answered < LEAST_CALLS:
            texts.append(f"filter was measured {answered} times {name} hostile objects")
    if not math.isfinite(found.ratio):
        texts.append(f"filter's p99 cannot be compared: {found.ratio:.2f} times as long")
    elif found.ratio > MOST_RATIO:
        texts.append(f"filter's p99 is {found.ratio:.2f} times as long with hostile objects")
    if not found.writes:
        texts.append("the tenant wrote nothing")
    if missing := [kind for kind in kinds if not found.taken.get(kind)]:
        texts.append(f"nothing was taken of: {', '.join(missing)}")
    if found.connections < least_connections:
        texts.append(
            f"{found.connections} half-open connections came about, fewer than {least_connections}"
        )
    if not found.bound:
        texts.append("no ordinary pod was bound")
    return texts
