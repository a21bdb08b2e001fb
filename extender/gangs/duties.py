"""What the leader does for gangs all the time, beside answering kube-scheduler."""

import asyncio
import logging
from typing import Final

from extender.binding.fenced_writer import Writer
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


class GangDuties:
    def __init__(
        self,
        scheduling: Scheduling,
        planning: GangPlanning,
        writer: Writer,
        kube: Kube,
        notice: Notice,
    ) -> None:
        state, self._gangs = scheduling.state, scheduling.gangs
        self._groups, self._refreshed_at = state.groups, 0
        self._repair = SlotRepair(state, self._gangs, planning)
        self._undo = Undo(state, self._gangs, writer, notice)
        self._ended = EndedMembers(state, self._gangs, kube)
        self._takeover = Takeover(self._gangs, planning, self._ended, kube)

    async def take_over(self) -> None:
        """Plan again what a former leader has begun; call it before the first answer."""
        self._refresh()
        await self._takeover.run()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.check()

    def _refresh(self) -> None:
        """Note changes of PodGroups, such as a smaller minimum."""
        changes = self._groups.changes
        names = changes.since(self._refreshed_at)
        self._refreshed_at = changes.now
        for name in [str(group.key) for group in self._groups] if names is None else names:
            self._gangs.refresh(name)

    async def check(self) -> None:
        self._refresh()
        for record in self._gangs.expired():
            log.warning("hold of a gang has expired", extra={"gang": record.owner})
        await self._repair.check()
        await self._undo.check()
        await self._ended.check()
