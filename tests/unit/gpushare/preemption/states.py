"""Random small clusters in which a pod or a gang needs room that others use."""

import random
from dataclasses import dataclass
from itertools import count

from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.preemption.model import Budgets, Rules
from tests.unit.gpushare.planning.worlds import ZONE, pod
from tests.unit.gpushare.preemption.worlds import HIGH, RunningWorld

UNITS = 12  # of a card
LEVELS = (10, 20, 30)


@dataclass(frozen=True)
class State:
    world: RunningWorld
    ask: Ask
    rules: Rules


class Drawing:
    """Draws one state. ``most`` is the number of pods that run at most."""

    def __init__(self, draw: random.Random, most: int = 10) -> None:
        self.draw, self.most = draw, most
        self.world = RunningWorld()
        self._cpu: dict[str, int] = {}
        self._free: dict[str, list[int]] = {}
        self._names = (f"p{number}" for number in count())

    def state(self) -> State:
        draw = self.draw
        for number in range(draw.randint(1, 3)):
            name = f"n{number}"
            cards = [UNITS] * draw.choice([1, 1, 2, 2, 3])
            self._free[name], self._cpu[name] = cards, draw.choice([4, 8, 100])
            cordoned = [0] if len(cards) > 1 and self._seldom() else []
            zone = draw.choice(["a", "b", ""]) if self._seldom() else draw.choice(["a", "b"])
            self.world.add(name, *cards, cpu=self._cpu[name], zone=zone, cordoned=cordoned)
        left = draw.randint(self.most // 2, self.most)
        while left > 0:
            size = min(left, draw.choice([1, 1, 1, 2, 3, 4]))
            left -= size
            self._run(size) if size > 1 else self._single()
        for uid in list(self.world.running):
            if draw.random() < 0.1:
                self.world.delete(uid, in_time=draw.random() < 0.7)
        return State(self.world, self._ask(), self._rules())

    def _seldom(self) -> bool:
        return self.draw.random() < 0.15

    def _single(self) -> None:
        priority = HIGH if self._seldom() else self.draw.choice(LEVELS)
        self._place(next(self._names), priority=priority)

    def _run(self, size: int) -> None:
        """Run a gang."""
        draw, level = self.draw, self.draw.choice(LEVELS)
        name, minimum = f"gang-{next(self._names)}", draw.randint(1, size + 1)
        if draw.random() < 0.3:
            self.world.ended[name] = draw.randint(1, 2)
        for _ in range(size):
            own = draw.choice(LEVELS) if self._seldom() else level
            self._place(next(self._names), priority=own, gang=name, minimum=minimum)

    def _place(self, name: str, *, priority: int, gang: str = "", minimum: int = 1) -> None:
        """Run a pod where there is room for it, if there is any."""
        draw = self.draw
        node = draw.choice(list(self._free))
        free = self._free[node]
        number = draw.choice([1, 1, 1, 2]) if len(free) > 1 else 1
        units = draw.choice([UNITS, UNITS // 2, draw.randint(2, UNITS)])
        if gang and self._seldom():
            units = 0
        indexes = [index for index, much in enumerate(free) if much >= units]
        cpu = draw.randint(0, min(3, self._cpu[node]))
        if len(indexes) < number:
            return
        indexes = draw.sample(indexes, number)
        is_unplaced = bool(units) and len(free) == 1 and self._seldom()
        for index in indexes if units else ():
            free[index] -= units
        self._cpu[node] -= cpu
        self.world.run(
            name,
            node,
            units,
            *indexes,
            priority=priority,
            cpu=cpu,
            gang=gang,
            minimum=minimum,
            since=f"2026-01-{draw.randint(1, 28):02}T00:00:00Z",
            preemptible=not self._seldom(),
            is_unplaced=is_unplaced,
        )

    def _ask(self) -> Ask:
        draw, nodes = self.draw, list(self._free)
        number = draw.choice([1, 1, 2, 3, 4])
        shapes = draw.choice([1, 1, 2, 3])
        members: list[Pod] = []
        kinds = [self._kind() for _ in range(shapes)]
        for place in range(number):
            units, cards, cpu, names = kinds[place % shapes]
            members.append(
                pod(f"m{place}", units, cards=cards, cpu=cpu, names=names, priority=HIGH)
            )
        more: dict[str, object] = {}
        if draw.random() < 0.3:
            more["zone_key"] = ZONE
            if self._seldom():
                more["zone"] = draw.choice(["a", "b"])
        if self._seldom():
            more["only"] = frozenset(draw.sample(nodes, draw.randint(1, len(nodes))))
        if self._seldom():
            more["avoid"] = {"m0": frozenset({draw.choice(nodes)})}
        if self._seldom():
            more["cooling"] = frozenset({draw.choice(nodes)})
        least = draw.randint(1, number) if draw.random() < 0.3 else number
        self._keep(members)
        return Ask("gang", tuple(members), least, **more)  # type: ignore[arg-type]

    def _kind(self) -> tuple[int, int, int, tuple[str, ...]]:
        draw, nodes = self.draw, list(self._free)
        names = tuple(draw.sample(nodes, draw.randint(1, len(nodes)))) if self._seldom() else ()
        units = draw.choice([UNITS, UNITS // 2, draw.randint(UNITS // 3, UNITS)])
        cards, cpu = draw.choice([1, 1, 1, 2]), draw.choice([0, 0, 1, 3])
        if self._seldom():
            units, cards, cpu = 0, 1, draw.randint(1, 4)
        return units, cards, cpu, names

    def _keep(self, members: list[Pod]) -> None:
        """Let the gang itself, or somebody else, have a hold or a claim."""
        draw = self.draw
        for owner, uid in (("gang", members[0].uid), ("other", "x")):
            if not self._seldom():
                continue
            node = draw.choice(list(self._free))
            units = draw.randint(1, UNITS)
            slot = Slot(node, (f"{node}-0",), units, uid, (("cpu", 1000),))
            if self._free[node][0] >= units and draw.random() < 0.5:
                self._free[node][0] -= units
                self.world.ledger.keep(Hold(owner, (slot,), 1.0))
            else:
                priority = draw.choice([HIGH - 1, HIGH, HIGH + 1])
                self.world.ledger.keep(Claim(owner, (slot,), 1.0, priority))

    def _rules(self) -> Rules:
        draw, uids = self.draw, list(self.world.running)
        of: dict[str, tuple[str, ...]] = {}
        for budget in ("one", "two"):
            if draw.random() < 0.3:
                for uid in uids:
                    if draw.random() < 0.6:
                        of[uid] = (*of.get(uid, ()), budget)
        allowed = {budget: draw.randint(0, 3) for budget in ("one", "two")}
        return Rules(
            preemptible_only=self._seldom(),
            spared=frozenset(uid for uid in uids if draw.random() < 0.05),
            hinted=frozenset(uid for uid in uids if draw.random() < 0.2),
            budgets=Budgets(of, allowed),
        )
