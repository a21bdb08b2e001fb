"""Measures the memory of each pod every few seconds, for metrics and Events.

Off by default: it needs the host's process IDs. Each GPU is queried in a daemon thread of its own,
because the driver may block forever; no other query starts for a GPU while one is pending.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.driver.calls import CardCalls
from deviceplugin.driver.interface import ProcessMemory, ProcessSource
from deviceplugin.errors import DriverError
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.settings import NAME
from deviceplugin.usage.card_metrics import show_usage
from deviceplugin.usage.rules import Overuse, PodMemory, Usage, pod_uid, tally
from gpushare.clock import Clock
from gpushare.kube import events
from gpushare.kube.client import Kube

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """One GPU; ``pod_of`` has the visible processes, with None for those outside of pods."""

    uuid: str
    processes: tuple[ProcessMemory, ...] | None
    pod_of: Mapping[int, str | None]


class UsageWatch:
    def __init__(
        self,
        *,
        source: ProcessSource,
        cards: NodeCards,
        pods: NodePods,
        kube: Kube,
        clock: Clock,
        proc: Path = Path("/proc"),
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._cards = cards
        self._pods = pods
        self._kube = kube
        self._clock = clock
        self._proc = proc
        self._interval = interval_seconds
        self._overuse = Overuse()
        self._source = source
        self._asked = CardCalls(source.count, self._read, "usage")
        self._why_silent = ""

    async def run(self) -> None:
        """Measure until cancelled."""
        version = self._cards.version
        while self._cards.inventory is None:
            version = await self._cards.changed(version)
        while True:
            usage = await self._measure()
            show_usage(usage, self._cards.inventory)
            for use in self._overuse.check(usage.pods, self._clock.monotonic()):
                await self._report(use)
            await asyncio.sleep(self._interval)

    async def _measure(self) -> Usage:
        try:
            found = await self._asked.results(ANSWER_SECONDS)
        except DriverError as err:
            if self._why_silent != str(err):
                log.warning("the measured memory is not known", extra={"why": str(err)})
            self._why_silent = str(err)
            return tally({}, {}, (), None)
        self._why_silent = ""
        cards = [card for card in found if card is not None and card.uuid]
        processes = {card.uuid: card.processes for card in cards}
        pod_of = {pid: uid for card in cards for pid, uid in card.pod_of.items()}
        if any(processes.values()) and not pod_of:
            log.warning("no process on the GPUs is visible: the plugin needs hostPID: true")
        return tally(processes, pod_of, self._pods, self._cards.inventory)

    def _read(self, position: int) -> _Reading:
        uuid, processes = self._source.uuid(position), self._source.processes(position)
        return _Reading(uuid, processes, self._owners(each.pid for each in processes or ()))

    def _owners(self, pids: Iterable[int]) -> Mapping[int, str | None]:
        owners = {}
        for pid in pids:
            try:
                text = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
            except OSError:
                continue  # it has ended since, or is not visible
            owners[pid] = pod_uid(text)
        return owners

    async def _report(self, use: PodMemory) -> None:
        card = self._cards.inventory.by_uuid(use.uuid) if self._cards.inventory else None
        text = (
            f"uses {use.used_mib} MiB of GPU {use.uuid}"
            f"{f' (index {card.index})' if card is not None else ''} and requested only "
            f"{use.asked_mib} MiB: other pods on this GPU may run out of memory. Raise its "
            f"aliyun.com/gpu-mem, or limit the memory that the program uses"
        )
        log.warning("pod uses more than it asked for", extra={"pod": use.pod.key, "why": text})
        await events.record(
            self._kube, use.pod, "MemoryOveruse", text, component=NAME, clock=self._clock
        )
