"""Measures what waiting pods cost kube-scheduler, and what makes it try them again.

    python -m bench.waiting_pods [QUESTION ...] [--nodes 1000,5000] [--rounds N] [--version 1.34]

Questions, all of them by default:

short-list   pods bound per second where released pods may go to eight nodes only
refusals     cost of a rejection by the form of filter's answer, and whether pods are preempted
requeues     which writes make kube-scheduler try a rejected pod again
nominations  whether an empty answer of preempt nominates a node
release      time from the patch that removes a gate until filter is called
herd         latency of a new pod while others wait, rejected or gated

Run nothing else on the machine. Compare the ratios within a run.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from bench import throughput
from bench.waiting_pods import herd, preemption, refusals, release, requeues, short_list
from bench.waiting_pods.forms import every_name
from bench.waiting_pods.setting import Setting, prepared
from bench.world import Shape
from localcluster.interrupts import run_command
from localcluster.versions import DEFAULT, Version, version

FEW: Final = Shape(20, 1, 1)
ROUNDS: Final = 3
QUESTIONS: Final = ("short-list", "refusals", "requeues", "nominations", "release", "herd")


async def _on(version: Version, shape: Shape, *parts: Callable[[Setting], Awaitable[None]]) -> None:
    async with prepared(shape, version) as setting:
        for part in parts:
            await part(setting)


def _short_list(version: Version, nodes: int, rounds: int) -> None:
    row = short_list.row(nodes)
    with throughput.cluster_up(version) as cluster:
        asyncio.run(throughput.measure(row, cluster, rounds))
    print(f"\n{throughput.HEAD}\n{throughput.table(row)}\n\n{short_list.verdict(row)}", flush=True)


def measure(questions: Sequence[str], nodes: Sequence[int], rounds: int, version: Version) -> None:
    few: dict[str, Sequence[Callable[[Setting], Awaitable[None]]]] = {
        "refusals": [preemption.preemption],
        "nominations": [preemption.nominations],
        "requeues": [requeues.loops, requeues.requeues],
        "release": [release.accepted],
    }
    for question in questions:
        if question in few:
            asyncio.run(_on(version, FEW, *few[question]))
    many: dict[str, Callable[[Setting], Awaitable[None]]] = {
        "refusals": partial(refusals.cost, rounds=rounds),
        "release": release.delay,
        "herd": partial(herd.herd, rounds=rounds, decide=every_name),
    }
    for count in nodes:
        if parts := [many[question] for question in questions if question in many]:
            asyncio.run(_on(version, Shape(count, 1, 1), *parts))
        if "short-list" in questions:
            _short_list(version, count, rounds)


def main() -> int:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench.waiting_pods", description=__doc__, formatter_class=how)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--nodes", default="1000,5000", help="numbers of nodes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--version", default=str(DEFAULT), help="of Kubernetes")
    found = parser.parse_args()
    if unknown := set(found.questions) - set(QUESTIONS):
        parser.error(f"no such question: {', '.join(sorted(unknown))}")
    sizes = [int(each) for each in found.nodes.split(",")]
    if unknown_sizes := set(sizes) - set(short_list.SHAPES):
        parser.error(f"--nodes: 1000 or 5000 or both, not {sorted(unknown_sizes)}")
    measure(found.questions or QUESTIONS, sizes, found.rounds, version(found.version))
    return 0


if __name__ == "__main__":
    sys.exit(run_command("bench.waiting_pods", main))
