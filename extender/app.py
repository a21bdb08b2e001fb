"""Builds the extender from its parts and runs it until it is asked to stop."""

import asyncio
import gc
import logging
import math
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from extender.autoscaling.placeholders import Placeholders
from extender.binding.binder import Binder
from extender.binding.fenced_writer import Writer
from extender.binding.timing import OVERDUE_SECONDS, UNACKNOWLEDGED_SECONDS, WRITE_SECONDS
from extender.binding.unknown_outcomes import Reconciler
from extender.binding.write_journal import WriteJournal, path_for
from extender.eviction.overbooked_cards import OverbookedEvictor
from extender.eviction.stuck_pods import StuckEvictor
from extender.gangs.duties import GangDuties
from extender.gangs.nominations import StaleNominations
from extender.gangs.planning import GangPlanning
from extender.gangs.pokes import Pokes
from extender.gangs.rights import PatchRight
from extender.gangs.wake_ups import WakeUps
from extender.gates.releaser import Releaser
from extender.gates.ungating import Ungating
from extender.leadership.election import (
    Elected,
    Leadership,
    SingleReplica,
    announced,
    identity,
    require_single_replica,
)
from extender.metrics import certificates, collectors
from extender.metrics.nodes import NodeMetrics
from extender.page.sampling import sample_cluster
from extender.page.usage import PluginUsage
from extender.preemption.budgets import BudgetWatch
from extender.preemption.evictor import Evictor
from extender.queue.admission import Admission
from extender.routes import Routes, replica_listener, serve
from extender.server.authorization import Authorizer
from extender.server.leader_proxy import Forwarder, decide_for_replicas, decide_or_forward
from extender.server.tls import client_contexts
from extender.settings.configuration import Configuration, LeaderElection
from extender.settings.reload import Reload
from extender.watch.cluster import ClusterWatch, FailedPodHandler, NodeHandler, PodHandler
from extender.watch.events import EventQueue
from extender.watch.live_pods import LivePods, PodUse
from extender.watch.namespaces import NamespaceWatch
from extender.watch.pod_groups import PodGroupWatch
from gpushare.clock import BootClock, SystemClock
from gpushare.contract import RESOURCES_BEGIN
from gpushare.groups.pod_groups import API_GROUPS
from gpushare.http_server.listeners import serve_app
from gpushare.kube import paths
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.kube.lease import Elector, KubeLease, Timing
from gpushare.live_page.history import History
from gpushare.objects.model import Node, Pod
from gpushare.preemption.model import Rules
from gpushare.process.lifetime import run_until_stopped
from gpushare.process.time_slices import in_slices
from gpushare.telemetry import logs

log = logging.getLogger(__name__)

# The API server keeps ended pods for long; they use nothing. This watch shows an end as a deletion.
LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
# The watch above shows a rejected pod as deleted, in its last version: a second watch shows why.
FAILED_PODS: Final = "status.phase=Failed"


async def run(configuration: Configuration, path: Path) -> None:
    """Serve until SIGTERM or SIGINT. SettingsError if an address or the API cannot be used.

    ``path`` is the file of the configuration, which is read again at SIGHUP.
    """
    async with AsyncExitStack() as stack:
        connected = Kube.connect(
            configuration.kubeconfig, unacknowledged_seconds=UNACKNOWLEDGED_SECONDS
        )
        kube = await stack.enter_async_context(connected)
        await _Extender(configuration, path, kube, stack).run()


class _Extender:
    def __init__(
        self, configuration: Configuration, path: Path, kube: Kube, stack: AsyncExitStack
    ) -> None:
        self._configuration, self._path, self._kube = configuration, path, kube
        self._clock, self._stack = SystemClock(), stack
        self._leadership: Leadership = SingleReplica()
        self._is_taken_over = True  # with other replicas, before this one decides
        self._events = EventQueue(self._decides, self._clock)
        self._cluster = cluster = ClusterWatch(
            configuration.unit_mib,
            self._events.put,
            self._clock,
            configuration.policy,
            configuration.gangs,
            schedulers=configuration.scheduler_names,
        )
        is_limited = configuration.preemption.victims == "preemptible"
        cluster.state.victim_rules = Rules(preemptible_only=is_limited)
        cluster.state.profile_rules = configuration.scheduler.rules
        if (election := configuration.leader_election) is not None:
            cluster.state.own_namespace = election.namespace
        live, failed = (paths.pods(field_selector=each) for each in (LIVE_PODS, FAILED_PODS))
        self._pods: Informer[Pod | PodUse] = Informer(
            kube, live, Pod, PodHandler(cluster), read=LivePods().read
        )
        self._failed = Informer(
            kube, failed, Pod, FailedPodHandler(cluster), naming=RESOURCES_BEGIN
        )
        self._nodes = Informer(kube, paths.nodes(), Node, NodeHandler(cluster))
        self._namespaces = NamespaceWatch(kube, cluster.state.namespaces)
        groups = cluster.state.groups
        self._pod_groups = [PodGroupWatch(kube, groups, source) for source in API_GROUPS]
        self._elector = _elector(configuration.leader_election, kube)
        self._journal: WriteJournal | None = None  # with other replicas, the Lease does it
        if self._elector is None:
            notes = path_for(path, configuration.kubeconfig)
            self._journal = WriteJournal.open(notes, BootClock())
        self._writer = writer = Writer(kube, BootClock(), self._ends_at, self._journal)
        self._planning = planning = GangPlanning(cluster.scheduling)
        self._placeholders = Placeholders(
            cluster.state,
            planning.slices,
            writer,
            self._events.put,
            is_on=configuration.queue.autoscaled,
        )
        self._binder = Binder(
            cluster.scheduling, writer, self._clock, before_write=self._placeholders.let_go
        )
        self._gangs = GangDuties(cluster.scheduling, self._planning, writer, kube, self._events.put)
        self._stuck = StuckEvictor(
            cluster.state,
            writer,
            self._events.put,
            after_seconds=configuration.evict_after_seconds,
        )
        self._releaser, self._right = Releaser(writer), PatchRight(kube, self._clock)
        self._admission = Admission(
            cluster.scheduling.gangs,
            self._planning,
            self._releaser,
            self._right,
            configuration.queue,
        )
        self._wake_ups = WakeUps(
            cluster.state,
            cluster.scheduling.gangs,
            self._planning,
            Pokes(self._releaser, self._right, self._clock),
            self._right,
        )
        self._budgets = BudgetWatch(kube, self._clock)
        self._evictor: Evictor | None = None
        if configuration.preemption.enabled:
            self._evictor = Evictor(
                scheduling=cluster.scheduling,
                planning=self._planning,
                budgets=self._budgets,
                writer=writer,
                releaser=self._releaser,
                right=self._right,
                notice=self._events.put,
                settings=configuration.preemption,
            )
        self._overbooked = OverbookedEvictor(cluster.state, writer, self._events.put, self._clock)
        self._reconciler = Reconciler(
            cluster.state,
            self._binder,
            writer,
            self._clock,
            watch_is_behind=lambda: self._pods.cut(silent_seconds=OVERDUE_SECONDS),
        )
        self._node_metrics = NodeMetrics(
            cluster.ledger,
            cluster.pods.pending_by_namespace,
            cluster.state.queue.figures,
            cluster.state.let_go,
        )
        collectors.register(
            cluster.figures,
            self._node_metrics,
            {"pods": self._pods, "failed_pods": self._failed, "nodes": self._nodes},
            unknown=self._binder.unknown,
            certificate_files=certificates.files_of(configuration),
            leads=self._decides,
        )

    async def run(self) -> None:
        configuration, history = self._configuration, History()
        election, elector = configuration.leader_election, self._elector
        routes = Routes(
            self._cluster,
            self._binder,
            self._why_not_ready,
            limits=configuration.limits,
            more_metrics=self._node_metrics.render,
            leads=self._decides,
            history=history,
            usage=PluginUsage(self._kube, self._cluster.state.own_namespace, self._clock),
            planning=self._planning,
        )

        def apply(changed: Configuration) -> None:
            logs.set_level(changed.log_level)
            routes.limit(changed.limits)

        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, Reload(self._path, configuration, apply)
        )
        gates, parts = [], list[Coroutine[Any, Any, None]]()
        if (journal := self._journal) is not None:
            self._is_taken_over = False
            watching = self._list_and_watch_pods_alone(journal)
            parts += [journal.run(), watching, self._decide_alone(journal)]
        if election is not None and elector is not None:
            tls, address = election.tls, election.address
            self._leadership = elected = Elected(
                elector,
                settle=self._settle,
                duties=self._duties,
                forget=self._cluster.scheduling.forget,
            )
            forwarder = await self._stack.enter_async_context(
                Forwarder.connect(
                    lambda: elector.leader, client_contexts(tls), tls.allowed_names[0]
                )
            )
            gates.append(decide_or_forward(elected, forwarder))
            for_replicas = routes.app(decide_for_replicas(elected, tls.allowed_names))
            await self._stack.enter_async_context(
                serve_app(replica_listener(address, tls), for_replicas)
            )
            parts += [self._pods.run(), elected.run(self._writer.quiet)]
        if self._evictor is not None:
            parts.append(self._budgets.run())
        authorizer = Authorizer(self._kube, self._clock)
        async with serve(configuration.listen, routes, authorizer, *gates):
            await run_until_stopped(
                self._nodes.run(),
                self._failed.run(),
                self._namespaces.run(),
                *(watch.run() for watch in self._pod_groups),
                self._cluster.run(),
                self._sample(history),
                self._freeze_objects(),
                *parts,
            )

    def _decides(self) -> bool:
        return self._leadership.decides

    def _ends_at(self) -> float:
        if self._elector is None:
            return math.inf
        # A write must not complete what was begun in an earlier term.
        return self._elector.ends_at if self._leadership.decides else -math.inf

    def _why_not_ready(self) -> list[str]:
        unsynced = {
            "pods": self._pods.synced,
            "nodes": self._nodes.synced,
            "namespaces": self._namespaces.known,
        }
        reasons = [
            f"{name} are not listed yet" for name, is_set in unsynced.items() if not is_set.is_set()
        ]
        return reasons if reasons or self._is_taken_over else ["gangs are not planned yet"]

    async def _list_and_watch_pods_alone(self, journal: WriteJournal) -> None:
        if journal.must_wait:
            # The last write of a predecessor may land until then; the list must show it. An API
            # server that is stalled has no time limit on what it has not read yet.
            await self._nodes.synced.wait()
            await asyncio.sleep(WRITE_SECONDS)
        await self._pods.run()

    async def _decide_alone(self, journal: WriteJournal) -> None:
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        journal.take_over(self._cluster.state)
        await self._take_over_gangs()
        self._is_taken_over = True
        async with asyncio.TaskGroup() as group:
            for duty in self._duties():
                group.create_task(duty)

    async def _freeze_objects(self) -> None:
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        # Modules and the GPUs of 5,000 nodes make a full collection take 30 ms: no filter call is
        # answered meanwhile.
        gc.collect()
        gc.freeze()

    async def _sample(self, history: History) -> None:
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        await sample_cluster(self._cluster.state, history)

    async def _settle(self) -> None:
        """Read all that predecessors wrote; a watch may have died silently."""
        watches = (self._pods, self._nodes, self._namespaces)
        await asyncio.gather(*(watch.relist() for watch in watches))
        await self._take_over_gangs()

    async def _take_over_gangs(self) -> None:
        await self._namespaces.known.wait()
        await in_slices(self._cluster.state.namespace_use.renewing())
        await asyncio.gather(*(watch.wait_if_needed() for watch in self._pod_groups))
        await self._gangs.take_over()
        self._cluster.scheduling.nominated.claim_all()
        if self._evictor is not None:
            await self._evictor.take_over()

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = [
            self._stuck.run(),
            self._reconciler.run(),
            self._events.write(self._writer),
            self._gangs.run(),
            self._wake_ups.run(),
            self._placeholders.run(),
            StaleNominations(self._cluster.state, self._releaser).run(),
        ]
        if self._configuration.evict_after_seconds:
            duties.append(self._overbooked.run())
        if self._evictor is not None:
            duties.append(self._evictor.run())
        if self._configuration.gates:
            duties.append(self._admission.run())
        else:
            duties.append(Ungating(self._kube, self._releaser, self._clock).run())
        return duties


def _elector(election: LeaderElection | None, kube: Kube) -> Elector | None:
    if election is None:
        require_single_replica()
        return None
    timing = Timing(election.lease_seconds, election.renew_seconds, election.retry_seconds)
    lease = KubeLease(kube, election.namespace, election.name)
    return Elector(lease, identity(), announced(election.address), timing, BootClock())
