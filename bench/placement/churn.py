"""Lets pods come and go at a constant load, and counts the GPU time of those that find no room."""

import heapq
import random
from dataclasses import dataclass
from typing import Final

from bench.placement.books import Place, Setup
from bench.placement.trace import TracePod

WARM: Final = 1.5  # mean lifetimes until the measurement
MEASURED: Final = 3.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Percentages of the requested GPU time: of all pods, and ``large``: of pods of 8 GPUs."""

    total: float
    large: float


def churn(setup: Setup, seed: int, load: float) -> Refused:
    """Let pods of the trace arrive at random; the mean of their lifetimes is 1.

    The requested GPU time is ``load`` times the capacity. A pod that finds no room does not wait.
    """
    draw, trace = random.Random(seed), setup.trace  # noqa: S311 - the same each time
    mean = sum(pod.size for pod in trace.pods) / len(trace.pods)
    rate = load * trace.capacity / mean
    ends: list[tuple[float, int, TracePod, Place]] = []
    now, number = 0.0, 0
    asked = refused = large = 0.0
    while (now := now + draw.expovariate(rate)) < WARM + MEASURED:
        while ends and ends[0][0] <= now:
            _, gone, pod, place = heapq.heappop(ends)
            setup.remove(pod, f"pod-{gone}", place)
        number += 1
        pod, life = draw.choice(trace.pods), draw.expovariate(1)
        found = setup.bind(pod, f"pod-{number}")
        gpu_time = pod.size * life
        if now >= WARM:
            asked += gpu_time
            if found is None:
                refused += gpu_time
                large += gpu_time * (pod.cards == 8)  # noqa: PLR2004 - the most of any pod
        if found is not None:
            heapq.heappush(ends, (now + life, number, pod, found))
    return Refused(100 * refused / asked, 100 * large / asked)
