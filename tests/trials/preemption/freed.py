"""Freed room goes to the pod for which it was made, whatever else is created meanwhile."""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Final

from localcluster.errors import LocalClusterError
from localcluster.wait import wait_until
from tests.trials.preemption.stage import CARDS, UNITS, Described, Stage, node_names

AT_ONCE: Final = 4  # each on a node of its own
GRACE_SECONDS: Final = 2
SMALL: Final = 7  # units that fit nowhere but on the freed GPU
LOW, EQUAL, HIGH = 0, 2, 2  # levels of priority
LOWER: Final = 1
STREAM_SECONDS: Final = 0.15  # between two other pods
PLACED_SECONDS: Final = 60.0
_BY_SCHEDULER: Final = 0.25  # of the trials


class Freed:
    """On a node on which no GPU has room for anything else, one low pod has to go.

    In some trials kube-scheduler evicts it, in the others the sum of the node has room.
    """

    def __init__(self, stage: Stage, times: int, rng: random.Random) -> None:
        self._stage, self._times = stage, times
        self._seeds = [rng.random() for _ in range(times)]
        self._by: Counter[str] = Counter()
        self._others = 0

    def play(self) -> str:
        nodes = node_names(AT_ONCE)

        def some(first: int) -> list[float]:
            numbers = range(first, self._times, AT_ONCE)
            return [self._one(number, nodes[first]) for number in numbers]

        with ThreadPoolExecutor(AT_ONCE) as pool:
            took = [each for found in pool.map(some, range(AT_ONCE)) for each in found]
        by = ", ".join(f"{count} x {name}" for name, count in self._by.items())
        return (
            f"{self._times} times ({by}), {self._others} other pods meanwhile; "
            f"placed {median(took):.1f} s after its creation, at most {max(took):.1f} s, with a "
            f"grace period of {GRACE_SECONDS} s"
        )

    def _one(self, number: int, node: str) -> float:
        stage, rng = self._stage, random.Random(self._seeds[number])
        # kube-scheduler evicts where the sum of the node lacks room: 10 units are free, 14 wanted.
        by_scheduler = rng.random() < _BY_SCHEDULER
        victim, wanted = (12, 14) if by_scheduler else (10, 10)
        kept = [10, *[UNITS] * (CARDS - 2)] if by_scheduler else [10] * (CARDS - 1)

        def described(what: str, units: int, level: int, *, is_gated: bool = False) -> Described:
            return Described(
                f"f{number}-{what}",
                units,
                level,
                is_gated=is_gated,
                grace=GRACE_SECONDS,
                node=node,
            )

        fillers = [described(f"k{index}", units, HIGH) for index, units in enumerate(kept)]
        fillers.append(described("victim", victim, LOW))
        stage.create(*fillers)
        stage.wait_bound(*(each.name for each in fillers))
        is_gated = not by_scheduler and rng.random() < 0.5
        preemptor = described("high", wanted, HIGH, is_gated=is_gated)
        stage.create(preemptor)
        created = time.monotonic()
        others: list[str] = []
        victim_name = fillers[-1].name
        # An equal pod that is created before that may as well be the one for which it is evicted.
        wait_until("the eviction", lambda: self._unevicted(victim_name), seconds=PLACED_SECONDS)
        began = time.monotonic()
        while not self._is_bound(preemptor.name):
            if time.monotonic() - created > PLACED_SECONDS:
                stage.lost.append(f"freed {number}: {preemptor} was not placed")
                break
            if len(others) * STREAM_SECONDS < time.monotonic() - began:
                level = rng.choice((EQUAL, LOWER))
                gated = rng.random() < 0.5
                other = described(f"o{len(others)}", SMALL, level, is_gated=gated)
                stage.create(other)
                others.append(other.name)
            time.sleep(0.02)
        took = time.monotonic() - created
        self._judge(number, others, victim_name)
        stage.delete(preemptor.name, *others, *(each.name for each in fillers))
        self._wait_gone(f"f{number}-")
        return took

    def _judge(self, number: int, others: list[str], victim: str) -> None:
        history, lost = self._stage.history, self._stage.lost
        self._others += len(others)
        seen = history.named(victim)
        self._by[seen.by if seen is not None else "not evicted"] += 1
        placed = [each.name for each in history.present() if each.name in others and each.is_bound]
        if placed:
            lost.append(f"freed {number}: {placed} were placed")
        wrong = [
            each.name
            for each in history.evicted()
            if each.name.startswith(f"f{number}-") and each.name != victim
        ]
        if wrong:
            lost.append(f"freed {number}: {wrong} were evicted")

    def _is_bound(self, name: str) -> bool:
        found = self._stage.history.named(name)
        return found is not None and found.is_bound

    def _unevicted(self, name: str) -> str | None:
        found = self._stage.history.named(name)
        return None if found is not None and found.by else f"{name} runs"

    def _wait_gone(self, prefix: str) -> None:
        def some() -> str | None:
            found = [each.name for each in self._stage.history.present()]
            return ", ".join(name for name in found if name.startswith(prefix)) or None

        try:
            wait_until("the pods of a trial to be gone", some, seconds=20)
        except LocalClusterError as err:
            self._stage.lost.append(str(err))
