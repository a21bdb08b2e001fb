"""Of many gated pods exactly those are released for which a freed GPU has room."""

import random
import time
from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple

from localcluster.wait import wait_until
from tests.trials.preemption.stage import CARDS, NODES, PODS, UNITS, Described, Stage

SIZES: Final = 2, 3, 5, 7, 11
LEVELS: Final = 3
MOST_ATTEMPTS: Final = 1.05  # of kube-scheduler for each pod that is placed
FREED_SECONDS: Final = 30.0  # at most, until a freed GPU is used again


class _Waiting(NamedTuple):
    """A pod that waits. Those of a higher priority sort first, then older ones."""

    place: tuple[int, str, str]
    units: int
    name: str


class Wake:
    """``count`` gated pods wait; one GPU after the other becomes free."""

    def __init__(self, stage: Stage, count: int, rng: random.Random) -> None:
        self._stage, self._count, self._rng = stage, count, rng

    def play(self) -> str:
        stage, rng = self._stage, self._rng
        fillers = [Described(f"f{number}", UNITS, LEVELS) for number in range(NODES * CARDS)]
        stage.create(*fillers)
        stage.wait_bound(*(each.name for each in fillers), seconds=120)
        numbers = range(self._count)
        stage.create(
            *(
                Described(f"w{n}", rng.choice(SIZES), rng.randrange(LEVELS), is_gated=True)
                for n in numbers
            )
        )
        queue, before, took = self._queue(), stage.attempts(), list[float]()
        rng.shuffle(fillers)
        for filler in fillers:
            if not queue:
                break
            fitting = _fitting(queue)
            stage.delete(filler.name)
            queue = [each for each in queue if each not in fitting]
            left = {each.name for each in queue}
            took.append(self._wait_placed({each.name for each in fitting}, left))
            self._judge(left, len(took))
        placed = self._count - len(queue)
        if stage.history.evicted():
            stage.lost.append(f"{[each.name for each in stage.history.evicted()]} were evicted")
        attempts = (stage.attempts() - before) / placed
        if attempts > MOST_ATTEMPTS:
            stage.lost.append(f"{attempts:.3f} attempts of kube-scheduler for each placed pod")
        return (
            f"{self._count} gated pods of {len(SIZES)} sizes, {len(took)} GPUs freed one by one, "
            f"{placed} placed with {attempts:.3f} attempts each; all that fit were placed "
            f"{median(took):.2f} s after a GPU was freed, at most {max(took):.2f} s"
        )

    def _queue(self) -> list[_Waiting]:
        """Return the pods that wait, the most urgent first."""
        found = []
        with self._stage.cluster.api() as api:
            for each in api.get(PODS)["items"]:
                meta, spec = each["metadata"], each["spec"]
                if spec.get("schedulingGates"):
                    place = -spec["priority"], meta["creationTimestamp"], meta["uid"]
                    units = self._stage.history.pods[meta["uid"]].units
                    found.append(_Waiting(place, units, meta["name"]))
        return sorted(found)

    def _wait_placed(self, names: set[str], waiting: set[str]) -> float:
        """Return after how many seconds all these pods are bound."""
        began, history = time.monotonic(), self._stage.history

        def missing() -> str | None:
            bound = {each.name for each in history.present() if each.is_bound}
            others = {e.name for e in history.present() if e.name in waiting and not e.is_gated}
            left = names - bound
            return f"not {', '.join(left)}, but {others or 'no others'}" if left else None

        wait_until("those that fit to be placed", missing, seconds=FREED_SECONDS, interval=0.02)
        return time.monotonic() - began

    def _judge(self, waiting: set[str], freed: int) -> None:
        present = self._stage.history.present()
        released = [e.name for e in present if e.name in waiting and not e.is_gated]
        if released:
            self._stage.lost.append(f"GPU {freed}: {released} were released without room")


def _fitting(queue: Iterable[_Waiting]) -> list[_Waiting]:
    """Return which pods fit on one free GPU, if each that does not is passed over."""
    free, found = UNITS, []
    for each in queue:
        if each.units <= free:
            free -= each.units
            found.append(each)
    return found
