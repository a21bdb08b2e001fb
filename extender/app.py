"""Composition: builds the extender from its parts and runs it until it is told to stop."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from extender import metrics
from extender.bind import WRITE_SECONDS, Binder
from extender.cluster import Cluster, FailedPodHandler, NodeHandler, PodHandler
from extender.evict import Evictor
from extender.node_metrics import NodeMetrics
from extender.reconcile import OVERDUE_SECONDS, Reconciler
from extender.routes import Routes
from extender.settings import Settings
from gpushare.clock import SystemClock
from gpushare.kube import client, events
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.lifetime import run_until_stopped
from gpushare.objects import Node, Pod
from gpushare.telemetry import health

log = logging.getLogger(__name__)

# The API server keeps ended pods for long; they hold nothing. Ending is a deletion to this watch.
LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
# To the watch above a rejected pod just goes away, as it was before: a watch of its own says why.
FAILED_PODS: Final = "status.phase=Failed"
MAX_NOTICES: Final = 1000


@dataclass(frozen=True, slots=True)
class _Notice:
    about: Pod | Node
    reason: str
    message: str


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. SettingsError if the address or the API cannot be used."""
    clock = SystemClock()
    notices: asyncio.Queue[_Notice] = asyncio.Queue(MAX_NOTICES)

    def notice(about: Pod | Node, reason: str, message: str) -> None:
        try:
            notices.put_nowait(_Notice(about, reason, message))
        except asyncio.QueueFull:
            log.warning("too many events to tell", extra={"reason": reason, "about": message})

    cluster = Cluster(settings.unit_mib, notice, clock)
    node_metrics = NodeMetrics(cluster.ledger)
    async with Kube.connect(settings.kubeconfig) as kube:
        binder = Binder(cluster, kube, clock)
        pods = Informer(kube, client.pods(field_selector=LIVE_PODS), Pod, PodHandler(cluster))
        failed = Informer(
            kube, client.pods(field_selector=FAILED_PODS), Pod, FailedPodHandler(cluster)
        )
        evictor = Evictor(cluster, kube, notice, clock, after_seconds=settings.evict_after_seconds)
        nodes = Informer(kube, client.nodes(), Node, NodeHandler(cluster))

        metrics.register(
            cluster,
            node_metrics,
            {"pods": pods, "failed_pods": failed, "nodes": nodes},
            unknown=binder.unknown,
        )

        async def list_and_watch_pods() -> None:
            # A predecessor's last write may land until then; the list must show it.
            await asyncio.sleep(WRITE_SECONDS)
            await pods.run()

        def why_not_ready() -> list[str]:
            unsynced = (("pods", pods), ("nodes", nodes))
            return [f"{name} are not listed yet" for name, i in unsynced if not i.synced.is_set()]

        async def tell() -> None:
            while True:
                told = await notices.get()
                await events.record(
                    kube,
                    told.about,
                    told.reason,
                    told.message,
                    component="gpushare-extender",
                    clock=clock,
                )

        reconciler = Reconciler(
            cluster,
            binder,
            kube,
            clock,
            watch_is_behind=lambda: pods.cut(silent_seconds=OVERDUE_SECONDS),
        )
        app = Routes(cluster, binder, why_not_ready, node_metrics.render).app()
        async with health.serve(app, settings.host, settings.port):
            await run_until_stopped(
                list_and_watch_pods(),
                nodes.run(),
                failed.run(),
                evictor.run(),
                reconciler.run(),
                reconciler.audit(),
                tell(),
            )
