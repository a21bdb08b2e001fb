"""Two namespaces with equal quotas get equal parts, also if one has begun earlier."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from localcluster.wait import wait_until
from tests.trials.queue.stage import ALL_CARDS, UNITS, WAITED_SECONDS, Described, Stage

NAMES: Final = "early", "late"
LIFE_SECONDS: Final = 4.0, 6.0
SAMPLE_SECONDS: Final = 0.2
WINDOW_SECONDS: Final = 5.0
TOLERANCE: Final = 0.05  # 10 % of half
LEAST_WAITING: Final = 40  # of each namespace while its part is judged


@dataclass
class Fair:
    """Each pod needs a whole GPU for LIFE_SECONDS; the quota of both is the cluster."""

    stage: Stage
    backlog: int
    rng: random.Random
    _lives: dict[str, float] = field(default_factory=dict)  # by uid
    _samples: list[tuple[float, int, int]] = field(default_factory=list)

    def play(self) -> str:
        stage = self.stage
        for name in NAMES:
            stage.namespace(name, str(ALL_CARDS * UNITS))
        early, late = NAMES
        self._submit(early)
        wait_until("the cluster to be full", self._not_full, seconds=WAITED_SECONDS)
        from_then_on = time.monotonic() + max(LIFE_SECONDS)
        with ThreadPoolExecutor(1) as pool:
            submitting = pool.submit(self._submit, late)
            while not submitting.done() or self._are_waiting():
                self._step(from_then_on)
            submitting.result()
        seconds = time.monotonic() - from_then_on
        windows = [self._part(each) for each in self._windows()]
        full = min(sum(each[1:]) for each in self._samples) / (ALL_CARDS * UNITS)
        wrong = [part for part in windows if abs(part - 0.5) > TOLERANCE]
        if wrong or not windows:
            stage.lost.append(f"fair: {len(wrong)} of {len(windows)} windows: {wrong}")
        total = self._part(self._samples)
        return (
            f"a backlog of {self.backlog} each; for {seconds:.0f} s, beginning one longest run "
            f"({max(LIFE_SECONDS):g} s) after the other namespace came, the part of the one that "
            f"began first was {total:.1%}, in windows of {WINDOW_SECONDS:g} s "
            f"{' '.join(f'{part:.1%}' for part in windows)}; "
            f"at least {full:.0%} of all GPUs were in use"
        )

    def _submit(self, namespace: str) -> None:
        self.stage.create(
            *(Described(f"{namespace}-{n}", namespace, UNITS) for n in range(self.backlog))
        )

    def _step(self, from_then_on: float) -> None:
        self._end_those_that_have_run()
        if time.monotonic() > from_then_on:
            early, late = map(self.stage.history.used, NAMES)
            self._samples.append((time.monotonic(), early, late))
        time.sleep(SAMPLE_SECONDS)

    def _are_waiting(self) -> bool:
        return min(self._waiting(name) for name in NAMES) >= LEAST_WAITING

    def _not_full(self) -> str | None:
        used = self.stage.history.used(NAMES[0])
        return None if used == ALL_CARDS * UNITS else f"{used} units are used"

    def _waiting(self, namespace: str) -> int:
        return sum(e.is_waiting for e in self.stage.history.present() if e.namespace == namespace)

    def _end_those_that_have_run(self) -> None:
        now = time.monotonic()
        for each in self.stage.history.present():
            life = self._lives.setdefault(each.uid, self.rng.uniform(*LIFE_SECONDS))
            if each.is_bound and now - each.bound_at > life:
                self.stage.delete((each.namespace, each.name))

    def _windows(self) -> list[list[tuple[float, int, int]]]:
        """Return the samples of each whole window."""
        found: list[list[tuple[float, int, int]]] = [[]]
        for sample in self._samples:
            if found[-1] and sample[0] - found[-1][0][0] >= WINDOW_SECONDS:
                found.append([])
            found[-1].append(sample)
        return found[:-1]

    @staticmethod
    def _part(samples: list[tuple[float, int, int]]) -> float:
        first = sum(each[1] for each in samples)
        return first / max(1, first + sum(each[2] for each in samples))
