"""Measures how long a gang of 512 pods takes from its creation to its last bound pod.

    python -m bench.gangs [--rounds N] [--nodes N]

The real kube-scheduler with gpushare, on 1,000 paper nodes with 8 GPUs. The floor is 512 equal pods
that belong to no gang, created in the same way. A gated gang is released once it has room; the
members of an ungated one are rejected until the last one is there, and then tried again.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.apiserver import PODS, ApiServer
from bench.figures import note_ratio
from bench.scheduler import Scheduler
from bench.throughput import OURS, WARM_UP, bind_all, cluster_up, watch
from bench.world import LABEL, Shape, fill, pod, various, waiting
from gpushare.contract import GATE_ADMISSION, LABEL_GANG, LABEL_GANG_MINIMUM
from localcluster.gpushare import ROOT, Gpushare
from localcluster.interrupts import run_command

NODES: Final = 1000
CARDS: Final = 8
MEMBERS: Final = 512
UNITS: Final = 30
ROUNDS: Final = 2
_ACCESS: Final = ROOT / "daemonset" / "components" / "gates" / "access.yaml"


@dataclass(frozen=True)
class Case:
    title: str
    key: str = ""
    is_gang: bool = True
    is_gated: bool = False

    def pods(self, group: str) -> Sequence[Mapping[str, Any]]:
        spec = {"schedulingGates": [{"name": GATE_ADMISSION}]} if self.is_gated else {}
        found = [pod(f"{group}-{n}", UNITS, group, spec=spec) for n in range(MEMBERS)]
        if self.is_gang:
            for each in found:
                each["metadata"]["labels"] |= {
                    LABEL_GANG: group,
                    LABEL_GANG_MINIMUM: str(MEMBERS),
                }
        return found


SINGLE: Final = Case("single pods", is_gang=False)
CASES: Final = (
    SINGLE,
    Case("a gated gang", "gated gang", is_gated=True),
    Case("an ungated gang", "ungated gang"),
)


async def measure(api: ApiServer, case: Case, group: str) -> float:
    """Return the seconds from the creation of the first pod until the last one is bound."""
    made = case.pods(group)
    since = await api.version(PODS)
    times: list[float] = []
    watching = asyncio.create_task(watch(api, f"{LABEL}={group}", since, len(made), times))
    began = time.perf_counter()
    await api.each("POST", PODS, made)
    await watching
    if len(times) < len(made):
        raise RuntimeError(f"only {len(times)} of {len(made)} pods were bound: see the logs")
    await api.delete_all(PODS, f"{LABEL}={group}")
    return times[-1] - began


async def run(rounds: int, nodes: int) -> Mapping[str, Sequence[float]]:
    """Return the seconds of each case in each round; the cases are measured in turn."""
    found: dict[str, list[float]] = {case.title: [] for case in CASES}
    with cluster_up() as cluster:
        async with ApiServer.of(cluster) as api:
            await fill(api, Shape(nodes, CARDS, 0))
            Gpushare(cluster).apply_access()
            cluster.kubectl("apply", "-f", str(_ACCESS))
            scheduler = Scheduler(cluster)
            scheduler.start_extenders()
            scheduler.use(OURS)
            await bind_all(waiting("warm", various(WARM_UP)), api, "warm")
            for number in range(rounds):
                for place, case in enumerate(CASES):
                    seconds = await measure(api, case, f"round-{number}-{place}")
                    found[case.title].append(seconds)
                    print(f"  {case.title:<20} {seconds:6.2f} s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.gangs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nodes", type=int, default=NODES)
    given = parser.parse_args()
    found = asyncio.run(run(given.rounds, given.nodes))
    floor = statistics.median(found[SINGLE.title])
    print(
        f"\n{MEMBERS} pods, {given.nodes} nodes: seconds from the first creation to the last bind"
    )
    for case in CASES:
        seconds = statistics.median(found[case.title])
        print(f"{case.title:<20} {seconds:6.2f} s  {seconds / floor:5.2f} x")
        if case.key:
            note_ratio(case.key, seconds, floor, "s")
    return 0


if __name__ == "__main__":
    sys.exit(run_command("bench.gangs", main))
