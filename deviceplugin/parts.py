"""Builds the parts of the device plugin from its settings, and runs them together."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from deviceplugin.allocation.allocate import Allocations
from deviceplugin.allocation.injection import Injections
from deviceplugin.allocation.older_plugin import Inheritance
from deviceplugin.allocation.pre_start import Starts
from deviceplugin.allocation.sources import Sources
from deviceplugin.cards.driver_watch import DriverWatch
from deviceplugin.cards.forgetting import Forgetting
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import StateFile
from deviceplugin.cards.survey import Terms
from deviceplugin.cards.unit_change import UnitChange
from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.no_edits import NoEdits
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs
from deviceplugin.cdi.probe import probe
from deviceplugin.cdi.rules import BINDINGS
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.check.self_check import SelfCheck
from deviceplugin.driver.interface import Backend, ProcessSource
from deviceplugin.driver.load import current_load
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.pods_endpoint import PodSource
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.lifecycle.departure import Departure
from deviceplugin.lifecycle.handover import Predecessor, Successors
from deviceplugin.lifecycle.preflight import Preflight
from deviceplugin.lifecycle.startup_taint import StartupTaint
from deviceplugin.lifecycle.supervisor import ask_for_another
from deviceplugin.report.node import NodeReport
from deviceplugin.report.refusals import RefusalReport
from deviceplugin.report.running_on import PodReport
from deviceplugin.server.grpc_server import Endpoint, Service
from deviceplugin.server.kubelet_outage import KubeletOutage
from deviceplugin.server.registration import Registrar
from deviceplugin.settings import Settings
from deviceplugin.usage.card_metrics import CardCollector
from deviceplugin.usage.cgroups import Cgroups
from deviceplugin.usage.verification import Verification
from deviceplugin.usage.watch import UsageWatch
from gpushare.clock import BootClock, SystemClock
from gpushare.contract import BY_CDI, RESOURCES_BEGIN
from gpushare.errors import RestartNeeded
from gpushare.kube import client, paths
from gpushare.kube.informer import Informer
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.process.lifetime import cancel
from gpushare.telemetry import health

log = logging.getLogger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"

Part = Callable[[], Coroutine[Any, Any, None]]


class Plugin:
    """All parts, built once this is the only gpushare device plugin on the node."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        processes: ProcessSource,
        kube: client.Kube,
        *,
        kubelet: PodSource,
        preflight: Preflight,
    ) -> None:
        clock = SystemClock()
        state = StateFile(settings.state_dir)
        before = state.read()
        last = before.inventory if before is not None else None
        self.binding = binding = Binding(
            forced=None if settings.binding == "auto" else settings.binding,
            needs_cdi=settings.inject == "cdi",
            last=next((name for name in BINDINGS if last and name == last.binding), None),
            last_needed_edits=last is not None and last.injection == BY_CDI,
            probe=partial(probe, settings.cdi_dir),
            has_edits=lambda: injections.has_edits(cards.inventory),
        )
        self.injections = injections = Injections(
            settings.inject,
            specs=(NoEdits() if settings.simulated_mib else NvidiaSpecs(settings.nvidia_cdi_dirs)),
            own_variable=settings.visible_devices,
            runtime_classes=settings.runtime_classes,
            binding=binding,
        )
        terms = Terms(
            settings.unit_mib,
            settings.reserved_mib,
            binding.now.binding,
            health.version(),
            injections.first(last.injection if last is not None else ""),
            settings.runtime_classes,
            memory_limit=settings.memory_limit,
            framework_limits=settings.framework_limits,
            reserve=settings.reserve,
        )
        self.cards = cards = NodeCards(
            terms,
            before,
            clock=clock,
            recover_seconds=settings.recover_seconds,
            load=current_load,
        )
        binding.on_change(cards.set_binding)
        self.checkpoint = checkpoint = CheckpointFile(settings.device_plugin_dir / CHECKPOINT)
        self.specs = specs = Specs(settings.cdi_dir)
        self.watch = watch = NodePods()
        self.collector = CardCollector(settings.node_name, cards, watch)
        self.reports = reports = PodReport(
            kube=kube, pods=watch, cards=cards, checkpoint=checkpoint, specs=specs, clock=clock
        )
        self.refusals = refusals = RefusalReport(kube=kube, pods=watch, clock=clock)
        self.outage = outage = KubeletOutage(cards, kubelet, binding, clock)

        def started(pod_uid: str, uuids: Sequence[str]) -> None:
            reports.started(pod_uid, uuids)
            refusals.may_start(pod_uid)

        node_report = NodeReport(
            kube, settings.node_name, cards, state, clock, seen=binding.node_seen
        )
        sources = Sources(cards, kubelet, watch, checkpoint, specs, injections)
        self.service = Service(
            cards=cards,
            allocations=Allocations(binding, sources),
            starts=Starts(sources, started, clock),
            refusals=refusals,
            outage=outage,
            clock=clock,
        )
        self.endpoint = Endpoint(settings.device_plugin_dir, self.service)
        self.registrar = Registrar(settings.device_plugin_dir, self.endpoint, self.service, cards)
        self.driver_watch = DriverWatch(
            backend,
            cards,
            settings.health_seconds,
            calls=preflight.calls,
            has_answered=preflight.has_answered,
        )
        self.unit_change = UnitChange(cards, watch, checkpoint)
        self.checks = SelfCheck(
            kube=kube,
            folder=settings.device_plugin_dir,
            node=lambda: node_report.node,
            registrar=self.registrar,
            pods=watch,
            checkpoint=checkpoint,
            clock=clock,
        )
        self._departure = Departure(
            registrar=self.registrar,
            service=self.service,
            report=node_report,
            pods=watch,
            checkpoint=checkpoint,
            confirmed=self.driver_watch.has_shown,
            clock=clock,
        )
        cgroups = Cgroups(settings.cgroup_dir)
        self.verification = Verification(
            cards=cards,
            cgroups=cgroups,
            checkpoint=checkpoint,
            specs=specs,
            refusals=refusals,
            clock=clock,
        )
        usage = UsageWatch(
            source=processes,
            cards=cards,
            pods=watch,
            kube=kube,
            clock=BootClock(),
            cgroups=cgroups,
            has_processes=settings.reads_process_memory,
            check=self.verification.check,
        )
        own_pods = paths.pods(field_selector=f"spec.nodeName={settings.node_name}")
        own_node = paths.nodes(field_selector=f"metadata.name={settings.node_name}")
        read = partial(read_pod, keeps_ids=True)
        # Two plugins must not do this at the same time, nor register; all other parts they may.
        self._exclusive: list[Part] = [node_report.run]
        self._parts: list[Part] = [
            Inheritance(cards, watch, checkpoint).run,
            self.driver_watch.run,
            self.unit_change.run,
            Forgetting(cards, watch).run,
            binding.run,
            partial(injections.run, cards),
            reports.run,
            refusals.run,
            outage.run,
            self.checks.run,
            usage.run,
            Informer(kube, own_pods, Pod, watch, naming=RESOURCES_BEGIN, read=read).run,
            Informer(kube, own_node, Node, node_report).run,
        ]
        if settings.removes_startup_taint:
            taint = StartupTaint(kube, lambda: node_report.node, self.why_not_ready)
            self._parts.append(taint.run)

    def why_not_ready(self) -> list[str]:
        """Return the reasons why containers cannot get GPUs from this plugin."""
        reasons = (
            self.cards.refusal,
            self.cards.why_blocked,
            self.registrar.why_not,
            self.driver_watch.why_silent,
            self.binding.why_not,
            self.injections.why_not,
            *self.checks.why_not_ready,
        )
        return [why for why in reasons if why]

    async def run(
        self,
        predecessor: Predecessor | None,
        successors: Successors,
        *,
        stopped: asyncio.Event,
        handed_over: Callable[[], Awaitable[None]],
    ) -> None:
        """Take over, and leave in order once ``stopped`` is set or a part fails.

        ``handed_over`` is awaited if another plugin has taken over. Raises a failed part's error.
        """
        exclusive = [asyncio.create_task(part()) for part in self._exclusive]
        exclusive.append(asyncio.create_task(self._departure.register(predecessor)))
        tasks = [*exclusive, *(asyncio.create_task(part()) for part in self._parts)]
        tasks.append(asyncio.create_task(self._departure.arrive(predecessor)))
        try:
            async with successors.listening():
                error = await _first_error(tasks, stopped)
                is_one_coming = error is not None and not isinstance(error, RestartNeeded)
                if is_one_coming:
                    log.error("a part has failed, leaving", exc_info=error)
                    ask_for_another()
                await cancel(exclusive)
                await self._departure.leave(
                    successors, is_one_coming=is_one_coming, handed_over=handed_over
                )
        finally:
            await cancel(tasks)
            await self.endpoint.close()
        if error is not None:
            raise error


async def _first_error(
    tasks: Collection[asyncio.Task[Any]], stopped: asyncio.Event
) -> BaseException | None:
    """Return the error of the first task that fails; None once ``stopped`` is set."""
    stop = asyncio.create_task(stopped.wait())
    pending = {stop, *tasks}
    try:
        while stop in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is not None:
                    return error
    finally:
        stop.cancel()
    return None
