"""Composition: builds the extender from its parts and runs it until it is told to stop."""

import asyncio
import gc
import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from extender import listeners, metrics
from extender.authorize import Authorizer
from extender.bind import WRITE_SECONDS, Binder
from extender.cluster import Cluster, FailedPodHandler, NodeHandler, PodHandler
from extender.configuration import Configuration
from extender.evict import Evictor
from extender.node_metrics import NodeMetrics
from extender.reconcile import OVERDUE_SECONDS, Reconciler
from extender.reload import Reload
from extender.routes import Routes
from extender.upkeep import Upkeep
from gpushare.clock import SystemClock
from gpushare.kube import client, events
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.lifetime import run_until_stopped
from gpushare.objects import Node, Pod
from gpushare.telemetry import logs

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


async def run(configuration: Configuration, path: Path) -> None:
    """Serve until SIGTERM or SIGINT. SettingsError if an address or the API cannot be used.

    ``path`` is where the configuration came from, and is read again at SIGHUP.
    """
    clock = SystemClock()
    notices: asyncio.Queue[_Notice] = asyncio.Queue(MAX_NOTICES)

    def notice(about: Pod | Node, reason: str, message: str) -> None:
        try:
            notices.put_nowait(_Notice(about, reason, message))
        except asyncio.QueueFull:
            log.warning("too many events to tell", extra={"reason": reason, "about": message})

    cluster = Cluster(configuration.unit_mib, notice, clock, configuration.policy)
    node_metrics = NodeMetrics(cluster.ledger)
    async with Kube.connect(configuration.kubeconfig) as kube:
        binder = Binder(cluster, kube, clock)
        pods = Informer(kube, client.pods(field_selector=LIVE_PODS), Pod, PodHandler(cluster))
        failed = Informer(
            kube, client.pods(field_selector=FAILED_PODS), Pod, FailedPodHandler(cluster)
        )
        evictor = Evictor(
            cluster, kube, notice, clock, after_seconds=configuration.evict_after_seconds
        )
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

        async def spare_what_stays() -> None:
            await pods.synced.wait()
            await nodes.synced.wait()
            # Of 50,000 pods a full collection takes 50 ms, in which no filter is answered.
            gc.collect()
            gc.freeze()

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

        routes = Routes(
            cluster,
            binder,
            why_not_ready,
            limits=configuration.limits,
            more_metrics=node_metrics.render,
        )

        def apply(changed: Configuration) -> None:
            logs.set_level(changed.log_level)
            routes.limit(changed.limits)

        reload = Reload(path, configuration, apply)
        reconciler = Reconciler(
            cluster,
            binder,
            kube,
            clock,
            watch_is_behind=lambda: pods.cut(silent_seconds=OVERDUE_SECONDS),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        async with listeners.serve(configuration.listen, routes, Authorizer(kube, clock)):
            await run_until_stopped(
                list_and_watch_pods(),
                nodes.run(),
                failed.run(),
                evictor.run(),
                reconciler.run(),
                reconciler.audit(),
                Upkeep(cluster).run(),
                tell(),
                spare_what_stays(),
            )
