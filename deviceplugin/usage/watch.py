"""Measures the use of GPUs by container every few seconds, for metrics, Events and a check.

Processes are read only where that is enabled: it needs the host's process IDs. Limits of cgroups
are read on GPUs whose driver can limit memory, and soon after a container has started. Each GPU is
queried in a daemon thread of its own, because the driver may block forever; no other query starts
for a GPU while one is pending.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.driver.calls import CardCalls
from deviceplugin.driver.interface import MemoryLimit, ProcessSource
from deviceplugin.errors import DriverError
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.settings import NAME
from deviceplugin.usage.card_metrics import show_usage
from deviceplugin.usage.cgroups import Cgroups
from deviceplugin.usage.processes import booted_us, visible
from deviceplugin.usage.rules import (
    NO_CGROUP,
    ContainerUse,
    Overuse,
    PodUse,
    Reading,
    Usage,
    in_force,
    shares,
    tally,
)
from gpushare.clock import Clock
from gpushare.kube import events
from gpushare.kube.client import Kube

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 15.0
SETTLE_SECONDS: Final = 1.0  # after a start: others follow, and the driver has new samples
ANSWER_SECONDS: Final = 10.0


class UsageWatch:
    """``check`` is called with each measurement after the pods have been listed once.

    ``has_processes``: the processes on the GPUs are read; ``proc`` shows all of this machine's. The
    monotonic time of ``clock`` counts from the boot of the machine.
    """

    def __init__(
        self,
        *,
        source: ProcessSource,
        cards: NodeCards,
        pods: NodePods,
        kube: Kube,
        clock: Clock,
        cgroups: Cgroups,
        has_processes: bool,
        check: Callable[[Usage], None],
        proc: Path = Path("/proc"),
        interval_seconds: float = INTERVAL_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._cards = cards
        self._pods = pods
        self._kube = kube
        self._clock = clock
        self._cgroups = cgroups
        self._has_processes = has_processes
        self._check = check
        self._proc = proc
        self._interval = interval_seconds
        self._settle = settle_seconds
        self._overuse = Overuse()
        self._source = source
        self._calls = CardCalls(source.count, self._read, "usage")
        self._asked: Mapping[str, Mapping[str, Sequence[Path]]] = {}  # by UUID and container ID
        self._known: frozenset[str] = frozenset()  # IDs of containers at the last measurement
        self._changed = pods.subscribe()
        self._why_silent = ""

    async def run(self) -> None:
        """Measure until cancelled."""
        version = self._cards.version
        while self._cards.inventory is None:
            version = await self._cards.changed(version)
        while True:
            usage = await self._measure()
            show_usage(usage, self._cards.inventory)
            if self._pods.is_listed:
                self._check(usage)
            for use in self._overuse.check(usage.pods, self._clock.monotonic()):
                await self._report(use)
            await self._next()

    async def _next(self) -> None:
        """Return when the interval has passed, or soon after a container with a share starts."""
        try:
            async with asyncio.timeout(self._interval):
                while _ids(shares(self._pods, self._cards.inventory)) <= self._known:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            return
        await asyncio.sleep(self._settle)

    async def _measure(self) -> Usage:
        limiting = self._limiting()
        rows = shares(self._pods, self._cards.inventory)
        self._known = _ids(rows)
        wanted = [row for row in rows if row.container_id and row.uuid in limiting]
        uids = {row.container_id: row.pod.uid for row in wanted}
        found = await asyncio.to_thread(self._cgroups.find, uids) if uids else {}
        asked: dict[str, dict[str, Sequence[Path]]] = defaultdict(dict)
        for row in wanted:
            if row.container_id in found:
                asked[row.uuid][row.container_id] = found[row.container_id]
        self._asked = asked
        readings = await self._readings() if asked or self._has_processes else []
        # The pods as they are now: they may have changed while the driver was asked.
        return tally(
            readings,
            shares(self._pods, self._cards.inventory),
            self._pods,
            limiting=limiting,
            missing=uids.keys() - found.keys(),
            has_processes=self._has_processes,
        )

    def _limiting(self) -> set[str]:
        inventory = self._cards.inventory
        cards = inventory.cards if inventory is not None else ()
        return {card.uuid for card in cards if self._cards.isolation.can_limit([card])}

    async def _readings(self) -> list[Reading]:
        try:
            answers = await self._calls.results(ANSWER_SECONDS)
        except DriverError as err:
            if self._why_silent != str(err):
                log.warning("the use of the GPUs is not known", extra={"why": str(err)})
            self._why_silent = str(err)
            return []
        self._why_silent = ""
        readings = [each for each in answers if each is not None and each.uuid]
        if any(each.processes for each in readings) and not any(each.visible for each in readings):
            log.warning("no process on the GPUs is visible: the plugin needs hostPID: true")
        return readings

    def _read(self, position: int) -> Reading:
        began = self._clock.monotonic()
        reading = self._of_card(position)
        is_fresh = self._clock.monotonic() - began < ANSWER_SECONDS
        return reading if is_fresh else Reading("")

    def _of_card(self, position: int) -> Reading:
        uuid = self._source.uuid(position)
        asked = self._asked.get(uuid, {})
        limits = {own: self._limit(position, groups) for own, groups in asked.items()}
        if not self._has_processes:
            return Reading(uuid, limits=limits)
        # The ID of a process that has ended may be another's at once. So only those count that the
        # driver lists before and after, and that are the same all the time.
        before = self._source.processes(position)
        listed = {each.pid for each in before or ()}
        seen = visible(self._proc, listed)
        samples = self._source.samples(position)
        after = self._source.processes(position)
        if before is None or after is None:
            return Reading(uuid, limits=limits)
        again = visible(self._proc, listed)
        kept = tuple(
            each
            for each in after
            if each.pid in listed and seen.get(each.pid) == again.get(each.pid)
        )
        return Reading(uuid, kept, again, booted_us(self._clock), samples, limits)

    def _limit(self, position: int, groups: Sequence[Path]) -> MemoryLimit:
        found = in_force([self._source.limit(position, each) for each in groups])
        # What the driver says of a cgroup that is gone may be what it says of one without a limit.
        return found if groups[0].is_dir() else MemoryLimit(why_unknown=NO_CGROUP)

    async def _report(self, use: PodUse) -> None:
        card = self._cards.inventory.by_uuid(use.uuid) if self._cards.inventory else None
        text = (
            f"uses {use.used_mib} MiB of GPU {use.uuid}"
            f"{f' (index {card.index})' if card is not None else ''} and requested only "
            f"{use.asked_mib} MiB: other pods on this GPU may run out of memory. {use.limit_text} "
            f"Raise its aliyun.com/gpu-mem, or limit the memory that the program uses"
        )
        log.warning("pod uses more than it requested", extra={"pod": use.pod.key, "why": text})
        await events.record(
            self._kube, use.pod, "MemoryOveruse", text, component=NAME, clock=self._clock
        )


def _ids(rows: Iterable[ContainerUse]) -> frozenset[str]:
    return frozenset(row.container_id for row in rows if row.container_id)
