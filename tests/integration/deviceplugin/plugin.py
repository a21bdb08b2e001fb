"""A device plugin next to a double of the kubelet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from deviceplugin import parts, settings
from deviceplugin.cards import state_file
from deviceplugin.cards.state_file import Saved
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.simulated import SimulatedGpus
from deviceplugin.lifecycle.preflight import Preflight
from gpushare.objects.model import PodCondition
from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.waiting import running

CARDS = [card(0), card(1)]
FIRST, SECOND = (card.uuid for card in CARDS)
SETTINGS = replace(
    settings.read(["--node-name=node-1", "--binding=late", "--inject=runtime"], {}),
    reserved_mib=0,
    visible_devices="all",
    runtime_classes=frozenset({"", "nvidia"}),
    nvidia_cdi_dirs=(),
    health_seconds=0.05,
    recover_seconds=0.1,
)


OWN_CGROUP = "kubepods/burstable/pod11111111-2222-3333-4444-555555555555"  # of the plugin's pod


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


class Plugin(parts.Plugin):
    """All parts within reach of a test. ``watch`` is fed by hand, as the informer would.

    ``changes`` are to SETTINGS, ``before`` is what an earlier plugin has saved.
    """

    def __init__(
        self,
        folder: Path,
        kubelet: FakeKubelet,
        driver: FakeDriver,
        *,
        before: Saved | None = None,
        **changes: Any,
    ) -> None:
        self.driver, self.writes = driver, PodWrites()
        (folder / "cgroup" / OWN_CGROUP).mkdir(parents=True, exist_ok=True)
        if before is not None:
            (folder / "state").mkdir(exist_ok=True)
            (folder / "state" / state_file.FILE).write_bytes(state_file.encode(before))
        chosen = replace(
            SETTINGS,
            device_plugin_dir=kubelet.folder,
            cdi_dir=folder / "cdi",
            state_dir=folder / "state",
            **{"cgroup_dir": folder / "cgroup", **changes},
        )
        no_processes = SimulatedGpus("node-1", ())
        kube: Any = self.writes
        super().__init__(
            chosen,
            driver,
            no_processes,
            kube,
            kubelet=kubelet,
            preflight=Preflight(driver, Terms(chosen.unit_mib)),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the parts that need no Node and no informer."""
        started = (
            self.registrar.run(),
            self.driver_watch.run(),
            self.reports.run(),
            self.unit_change.run(),
            self.refusals.run(),
            self.outage.run(),
            self.injections.run(self.cards),
        )
        try:
            async with running(*started):
                yield
        finally:
            await self.endpoint.close()
