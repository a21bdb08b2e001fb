"""Composition: builds the extender from its parts and runs it until it is told to stop."""

import asyncio
import logging
import math
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from extender import metrics
from extender.bind import WRITE_SECONDS, Binder
from extender.cluster import Cluster, FailedPodHandler, NodeHandler, PodHandler
from extender.configuration import LeaderElection
from extender.evict import Evictor
from extender.forward import Forwarder, decide_for_replicas, decide_or_forward
from extender.leadership import Alone, Elected, Leadership, announced, identity
from extender.mend import Mender
from extender.reconcile import Reconciler
from extender.routes import Routes
from extender.settings import Settings
from extender.tls import client_contexts, server_context
from extender.writer import Writer
from gpushare.clock import BootClock, SystemClock
from gpushare.errors import SettingsError
from gpushare.kube import client, events
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.kube.lease import Elector, KubeLease, Timing
from gpushare.lifetime import run_until_stopped
from gpushare.objects import Node, Pod
from gpushare.telemetry import health

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


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. SettingsError if the address or the API cannot be used."""
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(Kube.connect(settings.kubeconfig))
        await _Extender(settings, kube, stack).run()


class _Extender:
    def __init__(self, settings: Settings, kube: Kube, stack: AsyncExitStack) -> None:
        self._settings, self._stack = settings, stack
        self._clock = SystemClock()
        self._notices: asyncio.Queue[_Notice] = asyncio.Queue(MAX_NOTICES)
        self._leadership: Leadership = Alone()
        self._cluster = cluster = Cluster(settings.unit_mib, self._notice, self._clock)
        metrics.register(cluster)
        self._pods = Informer(kube, client.pods(field_selector=LIVE_PODS), Pod, PodHandler(cluster))
        failed = client.pods(field_selector=FAILED_PODS)
        self._failed = Informer(kube, failed, Pod, FailedPodHandler(cluster))
        self._nodes = Informer(kube, client.nodes(), Node, NodeHandler(cluster))
        self._elector = _elector(settings.leader_election, kube)
        self._writer = writer = Writer(kube, BootClock(), self._ends_at)
        self._binder = Binder(cluster, writer, self._clock)
        self._evictor = Evictor(
            cluster,
            writer,
            self._notice,
            self._clock,
            after_seconds=settings.evict_after_seconds,
        )
        self._mender = Mender(cluster, writer, self._notice, self._clock)
        self._reconciler = Reconciler(cluster, self._binder, writer, self._clock)

    async def run(self) -> None:
        routes = Routes(self._cluster, self._binder, self._why_not_ready)
        settings = self._settings
        election = settings.leader_election
        if election is None or self._elector is None:
            metrics.LEADER.set(1)
            app = routes.app()
            parts = [self._list_and_watch_pods_alone(), *self._duties()]
        else:
            tls, address = election.tls, election.address
            if tls is None or address is None:
                raise SettingsError(
                    "leaderElection needs address and tls: other replicas hand their calls on there"
                )
            self._leadership = elected = Elected(
                self._elector, settle=self._settle, duties=self._duties, forget=self._forget
            )
            elector = self._elector
            forwarder = await self._stack.enter_async_context(
                Forwarder.connect(
                    lambda: elector.leader, client_contexts(tls), tls.allowed_names[0]
                )
            )
            app = routes.app(decide_or_forward(elected, forwarder))
            for_replicas = routes.app(decide_for_replicas(elected, tls.allowed_names))
            await self._stack.enter_async_context(
                health.serve(
                    for_replicas, address.host, address.port, ssl_context=server_context(tls)
                )
            )
            parts = [self._pods.run(), elected.run(self._writer.quiet)]
        async with health.serve(app, settings.host, settings.port):
            await run_until_stopped(self._nodes.run(), self._failed.run(), *parts)

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

    async def _settle(self) -> None:
        """See all that predecessors wrote; a watch may have been dead without a word."""
        await asyncio.gather(self._pods.relist(), self._nodes.relist())

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = [self._evictor.run(), self._reconciler.run(), self._tell()]
        return [*duties, self._mender.run()] if self._settings.evict_after_seconds else duties

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
        return None
    if election.address is None:
        raise SettingsError("leaderElection.address is missing: where others reach this replica")
    timing = Timing(election.lease_seconds, election.renew_seconds, election.retry_seconds)
    lease = KubeLease(kube, election.namespace, election.name)
    return Elector(lease, identity(), announced(election.address), timing, BootClock())
