"""A large gang gets room beside an endless stream of single pods."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from localcluster.errors import DeadlineError
from tests.trials.queue.stage import ALL_CARDS, UNITS, WAITED_SECONDS, Described, Stage, gang

NAMESPACE: Final = "stream"
SIZE: Final = ALL_CARDS * 6 // 10
BACKLOG: Final = 20  # single pods that wait at any time
SAMPLE_SECONDS: Final = 0.5
STEP_SECONDS: Final = 0.1
# Claims are made every two seconds, and the pods end and begin in steps.
SLACK_SECONDS: Final = 5.0
IDLE: Final = "gpushare_queue_claimed_idle_units"


@dataclass
class Starvation:
    """Single pods of a whole GPU run for ``run_seconds`` at most, and new ones always wait."""

    stage: Stage
    reserve_seconds: int
    run_seconds: float
    rng: random.Random
    _lives: dict[str, float] = field(default_factory=dict)  # by uid
    _made: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)

    def play(self) -> str:
        stage = self.stage
        stage.configure(queue={"reserveAfterSeconds": self.reserve_seconds})
        stage.namespace(NAMESPACE)
        self._run_until(lambda: stage.history.used(NAMESPACE) == ALL_CARDS * UNITS)
        # It is the first that waits from its creation on.
        self._run_until(lambda: not self._waiting(), backlog=0)
        members = gang("large", NAMESPACE, SIZE, UNITS)
        names = {each.name for each in members}
        stage.create(*members)
        began = time.monotonic()
        limit = self.reserve_seconds + self.run_seconds + SLACK_SECONDS
        with ThreadPoolExecutor(1) as pool:
            sampling = pool.submit(self._sample_idle)
            found = names & stage.bound()
            while len(found) < SIZE and time.monotonic() - began < 2 * limit:
                self._run(BACKLOG)
                time.sleep(STEP_SECONDS)
                found = names & stage.bound()
            self._is_over.set()
            idle, most_idle = sampling.result()
        if len(found) < SIZE:
            stage.lost.append(f"starvation: {len(found)} of {SIZE} members bound in {2 * limit} s")
        bound_at = [each.bound_at for each in stage.history.pods.values() if each.name in names]
        first, whole = min(bound_at) - began, max(bound_at) - began
        if whole > limit:
            stage.lost.append(f"starvation: whole after {whole:.0f} s, limit {limit:.0f} s")
        share = idle / (ALL_CARDS * UNITS * max(whole, 1))
        return (
            f"gang of {SIZE} of {ALL_CARDS} GPUs, reserveAfterSeconds {self.reserve_seconds}, "
            f"longest run {self.run_seconds:g} s, {self._made} single pods: first member bound "
            f"after {first:.1f} s, the last after {whole:.1f} s; {idle:.0f} unit-seconds idle for "
            f"it, {share:.1%} of the cluster in this time, at most {most_idle:.0f} units"
        )

    def _sample_idle(self) -> tuple[float, float]:
        """Return the unit-seconds that are idle for the gang until it is whole, and the most."""
        seat = self.stage.seats.wait_leading_extender()
        last, total, most = time.monotonic(), 0.0, 0.0
        while not self._is_over.wait(SAMPLE_SECONDS):
            units, now = self.stage.seats.metric(seat, IDLE), time.monotonic()
            total, most, last = total + units * (now - last), max(most, units), now
        return total, most

    def _run_until(self, is_reached: Callable[[], bool], backlog: int = BACKLOG) -> None:
        end = time.monotonic() + WAITED_SECONDS
        while not is_reached():
            if time.monotonic() > end:
                raise DeadlineError(f"waited {WAITED_SECONDS:g} s for the stream to fill the GPUs")
            self._run(backlog)
            time.sleep(STEP_SECONDS)

    def _waiting(self) -> int:
        return sum(e.is_waiting for e in self.stage.history.present() if not e.gang)

    def _run(self, backlog: int) -> None:
        """Create single pods while few wait, and end those that have run."""
        made = range(self._made, self._made + max(0, backlog - self._waiting()))
        self._made = made.stop
        self.stage.create(*(Described(f"s{number}", NAMESPACE, UNITS) for number in made))
        now, shortest = time.monotonic(), self.run_seconds / 2
        for each in self.stage.history.present():
            life = self._lives.setdefault(each.uid, self.rng.uniform(shortest, self.run_seconds))
            if not each.gang and each.is_bound and now - each.bound_at > life:
                self.stage.delete((NAMESPACE, each.name))
