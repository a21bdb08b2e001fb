"""Measures what gangs and gated pods that wait for room cost other pods.

    python -m bench.waiting_gangs

Real HTTP on loopback with kube-scheduler's bodies. kube-scheduler asks about a pod that fits every
10 ms, and it is bound before the next one, so that waiting pods are planned again all the time. The
floor is the same without waiting pods; both are measured in turn.

A pause is the CPU time between two turns of the event loop, in which no call is answered.
"""

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import aiohttp
import msgspec
from aiohttp import web

from bench import world
from bench.figures import note, note_ratio
from bench.pauses import filled
from extender.binding.binder import Binder
from extender.event_loop import EventLoop
from extender.gangs.duties import GangDuties
from extender.gangs.planning import GangPlanning
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.queue.admission import Admission
from extender.routes import Routes
from extender.watch.cluster import ClusterWatch
from gpushare.clock import SystemClock
from gpushare.contract import (
    ANNOTATION_CARDS,
    EXTENDER_PREFIX,
    GATE_ADMISSION,
    LABEL_GANG,
    LABEL_GANG_MINIMUM,
)
from gpushare.objects.model import Pod

NODES: Final = 1000
EMPTIER: Final = 3  # nodes with 8 x 20 units left; the others have 4 to 8 units left on each GPU
GANGS, MEMBERS, GATED = 200, 32, 2000
LARGE, MANY_GATED = 1024, 10_000
ROUNDS: Final = 5
CALLS: Final = 300
EVERY_SECONDS: Final = 0.01
SETTLE_SECONDS: Final = 3.0
PERCENTILE: Final = 0.99
PORT: Final = 32755
_URL: Final = f"http://127.0.0.1:{PORT}{EXTENDER_PREFIX}/filter"
_GATES: Final = {"schedulingGates": [{"name": GATE_ADMISSION}]}


class PaperApi:
    """Permits patches, and lists nothing."""

    server_date = "Thu, 01 Jan 2026 00:00:00 GMT"

    async def request(self, *_: object, **__: object) -> bytes:
        return msgspec.json.encode({"status": {"allowed": True}})

    async def list_page(self, *_: object, **__: object) -> bytes:
        return b'{"metadata":{"resourceVersion":"1"},"items":[]}'

    async def release_pod(self, *_: object) -> None: ...

    async def nominate_node(self, *_: object) -> None: ...


def pods(
    group: str, units: int, count: int, labels: Mapping[str, str] | None = None
) -> Iterable[Pod]:
    """Return gated pods as the watch shows them: equal ones share their parts."""
    made = world.pod(group, units, group, spec=_GATES)
    made["metadata"]["labels"] = dict(labels or {})
    like = msgspec.convert(made, Pod)
    for number in range(count):
        name = f"{group}-{number}"
        meta = msgspec.structs.replace(like.metadata, name=name, uid=name, namespace="default")
        yield msgspec.structs.replace(like, metadata=meta)


def gangs(count: int, members: int, units: Sequence[int]) -> Iterable[Pod]:
    for number, each in zip(range(count), itertools.cycle(units), strict=False):
        name = f"gang-{number}-of-{members}"
        yield from pods(name, each, members, {LABEL_GANG: name, LABEL_GANG_MINIMUM: str(members)})


def singles(count: int, units: Sequence[int]) -> Iterable[Pod]:
    for each in units:
        yield from pods(f"single-{count}-{each}", each, count // len(units))


class LongestTurn:
    """Record the most CPU time between two turns of the event loop, in ms."""

    async def __aenter__(self) -> Self:
        self.most = 0.0
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _tick(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.most = max(self.most, (time.thread_time() - began) * 1000)


class Stage:
    """The leader's parts before a cluster that has little room left."""

    def __init__(self) -> None:
        self.cluster: ClusterWatch = filled(
            NODES, units=lambda node, place: 30 if node < EMPTIER else 36 + (node + place) % 3
        )
        clock, api = SystemClock(), PaperApi()
        kube: Any = api
        scheduling = self.cluster.scheduling
        self.planning = GangPlanning(scheduling)
        self.duties = GangDuties(scheduling, self.planning, kube, kube, lambda *_: None)
        releaser = Releaser(api)
        self.admission = Admission(
            scheduling.gangs, self.planning, releaser, PatchRight(kube, clock)
        )
        binder = Binder(scheduling, kube, clock)
        self.routes = Routes(self.cluster, binder, list, planning=self.planning)
        self.names = [f"n{number}" for number in range(NODES)]
        gc.collect()
        gc.freeze()  # as the program does once it has listed

    def add(self, found: Iterable[Pod]) -> list[Pod]:
        made = list(found)
        for each in made:
            self.cluster.pod_changed(each)
        return made

    def remove(self, made: Iterable[Pod]) -> None:
        for each in made:
            self.cluster.pod_deleted(each)

    async def admit(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self.admission.check(tasks)


async def calls(stage: Stage, session: aiohttp.ClientSession, block: str) -> list[float]:
    """Return the CPU time that passes until each filter call is answered, in milliseconds.

    Client and server are one thread, so that this is the latency on an idle machine. Each pod is
    bound before the next call.
    """
    took, bound = [], []
    for number in range(CALLS):
        name = f"{block}-{number}"
        made = world.pod(name, 4, "asked")
        made["metadata"] |= {"uid": name, "namespace": "default"}
        waits = msgspec.convert(made, Pod)
        stage.cluster.pod_changed(waits)
        body = msgspec.json.encode({"Pod": made, "Nodes": None, "NodeNames": stage.names})
        began = time.thread_time()
        async with session.post(_URL, data=body) as answer:
            found = msgspec.json.decode(await answer.read())
        took.append((time.thread_time() - began) * 1000)
        at, card = found["NodeNames"][0], f"GPU-{number % 8}"
        meta = msgspec.structs.replace(waits.metadata, annotations={ANNOTATION_CARDS: card})
        spec = msgspec.structs.replace(waits.spec, node_name=at)
        bound.append(msgspec.structs.replace(waits, metadata=meta, spec=spec))
        stage.cluster.pod_changed(bound[-1])
        await asyncio.sleep(EVERY_SECONDS)
    stage.remove(bound)
    return took


async def compare(stage: Stage) -> None:
    runner = web.AppRunner(stage.routes.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    work = [asyncio.create_task(each) for each in (stage.duties.run(), stage.admission.run())]
    found: dict[str, list[list[float]]] = {"none waiting": [], "with them": []}
    async with aiohttp.ClientSession() as session:
        await calls(stage, session, "warm")
        for number, (what, took) in itertools.product(range(ROUNDS), found.items()):
            made: list[Pod] = []
            if took is found["with them"]:
                made = stage.add(gangs(GANGS, MEMBERS, range(10, 18)))
                made += stage.add(singles(GATED, range(21, 61)))
            await asyncio.sleep(SETTLE_SECONDS)  # all are planned once
            took.append(await calls(stage, session, f"{number}-{what[:4]}"))
            assert not list(stage.cluster.ledger.kept())
            stage.remove(made)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await runner.cleanup()
    print(f"{GANGS} gangs of {MEMBERS} and {GATED} single pods wait behind gates")
    middle, high = {}, {}
    for what, blocks in found.items():
        middle[what] = statistics.median(map(statistics.median, blocks))
        high[what] = statistics.median(sorted(each)[int(CALLS * PERCENTILE)] for each in blocks)
        print(f"{what:<14} median {middle[what]:6.2f} ms  p99 {high[what]:6.2f} ms")
    for key, each in (("waiting gangs", high), ("waiting gangs median", middle)):
        print(f"{key}: {each['with them'] / each['none waiting']:.2f} x")
        note_ratio(key, each["with them"], each["none waiting"], "ms")


async def pauses(stage: Stage) -> None:
    state = stage.cluster.state
    stage.add(gangs(1, LARGE, [4]))
    stage.add(gangs(GANGS, MEMBERS, range(10, 18)))
    stage.add(singles(MANY_GATED, range(21, 61)))
    most = 0.0
    for what, work in (
        ("admission, all are new", stage.admit),
        ("admission, all nodes changed", stage.admit),
        ("duties, all nodes changed", stage.duties.check),
    ):
        for name in state.nodes:
            state.use.changes.add(name)
        async with LongestTurn() as longest:
            await work()
        print(f"longest pause, {what:<30} {longest.most:6.2f} ms")
        most = max(most, longest.most)
    assert state.ledger.slot_count(f"default/labels/gang-0-of-{LARGE}") in {0, LARGE}
    note("pause gangs", most)


async def main() -> None:
    stage = Stage()
    await compare(stage)
    await pauses(stage)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main())
