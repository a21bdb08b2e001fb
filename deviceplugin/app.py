"""Builds the device plugin out of its parts and runs it until it is told to stop."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiohttp import web

from deviceplugin import room
from deviceplugin.allocation import Allocations, BindingName
from deviceplugin.cdi import Specs
from deviceplugin.checkpoint_file import CheckpointFile
from deviceplugin.driver import Backend
from deviceplugin.driver_watch import DriverWatch
from deviceplugin.grant import Grant
from deviceplugin.inventory import Terms
from deviceplugin.kubelet_pods import KubeletPods
from deviceplugin.node_cards import NodeCards
from deviceplugin.node_report import NodeReport
from deviceplugin.outage import KubeletOutage
from deviceplugin.pod_report import PodReport
from deviceplugin.pods import NodePods
from deviceplugin.registration import Registrar
from deviceplugin.server import Endpoint, Service
from deviceplugin.settings import Settings
from deviceplugin.slots import SlotFile
from deviceplugin.start import Starts
from deviceplugin.trouble_report import TroubleReport
from gpushare.clock import SystemClock
from gpushare.kube import client
from gpushare.kube.informer import Informer
from gpushare.lifetime import run_until_stopped
from gpushare.objects import Node, Pod
from gpushare.telemetry import health

CHECKPOINT = "kubelet_internal_checkpoint"


async def run(settings: Settings, backend: Backend) -> None:
    """Run until SIGTERM or SIGINT. SettingsError if the API or the port cannot be used."""
    clock = SystemClock()
    slots = SlotFile(settings.state_dir)
    binding: BindingName = "early" if settings.binding == "early" else "late"
    terms = Terms(settings.unit_mib, settings.reserved_mib, binding, health.version())
    cards = NodeCards(terms, slots.read())
    checkpoint = CheckpointFile(settings.device_plugin_dir / CHECKPOINT)
    specs = Specs(settings.cdi_dir)
    watch = NodePods()
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(client.Kube.connect(settings.kubeconfig))
        kubelet = await stack.enter_async_context(
            KubeletPods(
                settings.node_address,
                settings.kubelet_port,
                settings.kubelet_certificate,
                settings.kubelet_token,
            )
        )
        reports = PodReport(
            kube=kube, pods=watch, cards=cards, checkpoint=checkpoint, specs=specs, clock=clock
        )
        troubles = TroubleReport(kube=kube, pods=watch, clock=clock)
        outage = KubeletOutage(cards, kubelet, clock)

        def started(pod_uid: str, uuids: Sequence[str]) -> None:
            reports.started(pod_uid, uuids)
            troubles.may_start(pod_uid)

        def check_room(grant: Grant) -> None:
            room.check(grant, watch, cards.inventory, reports.has_started)

        node_report = NodeReport(kube, settings.node_name, cards, slots, clock)
        allocations = Allocations(binding, cards, kubelet, watch, checkpoint)
        starts = Starts(
            cards=cards,
            kubelet=kubelet,
            watch=watch,
            checkpoint=checkpoint,
            specs=specs,
            started=started,
            check_room=check_room,
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
        own_pods = client.pods(field_selector=f"spec.nodeName={settings.node_name}")
        own_node = client.nodes(field_selector=f"metadata.name={settings.node_name}")

        def why_not_ready() -> list[str]:
            whys = (cards.refusal, registrar.why_not, driver.why_silent, cards.why_blocked)
            return [why for why in whys if why]

        app = web.Application()
        health.add_pages(app, why_not_ready)
        serving = health.serve(app, settings.http_host, settings.http_port)
        await stack.enter_async_context(serving)
        await run_until_stopped(
            registrar.run(),
            driver.run(),
            node_report.run(),
            reports.run(),
            troubles.run(),
            outage.run(),
            Informer(kube, own_pods, Pod, watch).run(),
            Informer(kube, own_node, Node, node_report).run(),
        )
