"""Ends gangs that have begun, or were tied to a zone, and do not get their minimum in time."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import GangRecord
from extender.decisions.gangs.stages import GangStages
from extender.eviction.stuck_pods import Evictions
from extender.gangs.ended import EndedMembers
from extender.metrics.counters import BROKEN_GANGS, EVICTIONS
from extender.watch.events import Notice
from gpushare.groups.group import Group
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVENT: Final = "GpushareGangBroken"
REASON: Final = "GangBroken"
EVICTIONS.labels(REASON)  # starts at 0: Prometheus misses an increase from nothing to 1


class Undo:
    """Evicts the bound members that a controller replaces, so that the gang waits as a whole."""

    def __init__(
        self,
        state: ClusterState,
        gangs: Gangs,
        ended: EndedMembers,
        kube: Writer,
        notice: Notice,
    ) -> None:
        self._clock, self._gangs, self._notice = state.clock, gangs, notice
        self._ended = ended
        self._stages = GangStages(gangs)
        self._evictions = Evictions(kube, state.clock, any_version=True)
        self._told: set[str] = set()  # the stranded gangs

    async def check(self) -> None:
        """Evict all bound members of the gangs whose time is over, unless they may have worked."""
        counted = await self._count_ended()
        due: list[tuple[Group, list[Pod]]] = []
        for group, record in self._stages.begun():
            is_sure = counted.get(record.owner) is record and self._is_late(group, record)
            if not (record.is_broken or is_sure):
                continue
            if record.may_have_worked:
                self._gangs.become_whole(record)
                continue
            bound = self._gangs.progress(group).bound
            evicted = [pod for pod in bound if pod.has_controller]
            if not record.is_broken:
                self._gangs.broke(group)
                BROKEN_GANGS.inc()
                self._tell(
                    group,
                    (*evicted, *bound)[0],
                    len(evicted),
                    f"has {len(bound)} of {group.minimum} members bound and did not get the others "
                    "bound in time: its bound members",
                )
            if evicted:
                due.append((group, evicted))
            else:
                self._gangs.begin_again(group)  # members without a controller stay
        due += self._stranded()
        self._evictions.keep_only({pod.uid for _, pods in due for pod in pods})
        for group, pods in due:
            for pod in pods:
                is_still_due = self._gangs.is_broken(pod) if pod.node else not group.begun
                if is_still_due and self._evictions.may_ask(pod):
                    await self._evictions.ask(pod, REASON)

    async def _count_ended(self) -> dict[str, GangRecord]:
        """Count the members that have succeeded of the gangs whose time is over.

        Return the gangs of which they are known. With them a gang may have been whole, also if it
        lacks no members: others have been created, or the watch was interrupted when it was whole.
        """
        late = [each for each in self._stages.begun() if self._is_late(*each)]
        answers = await asyncio.gather(*(self._ended.count(*each) for each in late))
        counted = zip(late, answers, strict=True)
        return {record.owner: record for (_, record), is_known in counted if is_known}

    def _is_late(self, group: Group, record: GangRecord) -> bool:
        """Return whether the time of a gang is over that is not broken yet."""
        if record.is_broken or record.begun_at is None or self._gangs.is_binding(group):
            return False
        lasted = self._clock.monotonic() - record.begun_at
        return lasted >= self._gangs.complete_seconds(group)

    def _stranded(self) -> Iterator[tuple[Group, list[Pod]]]:
        """Yield gangs that wait for room in the zone into which they were released.

        Nothing takes a zone from a pod again. Its successor begins with a gate and without a zone.
        """
        owners = set()
        for group, tied in self._stages.stranded():
            owners.add(str(group.key))
            evicted = [pod for pod in tied if pod.has_controller]
            if str(group.key) not in self._told:
                why = "has had no room for long in the zone into which it was released: its members"
                self._tell(group, (*evicted, *tied)[0], len(evicted), f"{why} there")
            yield group, evicted
        self._told = owners

    def _tell(self, group: Group, pod: Pod, evicted: int, why: str) -> None:
        name = f"{group.key.namespace}/{group.key.name}"
        log.warning("members of a gang are evicted", extra={"gang": name, "evicted": evicted})
        text = f"gang {group.key.name} {why} that have a controller are evicted"
        self._notice(pod, EVENT, text)
