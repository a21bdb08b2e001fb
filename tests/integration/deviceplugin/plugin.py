"""A device plugin put together as in ``deviceplugin.parts``, beside a double of the kubelet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deviceplugin.allocation.allocate import Allocations
from deviceplugin.allocation.injection import Injections
from deviceplugin.allocation.pre_start import Starts
from deviceplugin.cards.driver_watch import DriverWatch
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import Saved
from deviceplugin.cards.survey import Terms
from deviceplugin.cards.unit_change import UnitChange
from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs
from deviceplugin.cdi.rules import BindingName, Probe
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.parts import CHECKPOINT
from deviceplugin.report.refusals import RefusalReport
from deviceplugin.report.running_on import PodReport
from deviceplugin.server.grpc_server import Endpoint, Service
from deviceplugin.server.kubelet_outage import KubeletOutage
from deviceplugin.server.registration import Registrar
from deviceplugin.settings import InjectFlag
from gpushare.clock import SystemClock
from gpushare.objects.model import PodCondition
from tests.fakes.driver import FakeDriver
from tests.fakes.kubelet import FakeKubelet
from tests.waiting import running


class PodWrites:
    """The API server's side of ``annotate_pod``: it shows what was written to the watch."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, str]]] = []
        self.conditions: list[tuple[str, PodCondition]] = []
        self.events: list[dict] = []
        self.fails: Exception | None = None
        self.tried = asyncio.Event()
        self.landed = asyncio.Event()

    async def annotate_pod(self, namespace, name, uid, annotations) -> None:
        self.tried.set()
        if self.fails is not None:
            raise self.fails
        self.written.append((uid, annotations))
        self.landed.set()

    async def set_pod_condition(self, namespace, name, uid, condition, changed_at) -> None:
        self.tried.set()
        if self.fails is not None:
            raise self.fails
        self.conditions.append((uid, condition))

    async def create_event(self, namespace, event) -> None:
        if self.fails is not None:
            raise self.fails
        self.events.append(event)


class Plugin:
    """All parts within reach of a test. ``watch`` is fed by hand, as the informer would."""

    def __init__(
        self,
        folder: Path,
        kubelet: FakeKubelet,
        driver: FakeDriver,
        *,
        binding: BindingName = "late",
        unit_mib: int = 1024,
        before: Saved | None = None,
        recover_seconds: float = 0.1,
        inject: InjectFlag = "runtime",
        nvidia: NvidiaSpecs | None = None,
        own_variable: str = "all",
        last_needed_edits: bool = False,
        runtime_classes: frozenset[str] = frozenset({"", "nvidia"}),
    ) -> None:
        clock = SystemClock()
        self.driver = driver
        self.binding = Binding(
            forced=binding,
            needs_cdi=inject == "cdi",
            last=None,
            last_needed_edits=last_needed_edits,
            probe=lambda: Probe.UNKNOWN,
        )
        self.injections = Injections(
            inject,
            specs=nvidia or NvidiaSpecs([]),
            own_variable=own_variable,
            runtime_classes=runtime_classes,
            binding=self.binding,
        )
        self.cards = NodeCards(
            Terms(unit_mib, 0, binding, "test", self.injections.first(""), runtime_classes),
            before,
            clock=clock,
            recover_seconds=recover_seconds,
        )
        self.watch = NodePods()
        self.checkpoint = CheckpointFile(kubelet.folder / CHECKPOINT)
        self.specs = Specs(folder / "cdi")
        self.writes = PodWrites()
        self.reports = PodReport(
            kube=self.writes,
            pods=self.watch,
            cards=self.cards,
            checkpoint=self.checkpoint,
            specs=self.specs,
            clock=clock,
        )
        self.refusals = RefusalReport(kube=self.writes, pods=self.watch, clock=clock)

        def started(pod_uid, uuids) -> None:
            self.reports.started(pod_uid, uuids)
            self.refusals.may_start(pod_uid)

        self.outage = KubeletOutage(self.cards, kubelet, self.binding, clock)
        allocations = Allocations(
            self.binding,
            self.cards,
            kubelet,
            self.watch,
            checkpoint=self.checkpoint,
            specs=self.specs,
            injections=self.injections,
        )
        starts = Starts(
            cards=self.cards,
            kubelet=kubelet,
            watch=self.watch,
            checkpoint=self.checkpoint,
            specs=self.specs,
            injections=self.injections,
            started=started,
            clock=clock,
        )
        self.service = Service(
            cards=self.cards,
            allocations=allocations,
            starts=starts,
            refusals=self.refusals,
            outage=self.outage,
            clock=clock,
        )
        self.endpoint = Endpoint(kubelet.folder, self.service)
        self.registrar = Registrar(kubelet.folder, self.endpoint, self.service, self.cards)
        self.driver_watch = DriverWatch(driver, self.cards, 0.05)
        self.unit_hold = UnitChange(self.cards, self.watch, self.checkpoint)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        parts = (
            self.registrar.run(),
            self.driver_watch.run(),
            self.reports.run(),
            self.unit_hold.run(),
            self.refusals.run(),
            self.outage.run(),
            self.injections.run(self.cards),
        )
        try:
            async with running(*parts):
                yield
        finally:
            await self.endpoint.close()
