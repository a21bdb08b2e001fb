"""Measures what it costs to find victims, and the longest step, in which nothing else runs.

    python -m bench.victims [NODES]

The search runs in this process on the extender's own state: nodes with 8 GPUs, and 50 pods of four
priorities on each, of which some have to go. The floor is to plan the same gang, for the first
time, on as many empty nodes.
"""

import gc
import itertools
import random
import sys
from collections.abc import Callable
from statistics import median
from typing import Final

import msgspec

from bench import world
from bench.figures import note, note_ratio
from bench.planning import high, longest_step, timed, waiting
from extender.decisions.cluster_state import ClusterState
from gpushare.cards.model import Share
from gpushare.clock import SystemClock
from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import resources_used
from gpushare.placement.rank import Policies
from gpushare.placement.verdict import cards_of
from gpushare.planning.ask import Ask, Plan
from gpushare.planning.planner import Planner
from gpushare.preemption.model import Budgets, Preemption, Rules
from gpushare.preemption.search import VictimSearch

NODES: Final = 1000
CARDS: Final = 8
LEVELS: Final = (10, 20, 30, 40)
UNITS: Final = (4, 8, 12, 16)
MEMBERS, ASKED, PRIORITY = 512, 30, 1000
ZONES: Final = 10
GANG: Final = 16  # members of a gang of victims
RUNS: Final = 7
SEED: Final = 3


class Cluster:
    """Nodes whose GPUs have 16 units left at most. ``gangs``: all pods are in gangs of GANG."""

    def __init__(self, nodes: int, *, gangs: bool = False) -> None:
        self.state = ClusterState(1, Policies(), SystemClock())
        self._gangs, self._numbers = gangs, itertools.count()
        self._draw = random.Random(SEED)  # noqa: S311 - the same each time
        self._known = {
            units: msgspec.convert(world.pod("known", units, "filling"), Pod) for units in UNITS
        }
        for number in range(nodes):
            name = world.node_name(number)
            labels = {"zone": f"zone-{number % ZONES}"}
            node = msgspec.convert(world.node(name, CARDS, labels=labels), Node)
            self.state.nodes[name] = node
            self.state.ledger.set_inventory(name, cards_of(node, 1)[0])

    def fill(self) -> ClusterState:
        for name, card in itertools.product(self.state.nodes, range(CARDS)):
            left = world.CARD_UNITS
            while left > UNITS[-1]:
                units = self._draw.choice(UNITS)
                left -= units
                self._bind(name, card, units)
        return self.state

    def _bind(self, node: str, card: int, units: int) -> None:
        state, draw, known = self.state, self._draw, self._known[units]
        number = next(self._numbers)
        uid = f"{draw.getrandbits(32):08x}-{number}"
        gang = {LABEL_GANG: f"gang-{number // GANG}", LABEL_GANG_MINIMUM: str(GANG)}
        meta = msgspec.structs.replace(
            known.metadata,
            name=uid,
            namespace="default",
            uid=uid,
            creation_timestamp=f"2026-01-{draw.randint(1, 28):02}T00:00:00Z",
            labels=gang if self._gangs else {},
        )
        spec = msgspec.structs.replace(known.spec, node_name=node, priority=draw.choice(LEVELS))
        pod = msgspec.structs.replace(known, metadata=meta, spec=spec)
        state.ledger.put_share(Share(uid, "default", uid, node, units, (f"GPU-{node}-{card}",)))
        state.use.put(uid, node, resources_used(pod))
        state.pods.update(pod)
        state.groups.update(pod)


def members(state: ClusterState, sizes: list[int]) -> tuple[Pod, ...]:
    """Return waiting pods that may preempt all others."""
    return tuple(
        msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=PRIORITY))
        for pod in waiting(state, sizes)
    )


def measure(nodes: int) -> None:
    empty = Cluster(nodes).state
    state = Cluster(nodes).fill()
    of_gangs = Cluster(nodes, gangs=True).fill()
    gc.collect()
    gc.freeze()  # as the extender does with listed objects
    gang = Ask("gang", members(state, [ASKED] * MEMBERS), MEMBERS)
    floors = []
    for _ in range(RUNS):
        plan, took = timed(Planner(empty).plan(gang))
        assert isinstance(plan, Plan)
        floors.append(took)
    floor = median(floors)
    shares = sum(1 for _ in state.ledger.shares())
    print(f"\n{nodes} nodes x {CARDS} GPUs, {shares} pods, gang of {MEMBERS}")
    print(f"{'cold plan on empty nodes: the floor':<36} {floor:8.1f} ms")
    uids = [share.pod_uid for share in state.ledger.shares()]
    budgets = Budgets({uid: (f"pdb-{n % 50}",) for n, uid in enumerate(uids)}, {})
    budgets = Budgets(budgets.of, {f"pdb-{n}": 26 for n in range(50)})

    def show(
        what: str,
        ask: Ask,
        search: Callable[[], VictimSearch],
        rules: Rules = Rules(),  # noqa: B008 - a value that never changes
    ) -> tuple[float, float]:
        took, steps, found = [], [], None
        for _ in range(RUNS):
            found, each = timed(search().find(ask, rules))
            took.append(each)
            steps.append(longest_step(search().find(ask, rules)))
        number = "no plan"
        if isinstance(found, Preemption):
            number = f"{len(found.victims)} victims"
        spent = high(took)
        print(
            f"{what:<36} {spent:8.1f} ms  {spent / floor:5.1f} x  median {median(took):6.1f} ms  "
            f"longest step {max(steps):5.2f} ms  {number}"
        )
        return spent, max(steps)

    cold, step = show("one shape, cold", gang, lambda: VictimSearch(state))
    warm = VictimSearch(state)
    show("one shape, warm", gang, lambda: warm)
    large = Ask("gang", members(state, [world.CARD_UNITS] * MEMBERS), MEMBERS)
    show("512 whole GPUs, all priorities go", large, lambda: warm)
    in_zone = Ask("gang", gang.members[:64], 64, zone_key="zone")
    show("64 of them in one zone", in_zone, lambda: warm)
    show("with budgets for all pods", gang, lambda: warm, Rules(budgets=budgets))
    sizes = [4 + number % 8 * 4 for number in range(64)]
    show("64 of 8 sizes", Ask("gang", members(state, sizes), 64), lambda: warm)
    show("a single pod", Ask("gang", gang.members[:1], 1), lambda: warm)
    show("victims are gangs", gang, lambda: VictimSearch(of_gangs))
    note_ratio("victims", cold, floor, "ms")
    note("victims ms", cold)
    note("victims step", step)


def main() -> None:
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else NODES)


if __name__ == "__main__":
    main()
