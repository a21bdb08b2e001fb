"""Fills an empty cluster with pods that never leave (the "workload inflation" of FGD, ATC 2023)."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from bench.placement.books import Setup, idle
from bench.placement.trace import Trace, TracePod

ARRIVED: Final = 1.3  # of the capacity, at the end


@dataclass(frozen=True, slots=True)
class Filled:
    """Percentages of all units: allocated when as much or 1.3 times as much had been requested.

    ``first_refused``: what had been requested when the first pod with GPU found no room. ``idle``
    are the units left at the end by cause.
    """

    at_100: float
    at_130: float
    first_refused: float
    idle: dict[str, float]


def arrivals(trace: Trace, seed: int) -> list[TracePod]:
    """Return all pods in random order, then random ones until 1.3 of the capacity is requested."""
    draw = random.Random(seed)  # noqa: S311 - the same each time
    pods = draw.sample(trace.pods, len(trace.pods))
    found: list[TracePod] = []
    asked = 0
    while asked < ARRIVED * trace.capacity:
        found.append(pods[len(found)] if len(found) < len(pods) else draw.choice(trace.pods))
        asked += found[-1].size
    return found


def fill(setup: Setup, seed: int) -> Filled:
    """Let the pods arrive one after the other."""
    trace, books = setup.trace, setup.books
    asked = 0
    at_100 = first = -1.0
    capacity = trace.capacity
    pods = arrivals(trace, seed)
    for number, pod in enumerate(pods):
        asked += pod.size
        if setup.bind(pod, f"pod-{number}") is None and pod.cards and first < 0:
            first = 100 * asked / capacity
        if at_100 < 0 and asked >= capacity:
            at_100 = 100 * books.used / capacity
    causes = idle(books, Counter(pods).items())
    shares = {cause: 100 * units / capacity for cause, units in causes.items()}
    return Filled(
        at_100, 100 * books.used / capacity, first if first >= 0 else 100 * ARRIVED, shares
    )
