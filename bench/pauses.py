"""Measures how long metrics, the ledger's audit and a list of all pods block everything else.

    python -m bench.pauses [NODES ...]

Also the longest steps of plans and searches for victims, if no two members of a gang are equal.

The clusters have full nodes with 16 pods each. A pause is the time in which the process answers no
other call; the floor is the delay of a timer that nothing blocks.
"""

import asyncio
import gc
import itertools
import resource
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Self

import msgspec

from bench.figures import note
from bench.planning import longest_step, timed
from bench.victims import ASKED, Cluster
from bench.victims import members as members_of
from extender.decisions.cluster_state import ClusterState
from extender.metrics.nodes import NodeMetrics
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_CARDS, RESOURCE_MEMORY
from gpushare.objects.model import Container, Pod, Resources
from gpushare.planning.ask import Ask
from gpushare.planning.planner import Planner
from gpushare.preemption.model import Rules
from gpushare.preemption.search import VictimSearch
from gpushare.process.time_slices import in_slices
from tests.builders import node, pod, run_to_end

SIZES = (1000, 5000)
MEMBERS = (16, 64, 320, 1024)
HOSTNAME = "kubernetes.io/hostname"
CARDS, PODS_A_NODE, CARD_UNITS = 8, 16, 80
TICK_SECONDS = 0.001
POLICY = Policy()


def filled(
    nodes: int, policy: Policy = POLICY, units: Callable[[int, int], int] = lambda *_: 30
) -> ClusterWatch:
    """Return nodes with 8 cards and 16 pods; ``units`` of a pod by the numbers of node and pod."""
    cluster = ClusterWatch(1, lambda *_: None, SystemClock(), policy)
    run_to_end(
        cluster.replacing_nodes([node(f"n{i}", *[CARD_UNITS] * CARDS) for i in range(nodes)])
    )
    for i, j in itertools.product(range(nodes), range(PODS_A_NODE)):
        annotations = {ANNOTATION_CARDS: f"GPU-{j % CARDS}"}
        cluster.pod_changed(pod(f"p{i}-{j}", units(i, j), node=f"n{i}", annotations=annotations))
    return cluster


class Lateness:
    """Record the largest delay of a timer during the context, in ms."""

    async def __aenter__(self) -> Self:
        self.most = 0.0
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.most = max(self.most, (time.perf_counter() - due) * 1000)


async def measure(nodes: int) -> None:
    cluster = filled(nodes)
    for name in cluster.ledger.nodes():
        cluster.ledger.account(name)
    gc.collect()  # as the extender does after its first list: extender/app.py
    gc.freeze()
    metrics = NodeMetrics(cluster.ledger)
    async with Lateness() as floor:
        await asyncio.sleep(0.5)
    rows = [("floor: nothing else", 500.0, floor.most, "")]
    for what in ("page of metrics, the first time", "page of metrics, nothing changed"):
        began = time.perf_counter()
        async with Lateness() as late:
            page = await metrics.render()
        took = (time.perf_counter() - began) * 1000
        rows.append((what, took, late.most, f"{len(page) / 2**20:.1f} MiB"))
    cluster.audit.begin()
    began, slices, rounds = time.perf_counter(), 0, cluster.audit.rounds
    async with Lateness() as late:
        while cluster.audit.rounds == rounds:
            assert not cluster.audit.step()
            slices += 1
            await asyncio.sleep(0)
    took = (time.perf_counter() - began) * 1000
    rows.append(("audit of the whole ledger", took, late.most, f"{slices} slices"))
    pods = [cluster.pods.pod(uid) for uid in cluster.pods.uids()]
    began = time.perf_counter()
    async with Lateness() as late:
        await in_slices(cluster.replacing_pods([pod for pod in pods if pod is not None]))
    took = (time.perf_counter() - began) * 1000
    rows.append(("a list of all pods, told again", took, late.most, f"{len(pods)} pods"))
    print(f"{nodes} nodes, {CARDS} cards and {PODS_A_NODE} pods each")
    print(f"{'':<36} {'took':>11}  {'worst pause':>11}  {'to floor':>8}")
    for what, took, most, more in rows:
        print(f"{what:<36} {took:8.0f} ms  {most:8.2f} ms  {most / floor.most:6.1f} x  {more}")
    assert not cluster.differences
    if nodes == max(SIZES):
        _, first, _, audit, listed = rows
        for key, (_, _, most, _) in (
            ("pause metrics", first), ("pause audit", audit), ("pause list", listed)
        ):  # fmt: skip
            note(key, most, f"{most / floor.most:.1f} x the floor's {floor.most:.2f} ms")


def different(state: ClusterState, members: int) -> tuple[Pod, ...]:
    """Return waiting pods no two of which are equal, and which have room only if others go."""
    found = []
    for number, each in enumerate(members_of(state, [ASKED] * members)):
        amounts: dict[str, str | int] = {RESOURCE_MEMORY: str(ASKED), "cpu": f"{number + 1}m"}
        containers = (Container("main", Resources(amounts, amounts)),)
        spec = msgspec.structs.replace(each.spec, containers=containers)
        found.append(msgspec.structs.replace(each, spec=spec))
    return tuple(found)


def measure_steps(nodes: int) -> None:
    state = Cluster(nodes).fill()
    for name, each in list(state.nodes.items()):
        labels = {**(each.metadata.labels or {}), HOSTNAME: name}
        meta = msgspec.structs.replace(each.metadata, labels=labels)
        state.nodes[name] = msgspec.structs.replace(each, metadata=meta)
    gc.collect()
    gc.freeze()
    print(f"{nodes} nodes, members that all differ")

    def plan(ask: Ask) -> Generator[None, None, object]:
        return Planner(state).plan(ask)

    def victims(ask: Ask) -> Generator[None, None, object]:
        return VictimSearch(state).find(ask, Rules())

    for members, zone_key, steps in itertools.product(MEMBERS, ("", HOSTNAME), (plan, victims)):
        ask = Ask("gang", different(state, members), members, zone_key=zone_key)
        found, took = timed(steps(ask))
        longest = longest_step(steps(ask))
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        zone = "in one node" if zone_key else "anywhere"
        print(
            f"{members:5} {zone:<12} {steps.__name__:<8} {took:8.0f} ms  longest step "
            f"{longest:7.2f} ms  {most:5} MiB at most so far  {type(found).__name__}"
        )


if __name__ == "__main__":
    for size in [int(each) for each in sys.argv[1:]] or SIZES:
        asyncio.run(measure(size))
        measure_steps(size)
