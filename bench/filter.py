"""How long filter takes for 5,000 nodes, against the floor of the same call that decides nothing.

    python -m bench.filter

Both are real HTTP on loopback with kube-scheduler's body, one call after the
other as it makes them. The floor reads the body and answers with two bytes.
"""

import asyncio
import statistics
import time

import aiohttp
import msgspec
from aiohttp import web

from extender.bind import Binder
from extender.cluster import Cluster
from extender.routes import MAX_BODY, Routes
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_CARDS, EXTENDER_PREFIX
from gpushare.kube.client import Kube
from tests.builders import node, pod

NODES, CARDS, PODS_A_NODE = 5000, 8, 32
CARD_UNITS = 80
CALLS = 40
PORT = 32799


def filled() -> Cluster:
    """5,000 nodes of 8 cards with 32 pods each; half of the nodes have no card with room for 8."""
    cluster = Cluster(1, lambda *_: None, SystemClock())
    cluster.nodes_replaced([node(f"n{i}", *[CARD_UNITS] * CARDS) for i in range(NODES)])
    for i in range(NODES):
        units = 19 if i % 2 else 10
        for j in range(PODS_A_NODE):
            annotations = {ANNOTATION_CARDS: f"GPU-{j % CARDS}"}
            cluster.pod_changed(pod(f"p{i}-{j}", units, node=f"n{i}", annotations=annotations))
    return cluster


async def measure(session: aiohttp.ClientSession, path: str, body: bytes) -> list[float]:
    """Milliseconds of each call, in order."""
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        async with session.post(f"http://127.0.0.1:{PORT}{path}", data=body) as response:
            await response.read()
            response.raise_for_status()
        took.append((time.perf_counter() - began) * 1000)
    return took


async def floor(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"{}")


def line(name: str, took: list[float], against: float) -> str:
    middle = statistics.median(took)
    return f"{name:<44} {middle:8.2f} ms  {max(took):8.2f} ms  {middle / against:6.1f} x"


async def main() -> None:
    began = time.perf_counter()
    cluster = filled()
    print(
        f"{NODES} nodes, {NODES * PODS_A_NODE} pods counted in {time.perf_counter() - began:.1f} s"
    )
    kube: Kube | None = None  # nothing is bound here
    binder = Binder(cluster, kube, SystemClock())  # type: ignore[arg-type]
    app = Routes(cluster, binder, list).app()
    parent = web.Application(client_max_size=MAX_BODY)
    parent.router.add_post("/floor", floor)
    parent.add_subapp("/extender", app)
    runner = web.AppRunner(parent, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    asked = msgspec.to_builtins(pod("asks", 8))
    names = [f"n{i}" for i in range(NODES)]
    body = msgspec.json.encode({"Pod": asked, "Nodes": None, "NodeNames": names})
    path = f"/extender{EXTENDER_PREFIX}/filter"
    async with aiohttp.ClientSession() as session:
        await measure(session, "/floor", body)
        least = await measure(session, "/floor", body)
        first = await measure(session, path, body)
        warm = await measure(session, path, body)
    middle = statistics.median(least)
    print(f"{'':<44} {'median':>11}  {'worst':>11}  {'to floor':>8}")
    print(line("floor: the body, no decision", least, middle))
    print(line("filter, 2,500 of 5,000 nodes fit", warm, middle))
    print(line("the first call, nothing computed yet", first[:1], middle))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
