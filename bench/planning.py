"""Measures what it costs to plan a gang, and the longest step, in which nothing else runs.

    python -m bench.planning [NODES ...]

The planner runs in this process on the extender's own state: nodes with 8 GPUs and 8 pods on each.
*Cold*: this shape is planned for the first time. *Warm*: it was planned before, and CHANGED nodes
have changed since. The floor is to read each node once: its object, its account and what is free.
"""

import gc
import itertools
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from statistics import median
from typing import Final, TypeVar

import msgspec

from bench import world
from bench.figures import note, note_ratio
from extender.decisions.cluster_state import ClusterState
from gpushare.cards.model import Share
from gpushare.clock import SystemClock
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import resources_used
from gpushare.placement.rank import Policies
from gpushare.placement.verdict import cards_of
from gpushare.planning.ask import Ask, Plan
from gpushare.planning.planner import Planner
from gpushare.process.time_slices import run_all

NODES: Final = (1000, 5000)
CARDS, PODS, USED = 8, 8, 6  # GPUs of a node, pods on each of them, units of each
MEMBERS, UNITS = 512, 30
ZONES: Final = 10
CHANGED: Final = 20
COLD_RUNS, WARM_RUNS = 30, 60
PERCENTILE: Final = 0.99
MILLI: Final = 1000

T = TypeVar("T")


def filled(nodes: int) -> ClusterState:
    """Return a cluster in which GPUs have 32 units left, and on every third node only 8."""
    state = ClusterState(1, Policies(), SystemClock())
    known = msgspec.convert(world.pod("known", USED, "filling"), Pod)
    requests = resources_used(known)
    for number in range(nodes):
        name = world.node_name(number)
        labels = {"zone": f"zone-{number % ZONES}"}
        node = msgspec.convert(world.node(name, CARDS, labels=labels), Node)
        state.nodes[name] = node
        cards, _, _ = cards_of(node, 1)
        state.ledger.set_inventory(name, cards)
        units = USED if number % 3 else USED + 3
        for card, place in itertools.product(range(CARDS), range(PODS)):
            uid = f"held-{number}-{card}-{place}"
            uuid = f"GPU-{name}-{card}"
            state.ledger.put_share(Share(uid, "default", uid, name, units, (uuid,)))
            state.use.put(uid, name, requests)
    return state


def waiting(state: ClusterState, sizes: Sequence[int]) -> tuple[Pod, ...]:
    """Return waiting pods as the watch shows them: equal ones share their parts."""
    templates = {size: msgspec.convert(world.pod("gang", size, "gang"), Pod) for size in set(sizes)}
    found = []
    for number, size in enumerate(sizes):
        pod = templates[size]
        name = f"gang-{len(sizes)}-{number}"
        meta = msgspec.structs.replace(pod.metadata, name=name, uid=name)
        found.append(msgspec.structs.replace(pod, metadata=meta))
        state.pods.update(found[-1])
    return tuple(found)


def timed(steps: Generator[None, None, T]) -> tuple[T, float]:
    """Run all steps; return the result and the milliseconds of CPU."""
    began = time.thread_time()
    found = run_all(steps)
    return found, (time.thread_time() - began) * MILLI


def longest_step(steps: Iterable[None]) -> float:
    """Return the milliseconds of CPU of the longest step, without other work on this machine."""
    longest, last = 0.0, time.thread_time()
    for _ in itertools.chain(steps, (None,)):
        now = time.thread_time()
        longest = max(longest, now - last)
        last = time.thread_time()
    return longest * MILLI


def read_all(state: ClusterState) -> float:
    """Return the milliseconds to read every node once."""
    began = time.thread_time()
    for name in state.all_node_names():
        assert state.node(name) is not None
        assert state.ledger.account(name) is not None
        assert state.free_resources(name) is not None
    return (time.thread_time() - began) * MILLI


def high(found: Sequence[float]) -> float:
    return sorted(found)[min(len(found) - 1, int(len(found) * PERCENTILE))]


def change(state: ClusterState, run: int) -> None:
    """Let a pod come on some nodes, and another one go."""
    for number in range(CHANGED):
        place = (run * CHANGED + number) % len(state.nodes)
        name, uid = world.node_name(place), f"extra-{number}"
        state.ledger.put_share(Share(uid, "default", uid, name, 1, (f"GPU-{name}-0",)))


def measure(nodes: int) -> None:
    state = filled(nodes)
    gc.collect()
    gc.freeze()  # as the extender does with listed objects
    ask = Ask("gang", waiting(state, [UNITS] * MEMBERS), MEMBERS)
    first = read_all(state)
    floor = min(read_all(state) for _ in range(5))
    print(f"\n{nodes} nodes x {CARDS} GPUs x {PODS} pods, gang of {MEMBERS}")
    print(f"{'read every node, accounts not summed yet':<46} {first:8.1f} ms")
    print(f"{'read every node: the floor':<46} {floor:8.1f} ms")

    def show(what: str, ask: Ask, runs: int, planner: Callable[[], Planner]) -> tuple[float, float]:
        found, _ = timed(planner().plan(ask))
        took, steps = [], []
        for run in range(runs):
            change(state, run)
            again, each = timed(planner().plan(ask))
            assert type(again) is type(found)
            took.append(each)
            change(state, run + 1)
            steps.append(longest_step(planner().plan(ask)))
        plan, step = high(took), high(steps)
        answer = "planned" if isinstance(found, Plan) else "does not fit"
        print(
            f"{what:<46} {plan:8.1f} ms  {plan / floor:5.2f} x  median {median(took):6.1f} ms  "
            f"longest step {step:5.2f} ms  {answer}"
        )
        return plan, step

    warm = Planner(state)
    cold_ms, cold_step = show("cold, p99", ask, COLD_RUNS, lambda: Planner(state))
    warm_ms, warm_step = show(f"warm, p99, {CHANGED} nodes changed", ask, WARM_RUNS, lambda: warm)
    in_zone = Ask("gang", ask.members[:64], 64, zone_key="zone")
    show("warm, 64 of them in one zone", in_zone, WARM_RUNS, lambda: warm)
    too_large = Ask("gang", waiting(state, [UNITS] * 1024), 1024, zone_key="zone")
    show("warm, 1024 that no zone takes", too_large, WARM_RUNS, lambda: warm)
    mixed = Ask("gang", waiting(state, [4 + number % 8 * 4 for number in range(64)]), 64)
    show("warm, 64 of 8 sizes", mixed, WARM_RUNS, lambda: warm)
    note_ratio(f"plan cold {nodes}", cold_ms, floor, "ms")
    note_ratio(f"plan warm {nodes}", warm_ms, floor, "ms")
    note(f"plan step {nodes}", max(cold_step, warm_step))


def main() -> None:
    for nodes in [int(each) for each in sys.argv[1:]] or NODES:
        measure(nodes)


if __name__ == "__main__":
    main()
