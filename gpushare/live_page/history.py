"""The last hour of a cluster as a few samples for the live page (pure)."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from gpushare.live_page.feed import event

SAMPLES: Final = 61  # one a minute, with both ends of the hour


class Sample(NamedTuple):
    """``at`` is in seconds since the Unix epoch; ``pending`` counts pods."""

    at: int
    used_mib: int
    total_mib: int
    pending: int


class History:
    """Keeps the latest samples; ``count`` is the number of all that were added."""

    def __init__(self, samples: Iterable[Sample] = (), *, most: int = SAMPLES) -> None:
        self._samples = deque[Sample](samples, maxlen=most)
        self.count = len(self._samples)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        self.count += 1

    def event(self) -> bytes:
        """Return the server-sent event with all samples, the oldest first."""
        return event("history", msgspec.json.encode({"samples": list(self._samples)}))


def steps_event(steps: Sequence[tuple[str, Sample]]) -> bytes:
    """Return the same of a simulation; each sample is of a step, named by its time."""
    names, samples = [name for name, _ in steps], [sample for _, sample in steps]
    return event("history", msgspec.json.encode({"samples": samples, "steps": names}))
