"""Simulated nodes behind the extender's real live page, for tests in a browser."""

import asyncio
import math
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from aiohttp import web

from extender.binding.binder import Binder
from extender.page.usage import PluginUsage
from extender.routes import Routes
from extender.server.authorization import Authorizer, authorize
from extender.watch.cluster import ClusterWatch
from gpushare.annotations import inventory
from gpushare.clock import SystemClock
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INVENTORY,
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
    LABEL_GANG,
    LABEL_GANG_MINIMUM,
)
from gpushare.ledger.accounts import Reserve
from gpushare.live_page.history import History, Sample
from gpushare.objects.model import Node, Pod, SchedulingGate
from gpushare.placement.reasons import NO_ROOM, TOO_LARGE
from localcluster.wait import patient
from tests.builders import node, pod
from tests.integration.extender.plugins import Plugins
from tests.unit.extender import scripted
from tests.unit.extender.scripted import changed, restocked

T = TypeVar("T")

MODELS: Final = {
    "a100": (8, 81920, "NVIDIA A100-SXM4-80GB"),
    "l4": (4, 22528, "NVIDIA L4"),
    "t4": (2, 15360, "Tesla T4"),
}
APPS: Final = ("llama-70b", "embedder", "whisper", "notebook", "sd-xl", "rerank", "train-bert")
NAMESPACES: Final = ("serving", "research", "default")


class Fleet:
    """An extender's endpoints on a loopback port, and the cluster behind them.

    An event loop in a thread serves them: changes to the cluster must use ``do``.
    """

    def __init__(self, port: int) -> None:
        self.port, self.origin = port, f"http://127.0.0.1:{port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._random = random.Random(7)
        self._runner: web.AppRunner | None = None
        self._count = 0
        self.cluster: Any = None
        self.history, self.plugins = History(), Plugins()
        self.reviews: Any = None  # an API server that checks tokens; set it while closed

    def start(self) -> None:
        self._thread.start()
        self.cluster = self.do(ClusterWatch, 1, lambda *_: None, SystemClock())
        self.open()

    def open(self) -> None:
        """Serve the endpoints, like an extender that has just started."""
        self._run(self._open())

    def close(self) -> None:
        """Stop serving, like an extender that is shutting down."""
        self._run(self._close())

    def stop(self) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, change: Callable[..., T], *arguments: Any) -> T:
        """Change the cluster in the event loop that serves it; return once that is done."""

        async def done() -> T:
            return change(*arguments)

        return self._run(done())

    def bind(self, name: str, on: str, card: int, units: int, namespace: str = "default") -> None:
        """Report a pod that is bound to this GPU, as the API server does."""
        self.do(self.cluster.pod_changed, bound(name, on, card, units, namespace))

    def bind_to_several(self, name: str, on: str, cards: Iterable[int], units: int) -> None:
        """Report a pod that has these units of each of these GPUs."""
        uuids = [f"GPU-{on}-{card}" for card in cards]
        made = scripted.bound(name, units * len(uuids), ",".join(uuids), on)
        self.do(
            self.cluster.pod_changed, changed(made, {"labels": {LABEL_CARD_COUNT: f"{len(uuids)}"}})
        )

    def add_pending(
        self, name: str, units: int, *reasons: str, minutes: float = 0, gate: str = ""
    ) -> None:
        """Add a pending pod with a reason for each node that was rejected."""
        created = datetime.now(UTC) - timedelta(minutes=minutes)
        made = changed(
            pod(name, units),
            {"creation_timestamp": created.isoformat()},
            spec={"scheduling_gates": (SchedulingGate(gate),)} if gate else None,
        )
        self.do(self.cluster.pod_changed, made)
        if reasons:
            now = self.cluster.state.clock.monotonic()
            self.do(self.cluster.pods.answer, made.uid, len(reasons), reasons, now)

    def delete(self, name: str) -> None:
        self.do(self.cluster.pod_deleted, pod(name))

    def populate(self, kind: str, count: int, fill: float = 0.7) -> None:
        """Add nodes with pods that use about this part of their GPUs."""
        cards, units, _ = MODELS[kind]
        names = [f"gke-{kind}-{number:02}" for number in range(1, count + 1)]
        full = [
            each for name in names for card in range(cards)
            for each in self._fill(name, card, units, fill)
        ]  # fmt: skip

        def tell() -> None:
            for name in names:
                self.cluster.node_changed(gpus(name, kind))
            for each in full:
                self.cluster.pod_changed(each)

        self.do(tell)

    def dress(self) -> None:
        """Add an example of everything that the page can show."""
        for kind, count, fill in (("a100", 4, 0.8), ("l4", 4, 0.6), ("t4", 6, 0.5)):
            self.populate(kind, count, fill)
        self.do(self.cluster.node_changed, gpus("gke-l4-02", "l4", unhealthy=(3,)))
        cordoned = gpus("gke-t4-02", "t4")
        cordoned.annotations[ANNOTATION_CORDONED_CARDS] = "GPU-gke-t4-02-1"
        self.do(self.cluster.node_changed, cordoned)
        reserve = Reserve("uid-x", "default", "x", "gke-t4-01", ("GPU-gke-t4-01-1",), 6000, 1)
        self.do(self.cluster.ledger.reserve, reserve)
        elsewhere = {ANNOTATION_CARDS: "GPU-of-another-node"}  # it may run on any GPU of its node
        made = pod("bound-by-hand", 2048, node="gke-t4-03", annotations=elsewhere)
        self.do(self.cluster.pod_changed, made)
        self.add_pending("train-llama-0", 120 * 1024, *[TOO_LARGE.text] * 14, minutes=50)
        reasons = [*[NO_ROOM.text] * 4, *[TOO_LARGE.text] * 10]
        self.add_pending("batch-render-7f9c", 79 * 1024, *reasons, minutes=12)
        self.add_pending("notebook-ines", 78 * 1024, *reasons, minutes=3)
        self.add_pending("embedder-5b7d", 2048)
        for card in range(2):
            self.add_member(f"bert-{card}", "bert", 2, on="gke-t4-05", card=card, minutes=90)
        self.add_member("etl-0", "etl", 3, units=None, minutes=4, gate=GATE_ADMISSION)
        self.do(self._remember)

    def add_member(
        self,
        name: str,
        gang: str,
        minimum: int,
        units: int | None = 2048,
        *,
        on: str = "",
        card: int = 0,
        minutes: float = 0,
        gate: str = "",
    ) -> None:
        """Report a member of a gang, which is bound if it is ``on`` a node."""
        created = datetime.now(UTC) - timedelta(minutes=minutes)
        labels = {LABEL_GANG: gang, LABEL_GANG_MINIMUM: f"{minimum}"}
        made = bound(name, on, card, units or 0, "default") if on else pod(name, units)
        gates = (SchedulingGate(gate),) if gate else None
        meta = {"creation_timestamp": created.isoformat(), "labels": labels}
        self.do(self.cluster.pod_changed, changed(made, meta, spec={"scheduling_gates": gates}))

    def _remember(self) -> None:
        """Fill the history with an hour in which the cluster filled up."""
        accounts = [self.cluster.ledger.account(name) for name in self.cluster.ledger.nodes()]
        total = sum(entry.card.units for each in accounts for entry in each.cards)
        used = sum(entry.used for each in accounts for entry in each.cards)
        now = int(datetime.now(UTC).timestamp())
        for minute in range(60, -1, -1):
            wave = 0.82 + 0.14 * math.sin(minute / 7) - minute * 0.004
            pending = max(0, 4 - minute // 9) + (minute in range(22, 30)) * 6
            amount = used if minute == 0 else int(used * wave)
            self.history.add(Sample(now - 60 * minute, amount, total, pending))

    def _fill(self, on: str, card: int, units: int, fill: float) -> Iterator[Pod]:
        rest, pick = int(units * self._random.uniform(fill - 0.3, fill + 0.3)), self._random.choice
        while (wanted := units // pick((2, 3, 4, 8)) // 1024 * 1024) <= min(rest, units):
            rest -= wanted
            self._count += 1
            yield bound(f"{pick(APPS)}-{self._count}", on, card, wanted, pick(NAMESPACES))

    async def _open(self) -> None:
        binder: Any = Binder(self.cluster.scheduling, None, self.cluster.state.clock)  # type: ignore[arg-type]
        usage: Any = PluginUsage(
            self.plugins,  # type: ignore[arg-type]
            "gpushare-system",
            self.cluster.state.clock,
            may_contact=bool,  # the plugins are at loopback addresses
        )
        routes = Routes(self.cluster, binder, list, history=self.history, usage=usage)
        await self.plugins.open(self.cluster.ledger)
        app = routes.app()
        if self.reviews is not None:
            authorizer = Authorizer(self.reviews, self.cluster.state.clock)
            app = routes.reading_app(authorize(authorizer))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            await self.plugins.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=patient(60))


@contextmanager
def fleet(port: int) -> Iterator[Fleet]:
    made = Fleet(port)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def gpus(
    name: str, kind: str, *, unhealthy: tuple[int, ...] = (), model: str = "", unit_mib: int = 1
) -> Node:
    """Return a node with the GPUs of a kind."""
    cards, units, usual = MODELS[kind]
    made = node(name, *[units // unit_mib] * cards, unhealthy=unhealthy)
    stock = inventory.decode(made.annotations[ANNOTATION_INVENTORY])
    named = tuple(
        replace(card, model=model or usual, uuid=f"GPU-{name}-{card.index}") for card in stock.cards
    )
    return restocked(made, cards=named, unit_mib=unit_mib)


def bound(name: str, on: str, card: int, units: int, namespace: str) -> Pod:
    return changed(scripted.bound(name, units, f"GPU-{on}-{card}", on), {"namespace": namespace})
