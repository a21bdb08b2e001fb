"""What the leader does for gangs all the time, beside answering kube-scheduler."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.gangs.stages import GangStages
from extender.decisions.scheduling import Scheduling
from extender.gangs.ended import EndedMembers
from extender.gangs.planning import GangPlanning
from extender.gangs.repair import SlotRepair
from extender.gangs.takeover import Takeover
from extender.gangs.undo import Undo
from extender.watch.events import Notice
from gpushare.kube.client import Kube

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 0.1

Duty = Callable[[], Awaitable[None]]


class GangDuties:
    """The duties run beside each other: an answer that the API server owes to one delays no other.

    The order in which they see a change does not matter: each looks at the gangs as they are.
    """

    def __init__(
        self,
        scheduling: Scheduling,
        planning: GangPlanning,
        writer: Writer,
        kube: Kube,
        notice: Notice,
    ) -> None:
        state, self._gangs, self._planning = scheduling.state, scheduling.gangs, planning
        self._stages = GangStages(scheduling.gangs)
        self._groups, self._refreshed_at = state.groups, 0
        self._repair = SlotRepair(state, self._gangs, planning)
        self._ended = EndedMembers(state, self._gangs, kube)
        self._undo = Undo(state, self._gangs, self._ended, writer, notice)
        self._takeover = Takeover(self._gangs, planning, self._ended, kube, state.clock)
        self._all: tuple[Duty, ...] = (
            self._check_slots,
            self._undo.check,
            self._ended.check,
            self._takeover.check,
        )

    async def take_over(self) -> None:
        """Plan again what a former leader has begun; call it before the first answer."""
        await self._refresh()
        await self._takeover.run()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for duty in self._all:
                tasks.create_task(self._repeat(duty))

    async def check(self) -> None:
        """Fulfill each duty once."""
        for duty in self._all:
            await duty()

    async def _refresh(self) -> None:
        """Note changes of PodGroups, such as a smaller minimum."""
        changes = self._groups.changes
        names = changes.since(self._refreshed_at)
        self._refreshed_at = changes.now
        if names is None:
            names = [str(group.key) for group in self._groups]
        await self._planning.slices.run(self._refreshed(names))

    def _refreshed(self, names: Iterable[str]) -> Generator[None, None, None]:
        for name in names:
            self._gangs.refresh(name)
            yield

    async def _check_slots(self) -> None:
        await self._refresh()
        for record in self._stages.expired():
            log.warning("hold of a gang has expired", extra={"gang": record.owner})
        await self._repair.check()

    async def _repeat(self, duty: Duty) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self._planning.slices.pause()
            await duty()
