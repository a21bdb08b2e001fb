"""Builds the device plugin out of its parts and runs it until it is told to stop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from aiohttp import web

from deviceplugin.allocation import Allocations
from deviceplugin.binding import Binding
from deviceplugin.card_metrics import CARD_DETAIL
from deviceplugin.cdi import Specs
from deviceplugin.cdi_probe import probe
from deviceplugin.checkpoint_file import CheckpointFile
from deviceplugin.driver import Backend, ProcessSource
from deviceplugin.driver_watch import DriverWatch
from deviceplugin.inheritance import Inheritance
from deviceplugin.injection import Injections
from deviceplugin.instance_lock import InstanceLock
from deviceplugin.inventory import Terms
from deviceplugin.kubelet_pods import KubeletPods
from deviceplugin.node_cards import NodeCards
from deviceplugin.node_report import NodeReport
from deviceplugin.nvidia_cdi import NvidiaSpecs
from deviceplugin.outage import KubeletOutage
from deviceplugin.pod_report import PodReport
from deviceplugin.pods import NodePods
from deviceplugin.registration import Registrar
from deviceplugin.runtime import BINDINGS
from deviceplugin.self_check import SelfCheck
from deviceplugin.server import Endpoint, Service
from deviceplugin.settings import Settings
from deviceplugin.start import Starts
from deviceplugin.startup_taint import StartupTaint
from deviceplugin.state import StateFile
from deviceplugin.trouble_report import TroubleReport
from deviceplugin.unit_hold import UnitHold
from deviceplugin.usage_watch import UsageWatch
from gpushare.clock import SystemClock
from gpushare.contract import RESOURCES_BEGIN
from gpushare.kube import client
from gpushare.kube.informer import Informer
from gpushare.lifetime import run_until_stopped
from gpushare.objects import Node, Pod
from gpushare.telemetry import health

CHECKPOINT = "kubelet_internal_checkpoint"
PAGE_SECONDS = 0.2  # for a page at the end: the node has no units until the next plugin starts


class _NodeHalf:
    """All parts, put together once this is the only device plugin of ours on the node."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        processes: ProcessSource,
        kube: client.Kube,
        kubelet: KubeletPods,
    ) -> None:
        clock = SystemClock()
        state = StateFile(settings.state_dir)
        before = state.read()
        last = before.inventory.binding if before is not None else ""
        needs_cdi = settings.inject == "cdi"
        binding = Binding(
            forced=None if settings.binding == "auto" else settings.binding,
            needs_cdi=needs_cdi,
            last=next((name for name in BINDINGS if name == last), None),
            probe=partial(probe, settings.cdi_dir),
            has_edits=lambda: injections.has_edits(cards.inventory),
        )
        injections = Injections(
            settings.inject,
            specs=NvidiaSpecs(settings.nvidia_cdi_dirs),
            own_variable=settings.visible_devices,
            runtime_classes=settings.runtime_classes,
            binding=binding,
        )
        terms = Terms(
            settings.unit_mib,
            settings.reserved_mib,
            binding.now.binding,
            health.version(),
            injections.first(before.inventory.injection if before is not None else ""),
            settings.runtime_classes,
        )
        cards = NodeCards(terms, before, clock=clock, recover_seconds=settings.recover_seconds)
        binding.on_change(cards.set_binding)
        checkpoint = CheckpointFile(settings.device_plugin_dir / CHECKPOINT)
        specs = Specs(settings.cdi_dir)
        watch = NodePods()
        CARD_DETAIL.node, CARD_DETAIL.pods = settings.node_name, watch
        reports = PodReport(
            kube=kube, pods=watch, cards=cards, checkpoint=checkpoint, specs=specs, clock=clock
        )
        troubles = TroubleReport(kube=kube, pods=watch, clock=clock)
        outage = KubeletOutage(cards, kubelet, binding, clock)

        def started(pod_uid: str, uuids: Sequence[str]) -> None:
            reports.started(pod_uid, uuids)
            troubles.may_start(pod_uid)

        node_report = NodeReport(
            kube, settings.node_name, cards, state, clock, seen=binding.node_seen
        )
        allocations = Allocations(
            binding,
            cards,
            kubelet,
            watch,
            checkpoint=checkpoint,
            specs=specs,
            injections=injections,
        )
        starts = Starts(
            cards=cards,
            kubelet=kubelet,
            watch=watch,
            checkpoint=checkpoint,
            specs=specs,
            injections=injections,
            started=started,
            was_let_start=reports.has_started,
            clock=clock,
        )
        service = Service(
            cards=cards,
            allocations=allocations,
            starts=starts,
            troubles=troubles,
            outage=outage,
            clock=clock,
        )
        endpoint = Endpoint(settings.device_plugin_dir, service)
        registrar = Registrar(settings.device_plugin_dir, endpoint, service, cards)
        driver = DriverWatch(backend, cards, settings.health_seconds)
        checks = SelfCheck(
            kube=kube,
            folder=settings.device_plugin_dir,
            node=lambda: node_report.node,
            registrar=registrar,
            pods=watch,
            checkpoint=checkpoint,
            clock=clock,
        )
        own_pods = client.pods(field_selector=f"spec.nodeName={settings.node_name}")
        own_node = client.nodes(field_selector=f"metadata.name={settings.node_name}")

        def why_not_ready() -> list[str]:
            reasons = (
                cards.refusal,
                cards.why_blocked,
                registrar.why_not,
                driver.why_silent,
                binding.why_not,
                injections.why_not,
                *checks.why_not_ready,
            )
            return [why for why in reasons if why]

        self.why_not_ready = why_not_ready
        self._checks = checks
        self._parts: list[Callable[[], Coroutine[Any, Any, None]]] = [
            Inheritance(cards, watch, checkpoint).run,
            registrar.run,
            driver.run,
            UnitHold(cards, watch, checkpoint).run,
            binding.run,
            partial(injections.run, cards),
            node_report.run,
            reports.run,
            troubles.run,
            outage.run,
            checks.run,
            Informer(kube, own_pods, Pod, watch, naming=RESOURCES_BEGIN).run,
            Informer(kube, own_node, Node, node_report).run,
        ]
        if settings.removes_startup_taint:
            taint = StartupTaint(kube, lambda: node_report.node, why_not_ready)
            self._parts.append(taint.run)
        if settings.reads_process_memory:
            usage = UsageWatch(source=processes, cards=cards, pods=watch, kube=kube, clock=clock)
            self._parts.append(usage.run)

    def remarks(self) -> list[str]:
        return self._checks.remarks

    async def run(self) -> None:
        """Until cancelled, or until a part fails."""
        async with asyncio.TaskGroup() as tasks:
            for part in self._parts:
                tasks.create_task(part())


async def run(settings: Settings, backend: Backend, processes: ProcessSource) -> None:
    """Run until SIGTERM or SIGINT. SettingsError if the API or the port cannot be used.

    /healthz says that the program answers: a part that fails ends it all. /readyz gives reasons.
    """
    lock = InstanceLock(settings.state_dir)
    halves: list[_NodeHalf] = []

    def why_not_ready() -> list[str]:
        if halves:
            return halves[0].why_not_ready()
        return [lock.why_waiting or "starting"]

    def remarks() -> list[str]:
        return halves[0].remarks() if halves else []

    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(client.Kube.connect(settings.kubeconfig))
        kubelet = await stack.enter_async_context(
            KubeletPods(
                settings.node_address,
                settings.kubelet_port,
                settings.kubelet_certificate,
                settings.kubelet_token,
                settings.kubelet_tls,
            )
        )
        app = web.Application()
        health.add_pages(app, why_not_ready, remarks=remarks)
        serving = health.serve(
            app, settings.http_host, settings.http_port, stop_seconds=PAGE_SECONDS
        )
        await stack.enter_async_context(serving)

        async def alone() -> None:
            async with lock:
                halves.append(_NodeHalf(settings, backend, processes, kube, kubelet))
                await halves[0].run()

        await run_until_stopped(alone())
