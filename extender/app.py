"""Composition: builds the extender from its parts and runs it until it is told to stop."""

import asyncio
import gc
import logging
import math
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from extender.binding.binder import UNACKNOWLEDGED_SECONDS, WRITE_SECONDS, Binder
from extender.binding.fenced_writer import Writer
from extender.binding.unknown_outcomes import OVERDUE_SECONDS, Reconciler
from extender.eviction.overbooked_cards import Mender
from extender.eviction.stuck_pods import Evictor
from extender.leadership.election import (
    Elected,
    Leadership,
    SingleReplica,
    announced,
    identity,
    require_single_replica,
)
from extender.metrics import certificates, counters
from extender.metrics.nodes import NodeMetrics
from extender.routes import Routes, serve
from extender.server import listeners
from extender.server.authorization import Authorizer
from extender.server.leader_proxy import Forwarder, decide_for_replicas, decide_or_forward
from extender.server.tls import client_contexts, server_context
from extender.settings.configuration import Configuration, LeaderElection
from extender.settings.reload import Reload
from extender.upkeep import Upkeep
from extender.watch.cluster import Cluster, FailedPodHandler, NodeHandler, PodHandler
from gpushare.clock import BootClock, SystemClock
from gpushare.contract import RESOURCES_BEGIN
from gpushare.kube import events, paths
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.kube.lease import Elector, KubeLease, Timing
from gpushare.objects.model import Node, Pod
from gpushare.process.lifetime import run_until_stopped
from gpushare.telemetry import logs

log = logging.getLogger(__name__)

# The API server keeps ended pods for long; they hold nothing. Ending is a deletion to this watch.
LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
# To the watch above a rejected pod just goes away, as it was before: a watch of its own says why.
FAILED_PODS: Final = "status.phase=Failed"
MAX_NOTICES: Final = 1000
# What a follower sees its leader tells; what it saw just before it leads itself maybe nobody did.
CHANGE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Notice:
    about: Pod | Node
    reason: str
    message: str
    seen_at: float
    was_leading: bool


async def run(configuration: Configuration, path: Path) -> None:
    """Serve until SIGTERM or SIGINT. SettingsError if an address or the API cannot be used.

    ``path`` is where the configuration came from, and is read again at SIGHUP.
    """
    async with AsyncExitStack() as stack:
        connected = Kube.connect(
            configuration.kubeconfig, unacknowledged_seconds=UNACKNOWLEDGED_SECONDS
        )
        kube = await stack.enter_async_context(connected)
        await _Extender(configuration, kube, stack).run(path)


class _Extender:
    def __init__(self, configuration: Configuration, kube: Kube, stack: AsyncExitStack) -> None:
        self._configuration, self._kube, self._stack = configuration, kube, stack
        self._clock = SystemClock()
        self._notices: asyncio.Queue[_Notice] = asyncio.Queue(MAX_NOTICES)
        self._leadership: Leadership = SingleReplica()
        self._cluster = cluster = Cluster(
            configuration.unit_mib, self._notice, self._clock, configuration.policy
        )
        live, failed = (paths.pods(field_selector=each) for each in (LIVE_PODS, FAILED_PODS))
        self._pods = Informer(kube, live, Pod, PodHandler(cluster), naming=RESOURCES_BEGIN)
        self._failed = Informer(
            kube, failed, Pod, FailedPodHandler(cluster), naming=RESOURCES_BEGIN
        )
        self._nodes = Informer(kube, paths.nodes(), Node, NodeHandler(cluster))
        self._elector = _elector(configuration.leader_election, kube)
        self._writer = writer = Writer(kube, BootClock(), self._ends_at)
        self._binder = Binder(cluster, writer, self._clock)
        self._evictor = Evictor(
            cluster,
            writer,
            self._notice,
            self._clock,
            after_seconds=configuration.evict_after_seconds,
        )
        self._mender = Mender(cluster, writer, self._notice, self._clock)
        self._reconciler = Reconciler(
            cluster,
            self._binder,
            writer,
            self._clock,
            watch_is_behind=lambda: self._pods.cut(silent_seconds=OVERDUE_SECONDS),
        )
        self._node_metrics = NodeMetrics(cluster.ledger)
        counters.register(
            cluster,
            self._node_metrics,
            {"pods": self._pods, "failed_pods": self._failed, "nodes": self._nodes},
            unknown=self._binder.unknown,
            certificates=certificates.files_of(configuration),
            leads=lambda: self._leadership.decides,
        )

    async def run(self, path: Path) -> None:
        configuration = self._configuration
        routes = Routes(
            self._cluster,
            self._binder,
            self._why_not_ready,
            limits=configuration.limits,
            more_metrics=self._node_metrics.render,
            leads=lambda: self._leadership.decides,
        )

        def apply(changed: Configuration) -> None:
            logs.set_level(changed.log_level)
            routes.limit(changed.limits)

        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, Reload(path, configuration, apply)
        )
        election, elector = configuration.leader_election, self._elector
        gates = []
        if election is None or elector is None:
            parts = [self._list_and_watch_pods_alone(), *self._duties()]
        else:
            tls, address = election.tls, election.address
            self._leadership = elected = Elected(
                elector, settle=self._settle, duties=self._duties, forget=self._forget
            )
            forwarder = await self._stack.enter_async_context(
                Forwarder.connect(
                    lambda: elector.leader, client_contexts(tls), tls.allowed_names[0]
                )
            )
            gates.append(decide_or_forward(elected, forwarder))
            listener = listeners.Listener(
                "replicas",
                address.host,
                address.port,
                listeners.REPLICA_CONNECTIONS,
                listeners.DECIDING_IDLE_SECONDS,
                server_context(tls),
            )
            for_replicas = routes.app(decide_for_replicas(elected, tls.allowed_names))
            await self._stack.enter_async_context(listeners.serve_app(listener, for_replicas))
            parts = [self._pods.run(), elected.run(self._writer.quiet)]
        authorizer = Authorizer(self._kube, self._clock)
        async with serve(configuration.listen, routes, authorizer, *gates):
            await run_until_stopped(
                self._nodes.run(),
                self._failed.run(),
                self._reconciler.audit(),
                Upkeep(self._cluster).run(),
                self._spare_what_stays(),
                *parts,
            )

    def _ends_at(self) -> float:
        if self._elector is None:
            return math.inf
        # What was begun in an earlier term may not be ended by a write in this one.
        return self._elector.ends_at if self._leadership.decides else -math.inf

    def _notice(self, about: Pod | Node, reason: str, message: str) -> None:
        leads, now = self._leadership.decides, self._clock.monotonic()
        if self._notices.full() and not leads:
            self._notices.get_nowait()  # told by who leads, long ago
        try:
            self._notices.put_nowait(_Notice(about, reason, message, now, leads))
        except asyncio.QueueFull:
            log.warning("too many events to tell", extra={"reason": reason, "about": message})

    def _why_not_ready(self) -> list[str]:
        unsynced = (("pods", self._pods), ("nodes", self._nodes))
        return [f"{name} are not listed yet" for name, i in unsynced if not i.synced.is_set()]

    async def _list_and_watch_pods_alone(self) -> None:
        # A predecessor's last write may land until then; the list must show it.
        await asyncio.sleep(WRITE_SECONDS)
        await self._pods.run()

    async def _spare_what_stays(self) -> None:
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        # Of 50,000 pods a full collection takes 50 ms, in which no filter is answered.
        gc.collect()
        gc.freeze()

    async def _settle(self) -> None:
        """See all that predecessors wrote; a watch may have been dead without a word."""
        await asyncio.gather(self._pods.relist(), self._nodes.relist())

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = [self._evictor.run(), self._reconciler.run(), self._tell()]
        return [*duties, self._mender.run()] if self._configuration.evict_after_seconds else duties

    def _forget(self) -> None:
        """What was decided here and is not on the API server yet is the next leader's to decide."""
        for reserve in list(self._cluster.ledger.reserves()):
            self._cluster.ledger.release(reserve.pod_uid, reserve.node)

    async def _tell(self) -> None:
        while True:
            told = await self._notices.get()
            age = self._clock.monotonic() - told.seen_at
            if not told.was_leading and age > CHANGE_SECONDS:
                continue
            await events.record(
                self._writer,
                told.about,
                told.reason,
                told.message,
                component="gpushare-extender",
                clock=self._clock,
            )


def _elector(election: LeaderElection | None, kube: Kube) -> Elector | None:
    if election is None:
        require_single_replica()
        return None
    timing = Timing(election.lease_seconds, election.renew_seconds, election.retry_seconds)
    lease = KubeLease(kube, election.namespace, election.name)
    return Elector(lease, identity(), announced(election.address), timing, BootClock())
