"""Whatever fails while pods are evicted: nobody is evicted wrongly, and what fits is placed."""

import os
import random

import pytest

from gpushare.annotations.evicting_hint import PART, hinted_victims
from gpushare.contract import LABEL_GANG
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.preemption.model import Preemption, Rules
from gpushare.preemption.search import VictimSearch
from gpushare.process.time_slices import run_all
from tests.unit.extender.gangs.store import StoredBudget
from tests.unit.extender.preemption.stage import Stage

SEEDS = 400 if os.environ.get("GPUSHARE_LONG") else 20
CARDS, NODES = 2, 3
UNITS = 16
SENT_SECONDS = 0.01  # an eviction may be on its way when its preemptor is deleted
SETTLED_SECONDS = 200  # a claim of a pod that does not end lasts a minute longer than that pod


class Run:
    """Random pods and gangs come and go, writes fail, and leaders are killed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stage = Stage({f"n{number}": (UNITS,) * CARDS for number in range(NODES)})
        self.store = self.stage.store
        self.wrong: list[str] = []
        self._made = 0
        self._gangs: dict[str, int] = {}
        self._ended: list[tuple[float, Pod]] = []
        self.store.evicts = self._note_eviction
        self.store.listeners.append(self._check_cards)

    def play(self) -> None:
        stage, rng = self.stage, self.rng
        stage.start()
        for _ in range(30):
            self._happens()
            stage.go(rng.choice([0.02, 0.1, 0.5, 2.0]))
        self.store.failing.clear()
        self.store.drop_budgets()
        stage.go(SETTLED_SECONDS)
        self._check_end()

    def _happens(self) -> None:
        rng, store = self.rng, self.store
        what = rng.choices(
            ["pod", "gang", "end", "budget", "no budget", "fail", "well", "kill"],
            [10, 4, 5, 1, 1, 1, 1, 1],
        )[0]
        if what == "pod":
            self._name("p")
            units = rng.choice([2, 4, 8, 10, 16])
            self.stage.put(self._name("p"), units, priority=rng.randrange(5), gated=self._maybe())
        elif what == "gang":
            self._put_gang()
        elif what == "end" and store.pods:
            pod = rng.choice(list(store.pods.values()))
            if pod.metadata.deletion_timestamp is None:
                self._end(pod)
        elif what == "budget":
            budget = StoredBudget(rng.choice("pg"), rng.randrange(3))
            store.put_budget(f"b{rng.randrange(3)}", budget)
        elif what == "no budget":
            store.drop_budgets()
        elif what == "fail" and store.pods:
            store.failing[rng.choice(list(store.pods))] = rng.choice([429, 500])
        elif what == "well":
            store.failing.clear()
        elif what == "kill":
            self.stage.run(self.stage.fail_over())

    def _put_gang(self) -> None:
        name, size = self._name("g"), self.rng.randint(2, 3)
        minimum, units = self.rng.randint(1, size), self.rng.choice([4, 8, 16])
        priority, gated = self.rng.randrange(5), self._maybe()
        self._gangs[name] = minimum
        for number in range(size):
            self.stage.put(
                f"{name}-{number}",
                units,
                priority=priority,
                gang=name,
                minimum=minimum,
                gated=gated,
            )

    def _end(self, pod: Pod) -> None:
        """End a pod; members of a gang end with it, as its Job would."""
        gang = pod.labels.get(LABEL_GANG)
        for each in list(self.store.pods.values()):
            if each is pod or (gang and each.labels.get(LABEL_GANG) == gang):
                self._ended.append((self.stage.loop.now, each))
                self.store.delete(each)

    def _maybe(self) -> bool:
        return self.rng.random() < 0.4

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}{self._made}"

    def _note_eviction(self, pod: Pod) -> None:
        name = pod.metadata.name
        if self.stage.evicted.count(name) > 1:
            self.wrong.append(f"{name} is evicted twice")
        waiting = [each for each in self.store.pods.values() if not each.node]
        now = self.stage.loop.now
        waiting += [each for at, each in self._ended if now - at < SENT_SECONDS]
        found = [each for each in waiting if pod.uid[:PART] in hinted_victims(each)]
        if not any(each.priority > pod.priority for each in found):
            self.wrong.append(f"{name} is evicted for nobody more important")
        for each in found:
            victims = self.stage.nominated.get(each.metadata.name, ())
            if each.status.nominated_node_name and any(map(self._is_ending, victims)):
                self.wrong.append(f"{victims}, {name} are evicted by both for {each.key}")

    def _is_ending(self, name: str) -> bool:
        pod = self.store.pods.get(name)
        return pod is not None and pod.metadata.deletion_timestamp is not None

    def _check_cards(self, item, is_gone) -> None:
        used: dict[tuple[str, str], int] = {}
        for pod in self.store.pods.values():
            if pod.node:
                for card in self.stage.card_of(pod.metadata.name).split(","):
                    at = pod.node, card
                    used[at] = used.get(at, 0) + int(pod.containers[0].limits["aliyun.com/gpu-mem"])
        self.wrong += [f"{at} has {units}" for at, units in used.items() if units > UNITS]

    def _check_end(self) -> None:
        store, stage = self.store, self.stage
        self.wrong += [f"{each} stays claimed" for each in stage.claims()]
        for gang, minimum in self._gangs.items():
            members = [each for each in store.pods.values() if each.labels.get(LABEL_GANG) == gang]
            bound = sum(bool(each.node) for each in members)
            # A plan of the extender may have been stopped between two evictions.
            is_evicted = any(name.startswith(f"{gang}-") for name in stage.evicted)
            if 0 < bound < minimum and not is_evicted:
                self.wrong.append(f"gang {gang} has {bound} of {minimum}")
        for pod in [each for each in store.pods.values() if not each.node]:
            if LABEL_GANG not in pod.labels:
                found = stage.run(self._search(pod))
                if isinstance(found, Preemption):
                    self.wrong.append(f"{pod.metadata.name} waits, and {found} would help")

    async def _search(self, pod: Pod):
        state = self.stage.leader.cluster.state
        return run_all(VictimSearch(state).find(Ask(pod.uid, (pod,), 1), Rules()))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_fails_nobody_is_evicted_wrongly_and_what_can_be_placed_is(seed):
    run = Run(seed)
    try:
        run.play()
    finally:
        run.stage.end()
    assert run.wrong == []
