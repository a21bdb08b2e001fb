"""The leading extender is killed between the evictions of one plan."""

import random
import time
from collections import Counter
from statistics import median
from typing import Final

from localcluster.wait import wait_until
from tests.trials.preemption.history import Seen
from tests.trials.preemption.stage import CARDS, UNITS, Described, Stage

NODES: Final = 2
LEVELS: Final = 3  # of priority, below that of the preemptor
FEWEST, MOST = 4, 16  # victims
PLACED_SECONDS: Final = 60.0
# Units of each victim and of the preemptor on each GPU; its GPUs, all of a pod or one a member.
_KINDS: Final = [
    (size, units, cards, is_gang)
    for size in (1, 2, 4)
    for units in (8, 12, 16)
    for cards in (1, 2)
    for is_gang in (False, True)
    if FEWEST <= units // size * cards <= MOST and not (is_gang and cards == 1)
]


class Kills:
    """Each of ``times`` trials fills NODES with equal pods and lets a pod or gang evict some."""

    def __init__(self, stage: Stage, times: int, rng: random.Random) -> None:
        self._stage, self._times, self._rng = stage, times, rng
        self._kinds: Counter[str] = Counter()
        self._victims = 0
        self._killed_late = 0

    def play(self) -> str:
        took = [self._one(number) for number in range(self._times)]
        kinds = ", ".join(f"{count} x {kind}" for kind, count in self._kinds.items())
        return (
            f"{self._times} kills ({kinds}), {self._killed_late} of them when all were evicted; "
            f"{self._victims} victims; the preemptor was placed {median(took):.1f} s after the "
            f"kill, at most {max(took):.1f} s"
        )

    def _one(self, number: int) -> float:
        """Return the seconds from the kill until the preemptor was placed."""
        stage, rng = self._stage, self._rng
        size, units, cards, is_gang = rng.choice(_KINDS)
        is_gated = rng.random() < 0.5
        fillers = [
            Described(f"k{number}-v{index}", size, rng.randrange(LEVELS), nodes=NODES)
            for index in range(NODES * CARDS * (UNITS // size))
        ]
        stage.create(*fillers)
        stage.wait_bound(*(each.name for each in fillers))
        leader = stage.seats.wait_leading_extender()
        preemptors = [
            Described(
                f"k{number}-p{index}",
                units,
                LEVELS,
                1 if is_gang else cards,
                is_gated=is_gated,
                nodes=NODES,
                gang=(f"k{number}", cards) if is_gang else None,
            )
            for index in range(cards if is_gang else 1)
        ]
        wanted = units // size * cards
        kill_at = rng.randint(1, wanted - 1)
        stage.create(*preemptors)

        def few() -> str | None:
            found = len(stage.history.evicted())
            return None if found >= kill_at else f"{found} of {kill_at}"

        wait_until("evictions", few, seconds=30, interval=0.005)
        stage.seats.kill(leader)
        killed = time.monotonic()
        self._killed_late += len(stage.history.evicted()) >= wanted
        names = [each.name for each in preemptors]
        stage.wait_bound(*names, seconds=PLACED_SECONDS)
        placed = [found for name in names if (found := stage.history.named(name)) is not None]
        took = max(each.bound_at for each in placed) - killed
        self._kinds[f"{'gated ' if is_gated else ''}{'gang' if is_gang else 'pod'}"] += 1
        self._victims += len(stage.history.evicted())
        self._judge(number, placed, size, units)
        stage.clear()
        stage.history.begin()
        return took

    def _judge(self, number: int, placed: list[Seen], size: int, units: int) -> None:
        """Check that on the GPUs of the preemptor as many were evicted as needed, and no others.

        All GPUs were full with pods of equal size. Two members of a gang may get the same GPU.
        """
        expected = Counter(card for each in placed for card in each.cards * (units // size))
        found = Counter(card for each in self._stage.history.evicted() for card in each.cards)
        if found != expected:
            self._stage.lost.append(f"trial {number}: evicted {found}, needed {expected}")
        high = [each.name for each in self._stage.history.evicted() if each.priority >= 30]
        if high:
            self._stage.lost.append(f"trial {number}: {high} are not of a lower priority")
