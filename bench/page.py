"""Measures what viewers of the live page cost the filter, against the same run without viewers.

    python -m bench.page

A cluster has 1,000 nodes with 8 cards and 16 pods each. Filters are called over real HTTP on
loopback, one after the other, while pods are created and deleted 100 times a second. Caller and
viewers run in separate processes. All viewers connect at once after some filters, and each receives
the whole cluster and then the changes. Rounds without and with viewers alternate.
"""

import asyncio
import itertools
import multiprocessing
import statistics
import time
from contextlib import suppress
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Semaphore
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import REGISTRY

from bench.figures import note_ratio
from bench.pauses import CARDS, filled
from extender.binding.binder import Binder
from extender.routes import Routes
from extender.server.limits import MAX_STREAMS
from extender.watch.cluster import ClusterWatch
from gpushare.contract import ANNOTATION_CARDS, EXTENDER_PREFIX
from gpushare.kube.client import Kube
from tests.builders import pod

NODES: Final = 1000
PORT: Final = 32758
CALLS: Final = 600
ALONE: Final = 50  # calls before the viewers come
BETWEEN_SECONDS: Final = 0.002
ROUNDS: Final = 5
CHANGES_A_SECOND: Final = 100
VIEWERS: Final = (0, 1, MAX_STREAMS)
URL: Final = f"http://127.0.0.1:{PORT}{EXTENDER_PREFIX}"


async def main() -> None:
    cluster = filled(NODES)
    kube: Kube | None = None  # nothing is bound here
    binder = Binder(cluster.scheduling, kube, cluster.state.clock)  # type: ignore[arg-type]
    runner = web.AppRunner(Routes(cluster, binder, list).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    churning = asyncio.create_task(churn(cluster))
    found: dict[int, list[float]] = {count: [] for count in VIEWERS}
    used = dict.fromkeys(VIEWERS, 0.0)
    for _, count in itertools.product(range(ROUNDS), VIEWERS):
        before = time.process_time()
        found[count] += await asked(count)
        used[count] += (time.process_time() - before) * 1000 / (ROUNDS * CALLS)
    churning.cancel()
    with suppress(asyncio.CancelledError):
        await churning
    await runner.cleanup()
    show(found, used)


async def churn(cluster: ClusterWatch) -> None:
    """Bind pods and delete them again, each on another card."""
    for i in itertools.count():
        annotations = {ANNOTATION_CARDS: f"GPU-{i % CARDS}"}
        made = pod("comes", 10, node=f"n{i * 37 % NODES}", annotations=annotations, uid=f"u{i}")
        for change in (cluster.pod_changed, cluster.pod_deleted):
            change(made)
            await asyncio.sleep(0.5 / CHANGES_A_SECOND)


async def asked(viewers: int) -> list[float]:
    """Return milliseconds of filters with this number of viewers."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[float]] = context.Queue()
    go = context.Semaphore(0)
    watching = _start(context, _watch, viewers, go)
    asking = _start(context, _ask, results, go)
    try:
        took = await asyncio.to_thread(results.get)
        assert REGISTRY.get_sample_value("gpushare_extender_viewers") == viewers
        return took
    finally:
        asking.join()
        watching.terminate()
        watching.join()


def _start(context: SpawnContext, what: object, *arguments: object) -> multiprocessing.Process:
    process = context.Process(target=what, args=arguments, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process  # type: ignore[return-value] # a spawned one is a Process but by name


def _watch(viewers: int, go: Semaphore) -> None:
    go.acquire()
    asyncio.run(_take_in(viewers))


async def _take_in(viewers: int) -> None:
    async def one(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{URL}/changes") as answer:
            async for _ in answer.content.iter_any():
                pass

    for_ever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=for_ever) as session:
        await asyncio.gather(*(one(session) for _ in range(viewers)))


def _ask(results: "multiprocessing.Queue[list[float]]", go: Semaphore) -> None:
    results.put(asyncio.run(_filters(go)))


async def _filters(go: Semaphore) -> list[float]:
    limits = {"aliyun.com/gpu-mem": "10"}
    wanted = {
        "metadata": {"name": "asks", "namespace": "default", "uid": "uid-asks"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    names = [f"n{i}" for i in range(NODES)]
    body = msgspec.json.encode({"Pod": wanted, "Nodes": None, "NodeNames": names})
    took = []
    async with aiohttp.ClientSession() as session:
        for place in range(CALLS):
            if place == ALONE:
                go.release()
            began = time.perf_counter()
            async with session.post(f"{URL}/filter", data=body) as answer:
                await answer.read()
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(BETWEEN_SECONDS)
    return took[ALONE:]


def show(found: dict[int, list[float]], used: dict[int, float]) -> None:
    figures = {count: _figures(took) for count, took in found.items()}
    floor = figures[0]
    print(f"filter at {NODES} nodes, {CHANGES_A_SECOND} pods a second that come and go")
    print(
        f"{'viewers':>7}  {'median':>10} {'p99':>11} {'worst':>11} {'CPU a call':>11}"
        "   to none: median, p99, CPU"
    )
    for count, (median, late, worst) in figures.items():
        print(
            f"{count:>7}  {median:7.2f} ms {late:8.2f} ms {worst:8.2f} ms {used[count]:8.2f} ms"
            f"   {median / floor[0]:.2f} x, {late / floor[1]:.2f} x, {used[count] / used[0]:.2f} x"
        )
        if count:
            note_ratio(f"page {count}", median, floor[0], "ms")


def _figures(took: list[float]) -> tuple[float, float, float]:
    return statistics.median(took), statistics.quantiles(took, n=100)[98], max(took)


if __name__ == "__main__":
    asyncio.run(main())
