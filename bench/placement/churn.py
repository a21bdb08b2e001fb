"""Lets pods come and go at a constant load, and counts the GPU time of those that find no room."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.placement.books import Place, Setup
from bench.placement.trace import TracePod

WARM: Final = 1.5  # mean lifetimes until the measurement
MEASURED: Final = 3.0
LEAST: Final = 3000  # pods in the measurement, which is longer on a small cluster


@dataclass(frozen=True, slots=True)
class Refused:
    """Percentages of the requested GPU time: of all pods, and ``large``: of pods of 8 GPUs."""

    total: float
    large: float


def churn(setup: Setup, seed: int, load: float, after: Sequence[TracePod] = ()) -> Refused:
    """Let pods of the trace arrive at random; the mean of their lifetimes is 1.

    The requested GPU time is ``load`` times the capacity. A pod that finds no room does not wait.
    If there are pods ``after``, then from the middle of the measurement on only these arrive, at
    the same load, and only these are counted.
    """
    draw, trace = random.Random(seed), setup.trace  # noqa: S311 - the same each time
    pods, units = trace.pods, load * trace.capacity
    rate = _rate(pods, units)
    measured = max(MEASURED, LEAST / rate)
    counted, end = WARM + (measured / 2 if after else 0), WARM + measured
    ends: list[tuple[float, int, TracePod, Place]] = []
    now, number = 0.0, 0
    asked = refused = large = 0.0
    while (now := now + draw.expovariate(rate)) < end:
        if after and now >= counted:
            pods, rate, after = after, _rate(after, units), ()
        while ends and ends[0][0] <= now:
            _, gone, pod, place = heapq.heappop(ends)
            setup.remove(pod, f"pod-{gone}", place)
        number += 1
        pod, life = draw.choice(pods), draw.expovariate(1)
        found = setup.bind(pod, f"pod-{number}")
        gpu_time = pod.size * life
        if now >= counted:
            asked += gpu_time
            if found is None:
                refused += gpu_time
                large += gpu_time * (pod.cards == 8)  # noqa: PLR2004 - the most of any pod
        if found is not None:
            heapq.heappush(ends, (now + life, number, pod, found))
    return Refused(100 * refused / asked, 100 * large / asked)


def _rate(pods: Sequence[TracePod], units: float) -> float:
    """Return how many of these pods must arrive in a mean lifetime to request that many units."""
    return units * len(pods) / sum(pod.size for pod in pods)
