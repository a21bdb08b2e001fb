"""Measures filter and prioritize against a floor in the same run that decides nothing.

    python -m bench.filter

Everything is real HTTP on loopback with kube-scheduler's bodies, one call after the other. The
floor is the same server: it decodes the same bodies and encodes the same answers with the same
types, but decides nothing. Floor and verb are called alternately, so that other load affects both.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import msgspec
from aiohttp import web

from bench.figures import note, note_ratio
from bench.pauses import CARDS, PODS_A_NODE, filled
from bench.replicas import handing_on
from extender import wire
from extender.binding.binder import Binder
from extender.decisions.scheduling import Placement
from extender.routes import Routes
from extender.server.limits import answer
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from gpushare.annotations.pod_annotations import request_of
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_CARDS, EXTENDER_PREFIX
from gpushare.http_server.requests import decoded
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod
from tests.builders import pod

CALLS: Final = 300
PORT: Final = 32759
FOLLOWER_PORT: Final = 32757
REPLICA_PORT: Final = 32756
SIZES: Final = tuple(range(4, 41))


@dataclass(frozen=True)
class Case:
    """Describe a cluster; on the fraction ``full`` of its nodes no card has 40 units free."""

    nodes: int
    full: float = 0.1
    candidates: int = Policy().candidates


def units_of(case: Case, node: int, place: int) -> int:
    return 39 if node % 100 < case.full * 100 else 4 + (node * 7 + place * 3) % 17


class Bench:
    """One server with the extender's pages and a floor for each."""

    def __init__(self, case: Case) -> None:
        policy = Policy(candidates=case.candidates)
        self.cluster = filled(case.nodes, policy, partial(units_of, case))
        self.names = [f"n{i}" for i in range(case.nodes)]
        kube: Kube | None = None  # nothing is bound here
        binder = Binder(self.cluster.scheduling, kube, SystemClock())  # type: ignore[arg-type]
        self.routes = Routes(self.cluster, binder, list)
        app = self.routes.app()
        app.router.add_post(f"{EXTENDER_PREFIX}/floor", self._floor, name="floor")
        self._answer: Any = None
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", PORT).start()
        self._session = aiohttp.ClientSession()
        gc.collect()
        gc.freeze()  # as the program does once it has listed
        return self

    async def __aexit__(self, *_: object) -> None:
        gc.unfreeze()
        await self._session.close()
        await self._runner.cleanup()

    async def compare(
        self,
        verb: str,
        wanted: Callable[[int], Pod],
        *,
        names: list[str] | None = None,
        between: Callable[[int], None] | None = None,
        port: int = PORT,
    ) -> tuple[list[float], list[float]]:
        """Return milliseconds of each call of a verb and of its floor; ``between`` runs before.

        The verb is called on ``port``, the floor always on the server's own port.
        """
        floor, took = [], []
        for call in range(CALLS):
            made = wanted(call)
            body = msgspec.json.encode(
                {"Pod": made, "Nodes": None, "NodeNames": names or self.names}
            )
            if between is not None:
                between(call)
            else:
                self.cluster.pod_deleted(wanted(call - 1))  # its place is expected no more
            self.cluster.pod_changed(made)  # the watch shows a pod before kube-scheduler asks
            # Whoever comes second finds caches warm.
            if call % 2:
                floor.append((await self._post("floor", body))[0])
            ms, given = await self._post(verb, body, port)
            took.append(ms)
            kind = wire.FilterResult if verb == "filter" else list[wire.HostPriority]
            self._answer = msgspec.json.decode(given, type=kind)
            if not call % 2:
                ms, same = await self._post("floor", body)
                floor.append(ms)
                assert len(same) == len(given)
        return took, floor

    @property
    def offered(self) -> str:
        best: str = self._answer.node_names[0]
        return best

    async def _post(self, page: str, body: bytes, port: int = PORT) -> tuple[float, bytes]:
        url = f"http://127.0.0.1:{port}{EXTENDER_PREFIX}/{page}"
        began = time.perf_counter()
        async with self._session.post(url, data=body) as response:
            answer = await response.read()
            response.raise_for_status()
        return (time.perf_counter() - began) * 1000, answer

    async def _floor(self, request: web.Request) -> web.Response:
        await decoded(wire.decode_args, request)
        return answer(self._answer)


def decision(case: Case, cluster: ClusterWatch) -> list[float]:
    """Return milliseconds of filter's decision without HTTP, in the same process."""
    names, took = [f"n{i}" for i in range(case.nodes)], []
    for call in range(CALLS):
        asked = pod(f"alone{call}", 40)
        fresh = msgspec.json.decode(msgspec.json.encode(names))  # as strings come from the wire
        began = time.perf_counter()
        cluster.scheduling.filter(asked, fresh)
        took.append((time.perf_counter() - began) * 1000)
        cluster.pods.drop_attempts(asked.uid)
    return took


def row(name: str, took: list[float], floor: list[float]) -> str:
    middle, least = statistics.median(took), statistics.median(floor)
    worst = statistics.quantiles(took, n=100)[98]
    return f"{name:<58} {middle:7.2f} {worst:7.2f} {least:7.2f}  {middle / least:5.2f}x"


@dataclass(frozen=True)
class Measured:
    filter: tuple[list[float], list[float]]
    prioritize: tuple[list[float], list[float]]
    alone: list[float]
    forwarded: tuple[list[float], list[float]]
    changing: tuple[list[float], list[float]] | None


async def measure(case: Case) -> Measured:
    label = f"{case.nodes} x {CARDS} x {PODS_A_NODE}"
    async with Bench(case) as bench:
        began = time.perf_counter()
        await bench.compare("filter", lambda _: pod("warm", 40))
        found = await bench.compare("filter", lambda i: pod(f"a{i}", 40))
        print(row(f"filter, {label}, {case.candidates or 'all'} offered", *found))
        ranked = await bench.compare("prioritize", lambda i: pod(f"a{i}", 40))
        print(row(f"prioritize of all {case.nodes}", *ranked))
        alone = decision(case, bench.cluster)
        worst = statistics.quantiles(alone, n=100)[98]
        print(f"{'filter, the decision alone':<58} {statistics.median(alone):7.2f} {worst:7.2f}")
        forwarded = await handed_on(bench)
        changed = await changing(bench) if case.full < 1 else None
        print(f"{'':<58} {time.perf_counter() - began:7.1f} s in all")
    return Measured(found, ranked, alone, forwarded, changed)


async def handed_on(bench: Bench) -> tuple[list[float], list[float]]:
    """Call another replica, which forwards each filter; both run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        made = handing_on(bench.routes, Path(folder), port=FOLLOWER_PORT, leader_port=REPLICA_PORT)
        async with made:
            await bench.compare("filter", lambda _: pod("warm", 40), port=FOLLOWER_PORT)
            found = await bench.compare("filter", lambda i: pod(f"f{i}", 40), port=FOLLOWER_PORT)
    print(row("filter, handed on to the replica that decides", *found))
    return found


async def changing(bench: Bench) -> tuple[list[float], list[float]]:
    """Act as a scheduler: pods of 4 to 40 units arrive, and each is bound before the next."""
    units = list(islice(cycle(SIZES), CALLS))

    def bind_the_last(call: int) -> None:
        if not call:
            return
        before, name = pod(f"b{call - 1}", units[call - 1]), bench.offered
        found = bench.cluster.scheduling.place(before, name, request_of(before))
        assert isinstance(found, Placement), found
        annotations = {ANNOTATION_CARDS: found.cards[0].uuid}
        bound = pod(f"b{call - 1}", units[call - 1], node=name, annotations=annotations)
        bench.cluster.pod_changed(bound)

    took, floor = await bench.compare(
        "filter", lambda i: pod(f"b{i}", units[i]), between=bind_the_last
    )
    took, floor = took[len(SIZES) :], floor[len(SIZES) :]  # each size has been asked for
    print(row("filter, 37 sizes, a pod bound between calls", took, floor))
    return took, floor


async def main() -> None:
    print(f"{'':<58} {'p50 ms':>7} {'p99 ms':>7} {'floor':>7}  ratio")
    small = await measure(Case(1000))
    every = await measure(Case(1000, candidates=0))
    await measure(Case(1000, full=1.0))
    large = await measure(Case(5000))
    middle = statistics.median
    few, many = middle(small.filter[0]), middle(large.filter[0])
    name = "filter, 5000 nodes to 1000"
    print(f"{name:<58} {many:7.2f} {'':7} {few:7.2f}  {many / few:5.2f}x")
    assert small.changing is not None
    for key, (took, floor) in {
        "filter": small.filter,
        "filter 37": small.changing,
        "filter all": every.filter,
        "filter 5000": (large.filter[0], small.filter[0]),
        "prioritize": small.prioritize,
        "prioritize 5000": large.prioritize,
        "filter forwarded": (small.forwarded[0], small.filter[0]),
        "filter forwarded 5000": (large.forwarded[0], large.filter[0]),
    }.items():
        note_ratio(key, middle(took), middle(floor), "ms")
    note("decision", middle(small.alone))


if __name__ == "__main__":
    asyncio.run(main())
