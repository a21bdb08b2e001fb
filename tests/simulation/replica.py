"""One extender of the simulation, assembled from the real parts as in ``extender/app.py``."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from aiohttp import web
from aiohttp.http import HttpVersion11, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from extender.app import FAILED_PODS, LIVE_PODS
from extender.binding.binder import Binder
from extender.binding.fenced_writer import Writer
from extender.binding.timing import OVERDUE_SECONDS
from extender.binding.unknown_outcomes import Reconciler
from extender.eviction.overbooked_cards import OverbookedEvictor
from extender.eviction.stuck_pods import StuckEvictor
from extender.gangs.duties import GangDuties
from extender.gangs.nominations import StaleNominations
from extender.gangs.planning import GangPlanning
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.leadership.election import Elected
from extender.preemption.budgets import BudgetWatch
from extender.preemption.evictor import Evictor
from extender.queue.admission import Admission
from extender.routes import Routes
from extender.server.leader_proxy import (
    Forwarder,
    _Sessions,
    decide_for_replicas,
    decide_or_forward,
)
from extender.settings.configuration import Policy, PreemptionSettings, QueueSettings
from extender.watch.cluster import ClusterWatch, FailedPodHandler, NodeHandler, PodHandler
from extender.watch.live_pods import LivePods
from extender.watch.namespaces import NamespaceWatch
from gpushare.contract import EXTENDER_PREFIX, RESOURCES_BEGIN
from gpushare.kube import paths
from gpushare.kube.client import Kube
from gpushare.kube.connection.access import Access
from gpushare.kube.connection.credentials import Credential
from gpushare.kube.informer import Informer
from gpushare.kube.lease import Elector, KubeLease, Timing
from gpushare.objects.model import Node, Pod
from gpushare.process.time_slices import in_slices
from tests.simulation.knowledge import Decision, Knowledge
from tests.simulation.machine import Machine
from tests.simulation.members import Members
from tests.simulation.network import Link, Nowhere, Services, Unpaused, no_connection

NAME: Final = "gpushare-extender"
PORT: Final = 32767
EVICT_AFTER_SECONDS: Final = 60.0
_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is ever sent over it
_PEER: Final = {"subjectAltName": (("DNS", NAME),)}

Reply = tuple[int, bytes]


class Replica:
    """``others`` finds a replica by its machine's name; ``broke`` receives violations.

    ``binds`` is called when it begins to bind a pod to a node, ``taken_over`` before it decides,
    with the number of facts that it knew when it began to plan for gangs.
    """

    def __init__(
        self,
        services: Services,
        machine: Machine,
        *,
        policy: Policy,
        queue: QueueSettings,
        preemption: PreemptionSettings,
        schedulers: tuple[str, ...],
        decision_of: Callable[[Pod], Decision | None],
        others: Callable[[str], "Replica"],
        broke: Callable[[str], None],
        binds: Callable[["Replica", Pod, str], None],
        taken_over: Callable[["Replica", int], None],
    ) -> None:
        self.machine, self.link = machine, Link(services, machine)
        self.knowledge = Knowledge(lambda: services.loop.now, decision_of)
        self._services, self._others, self._broke = services, others, broke
        self._binds, self._taken_over = binds, taken_over
        self._queue, self._preemption = queue, preemption
        machine.context.run(self._build, policy, schedulers)
        self._main: asyncio.Task[None] = services.loop.create_task(
            self._run(), context=machine.context
        )
        self._main.add_done_callback(self._ended)

    @property
    def decides(self) -> bool:
        """Return whether it would decide a call at this moment."""
        return self.machine.state != "dead" and self._elected.decides

    def kill(self) -> None:
        """End the process at once."""
        self.machine.state = "dead"

    def terminate(self) -> None:
        """End the process as SIGTERM does."""
        self._main.cancel()

    async def tear_down(self) -> None:
        """End every task after the run."""
        self._services.loop.resume(self.machine)
        self._main.cancel()
        await asyncio.wait({self._main})
        self._services.loop.resume(self.machine)  # for calls without an answer yet

    async def ask(self, verb: str, body: bytes) -> Reply:
        """Call what kube-scheduler calls; raise ConnectionRefusedError without a process."""
        return await self._serve(self._app, verb, body, {})

    def _build(self, policy: Policy, schedulers: tuple[str, ...]) -> None:
        clock = self.machine
        credentials = SimpleNamespace(current=Credential(Access("https://apiserver"), _TLS))
        kube = Kube(credentials, self.link, clock, namespace="default")
        self.cluster = cluster = ClusterWatch(
            1, lambda *_: None, clock, policy, schedulers=schedulers
        )
        live, failed = (paths.pods(field_selector=each) for each in (LIVE_PODS, FAILED_PODS))
        self.members = Members(PodHandler(cluster))
        told = self.knowledge.pods(self.members)
        self._pods = Informer(kube, live, Pod, told, read=LivePods().read)
        ended = FailedPodHandler(cluster)
        self._failed = Informer(kube, failed, Pod, ended, naming=RESOURCES_BEGIN)
        nodes = self.knowledge.nodes(NodeHandler(cluster))
        self._nodes = Informer(kube, paths.nodes(), Node, nodes)
        self._namespaces = NamespaceWatch(kube, cluster.state.namespaces)
        lease = KubeLease(kube, "gpushare-system", NAME)
        address = f"{self.machine.name}:{PORT}"
        self._elector = elector = Elector(lease, self.machine.name, address, Timing(), clock)
        self._writer = writer = _Writer(kube, clock, self._ends_at)
        writer.begins = lambda pod, node: self._binds(self, pod, node)
        binder = Binder(cluster.scheduling, writer, clock)
        planning = GangPlanning(cluster.scheduling)
        self._gangs = GangDuties(cluster.scheduling, planning, writer, kube, lambda *_: None)
        self._releaser, right = Releaser(writer), PatchRight(kube, clock)
        self._admission = Admission(
            cluster.scheduling.gangs, planning, self._releaser, right, self._queue
        )
        self._budgets = BudgetWatch(kube, clock)
        self._evictor: Evictor | None = None
        if self._preemption.enabled:
            self._evictor = Evictor(
                scheduling=cluster.scheduling,
                planning=planning,
                budgets=self._budgets,
                writer=writer,
                releaser=self._releaser,
                right=right,
                notice=lambda *_: None,
                settings=self._preemption,
            )
        self._stuck = StuckEvictor(
            cluster.state, writer, lambda *_: None, after_seconds=EVICT_AFTER_SECONDS
        )
        self._overbooked = OverbookedEvictor(cluster.state, writer, lambda *_: None, clock)
        self._reconciler = Reconciler(
            cluster.state,
            binder,
            writer,
            clock,
            watch_is_behind=lambda: self._pods.cut(silent_seconds=OVERDUE_SECONDS),
        )
        self._elected = elected = Elected(
            elector, settle=self._settle, duties=self._duties, forget=cluster.scheduling.forget
        )
        peers = _Peers(self._services, self._others)
        forwarder = Forwarder(
            _Sessions(peers, peers, peers),
            lambda: elector.leader,
            SimpleNamespace(current=lambda: None),
            NAME,
        )
        routes = Routes(
            cluster, binder, self._why_not_ready, leads=lambda: elected.decides, planning=planning
        )
        self._app = routes.app(decide_or_forward(elected, forwarder))
        self._app_for_replicas = routes.app(decide_for_replicas(elected, [NAME]))
        for app in (self._app, self._app_for_replicas):
            app.freeze()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._evictor is not None:
                group.create_task(self._budgets.run())
            for part in (
                self._nodes.run(),
                self._namespaces.run(),
                self._failed.run(),
                self.cluster.run(),
                self._pods.run(),
                self._elected.run(self._writer.quiet),
            ):
                group.create_task(part)

    def _ended(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled():
            self._broke(f"{self.machine.name} ended by itself: {main.exception()!r}")
        self.machine.state = "dead"

    def _ends_at(self) -> float:
        return self._elector.ends_at if self._elected.decides else float("-inf")

    async def _settle(self) -> None:
        watches = (self._pods, self._nodes, self._namespaces)
        await asyncio.gather(*(watch.relist() for watch in watches))
        await self._namespaces.known.wait()
        await in_slices(self.cluster.state.namespace_use.renewing())
        facts = self.knowledge.facts
        await self._gangs.take_over()
        self._taken_over(self, facts)
        if self._evictor is not None:
            await self._evictor.take_over()

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        return [
            *([self._evictor.run()] if self._evictor is not None else ()),
            self._stuck.run(),
            self._reconciler.run(),
            self._gangs.run(),
            StaleNominations(self.cluster.state, self._releaser).run(),
            self._overbooked.run(),
            self._admission.run(),
        ]

    def _why_not_ready(self) -> list[str]:
        parts = {
            "pods": self._pods.synced,
            "nodes": self._nodes.synced,
            "namespaces": self._namespaces.known,
        }
        return [name for name, known in parts.items() if not known.is_set()]

    async def ask_as_replica(self, verb: str, body: bytes) -> Reply:
        """Call what another replica calls."""
        return await self._serve(self._app_for_replicas, verb, body, _PEER)

    async def _serve(
        self, app: web.Application, verb: str, body: bytes, certificate: dict[str, Any]
    ) -> Reply:
        if self.machine.state == "dead":
            raise ConnectionRefusedError(f"nothing listens on {self.machine.name}")
        call = self._answer(app, verb, body, certificate)
        # The caller may hang up: aiohttp lets the handler continue.
        return await asyncio.shield(
            self._services.loop.create_task(call, context=self.machine.context)
        )

    async def _answer(
        self, app: web.Application, verb: str, body: bytes, certificate: dict[str, Any]
    ) -> Reply:
        loop = self._services.loop
        content = aiohttp.StreamReader(Unpaused(loop), 2**21, loop=loop)
        content.feed_data(body)
        content.feed_eof()
        url = URL(f"{EXTENDER_PREFIX}/{verb}")
        headers = CIMultiDict({"Host": f"127.0.0.1:{PORT}", "Content-Length": str(len(body))})
        raw = ((b"Host", b"127.0.0.1"),)
        message = RawRequestMessage(
            "POST", url.path, HttpVersion11, CIMultiDictProxy(headers), raw,
            should_close=False, compression=None, upgrade=False, chunked=False, url=url,
        )  # fmt: skip
        known = {"peercert": certificate}
        transport = SimpleNamespace(get_extra_info=known.get, get_write_buffer_size=lambda: 0)
        caller = SimpleNamespace(
            transport=transport, ssl_context=None, peername=("127.0.0.1", 1), sockname=None
        )
        task = asyncio.current_task()
        size = app._client_max_size
        request = web.Request(message, content, caller, Nowhere(), task, loop, client_max_size=size)
        response = await app._handle(request)
        if response.status >= 500 and response.status != 503:
            self._broke(f"{self.machine.name} answers {verb} with {response.status}")
        return response.status, bytes(response.body or b"")


class _Writer(Writer):
    """Tells when a Binding begins: at the moment at which it was decided."""

    begins: Callable[[Pod, str], None]

    async def bind_pod(
        self, pod: Pod, node: str, annotations: Mapping[str, str], *, seconds: float
    ) -> None:
        self.begins(pod, node)
        await super().bind_pod(pod, node, annotations, seconds=seconds)


class _Peers:
    """Replace the forwarder's ``aiohttp.ClientSession``."""

    def __init__(self, services: Services, others: Callable[[str], Replica]) -> None:
        self._services, self._others = services, others

    def request(
        self, _method: str, url: URL, *, data: bytes, timeout: aiohttp.ClientTimeout, **_: object
    ) -> AbstractAsyncContextManager[Any]:
        call = self._others(url.host or "").ask_as_replica(url.name, data)
        return _Call(call, timeout.total or 0.0, self._services)


class _Call:
    def __init__(
        self, call: Coroutine[Any, Any, Reply], seconds: float, services: Services
    ) -> None:
        self._call, self._seconds, self._services = call, seconds, services

    async def __aenter__(self) -> SimpleNamespace:
        faults = self._services.faults
        is_lost = faults.rng.random() < faults.share / 2
        if faults.rng.random() < faults.share / 2:
            self._call.close()
            raise no_connection()
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.sleep(faults.rng.uniform(0.0005, 0.005))
                status, body = await self._call
                await asyncio.sleep(self._seconds if is_lost else 0.001)
        except ConnectionRefusedError:
            raise no_connection() from None
        finally:
            self._call.close()

        async def read() -> bytes:
            return body

        return SimpleNamespace(status=status, read=read, headers={})

    async def __aexit__(self, *_: object) -> None: ...
