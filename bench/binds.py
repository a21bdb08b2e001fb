"""Measures what a bind costs the extender, and how long filters wait meanwhile.

    python -m bench.binds [--profile FILE]

The extender runs against a paper API server that accepts every Binding immediately. It is called as
kube-scheduler calls it: filters one after the other on one connection, and each bind on its own
connection without waiting for the answer. (kube-scheduler keeps two connections per host.)
"""

import argparse
import asyncio
import statistics
import time
from typing import Any, Final

import aiohttp
import msgspec

from bench import program
from bench.figures import note, note_ratio

NODES: Final = 1000
PODS: Final = 500
ROUNDS: Final = 3


class Asker:
    def __init__(self, extender: program.Program) -> None:
        self.extender = extender
        self.names = [f"paper-{i}" for i in range(NODES)]

    async def filter(self, session: aiohttp.ClientSession, pod: Any) -> tuple[str, float]:
        """Return a node that fits, and milliseconds."""
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": self.names})
        began = time.perf_counter()
        async with session.post(f"{self.extender.url}/filter", data=body) as response:
            answer = await response.read()
        took = (time.perf_counter() - began) * 1000
        found = msgspec.json.decode(answer)["NodeNames"]
        return found[hash(pod["metadata"]["name"]) % len(found)], took

    async def bind(self, pod: Any, node: str) -> float:
        """Return milliseconds, including those for the connection."""
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        body = msgspec.json.encode({**args, "Node": node})
        began = time.perf_counter()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.extender.url}/bind", data=body) as response,
        ):
            found = msgspec.json.decode(await response.read())
        assert not found["Error"], found["Error"]
        return (time.perf_counter() - began) * 1000


async def measure(asker: Asker, number: int) -> dict[str, list[float]]:
    """Return milliseconds of filters without and during binds, and of binds; CPU per pod."""
    pods = await asyncio.to_thread(program.order, f"waiting?prefix=r{number}&count={PODS}")
    async with aiohttp.ClientSession() as session:
        before = asker.extender.cpu_seconds()
        alone = [(await asker.filter(session, pod))[1] for pod in pods]
        middle = asker.extender.cpu_seconds()
        beside, binds = [], []
        async with asyncio.TaskGroup() as group:
            for pod in pods:
                node, took = await asker.filter(session, pod)
                beside.append(took)
                binds.append(group.create_task(asker.bind(pod, node)))
        after = asker.extender.cpu_seconds()
    return {
        "filter, alone": alone,
        "filter, beside binds": beside,
        "bind": [task.result() for task in binds],
        "CPU of a filter": [(middle - before) / PODS * 1000],
        "CPU of a bind": [(after - middle - (middle - before)) / PODS * 1000],
    }


async def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.binds")
    parser.add_argument("--profile", default="")
    found = parser.parse_args()
    with program.running(NODES, 2, 8, profile=found.profile) as extender:
        asker = Asker(extender)
        await measure(asker, 0)
        rounds = [await measure(asker, number) for number in range(1, 1 + ROUNDS)]
    print(f"{NODES} nodes, {PODS} pods a round, milliseconds: medians of {ROUNDS} rounds")
    print(f"{'':<24} {'p50':>8} {'p99':>8} {'worst':>8}")
    middle: dict[str, float] = {}
    for what in rounds[0]:
        each = [sorted(found[what]) for found in rounds]
        middles = [
            statistics.median(took[min(len(took) - 1, len(took) * part // 100)] for took in each)
            for part in (50, 99, 100)
        ]
        middle[what] = middles[0]
        print(f"{what:<24} " + " ".join(f"{ms:8.2f}" for ms in middles))
    note("bind", middle["CPU of a bind"])
    note_ratio("filter and binds", middle["filter, beside binds"], middle["filter, alone"], "ms")


if __name__ == "__main__":
    asyncio.run(main())
