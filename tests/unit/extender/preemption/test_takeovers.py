"""Leaders are killed while pods are evicted: as many are evicted as if one leader had lived."""

import os
import random
from collections import Counter

import pytest

from gpushare.contract import LABEL_CARD_COUNT
from tests.unit.extender.preemption.stage import Stage

SEEDS = 300 if os.environ.get("GPUSHARE_LONG") else 50
NODES, CARDS, UNITS = "nm", 4, 16
SETTLED_SECONDS = 30


class Run:
    """Full GPUs, and one pod that needs as many victims on each of its GPUs."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.stage = Stage(dict.fromkeys(NODES, (UNITS,) * CARDS))
        self.size, self.units = rng.choice([1, 2, 4]), rng.choice([8, 12, 16])
        self.cards = rng.choice([1, 1, 2])
        self._lag = rng.choice([0.0, 0.0001, 0.003, 0.02])
        self._card: dict[str, tuple[str, str]] = {}  # by name of a pod

    def play(self) -> None:
        rng, stage = self.rng, self.stage
        self._fill(rng.choice([(0, 10, 20), (0, 10), (0,)]))
        stage.start()
        self._watch_late()
        labels = {LABEL_CARD_COUNT: str(self.cards)}
        units, gated = self.units * self.cards, rng.random() < 0.3
        stage.put("high", units, priority=30, gated=gated, labels=labels)
        kill_at = rng.randint(1, units // self.size)
        while len(self._evicted()) < kill_at:
            stage.go(0.005)
        stage.go(rng.choice([0, 0.01, 0.1, 0.5, 1.2]))
        self._kill()
        if rng.random() < 0.3:
            stage.go(rng.choice([0.01, 0.1, 0.3]))
            self._kill()
        stage.go(SETTLED_SECONDS)

    def evicted(self) -> Counter[tuple[str, str]]:
        """Return how many were evicted on each GPU."""
        return Counter(self._card[name] for name in self._evicted())

    def needed(self) -> Counter[tuple[str, str]]:
        node, cards = self.stage.bound()["high"], self.stage.card_of("high").split(",")
        return Counter({(node, card): self.units // self.size for card in cards})

    def _evicted(self) -> set[str]:
        """Return those evicted by the extender and by kube-scheduler."""
        return {*self.stage.evicted, *self.stage.nominated.get("high", ())}

    def _fill(self, priorities: tuple[int, ...]) -> None:
        for node in NODES:
            for number in range(CARDS * UNITS // self.size):
                card = f"GPU-{number % CARDS}"
                name = f"{node}{card}-{number:02}"
                self._card[name] = node, card
                priority = self.rng.choice(priorities)
                self.stage.put_bound(name, self.size, card, node, priority=priority)

    def _kill(self) -> None:
        self.stage.run(self.stage.fail_over())
        self._watch_late()

    def _watch_late(self) -> None:
        for replica in self.stage.replicas:
            replica.set_lag(self._lag)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_victims_of_all_leaders_and_of_kube_scheduler_are_those_of_one_plan(seed):
    run = Run(seed)
    try:
        run.play()
        assert run.evicted() == run.needed()
    finally:
        run.stage.end()
