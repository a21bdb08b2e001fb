"""Takes over gangs that a former leader has begun, before the first answer."""

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from extender.decisions.gangs import written
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.stages import GangStages
from extender.gangs.ended import EndedMembers
from extender.gangs.planning import GangPlanning
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.annotations.slot_hint import is_released
from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_ASSUME_TIME
from gpushare.errors import ApiError
from gpushare.groups.group import Group
from gpushare.kube import paths, responses
from gpushare.kube.backoff import Retries
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)


AT_ONCE: Final = 16  # gangs about which the API server is asked
MOST_SECONDS: Final = 5.0  # for its answers, before kube-scheduler is answered


class Takeover:
    """Nothing about plans is stored: what is bound and what was released shows what has begun.

    A gang that has begun is planned again, around its bound members. It fits unless a node or GPU
    was lost: nobody else has been given room in the meantime. Only another gang that has begun, and
    had lost its room, may get what was reserved: nothing shows for which it was. Members beyond the
    minimum get none now, which another gang that has begun may need.

    Bindings say whether a gang has been whole, and the API server how many members have succeeded
    and when the first was bound. What it does not answer in time is asked later: long before
    anybody is evicted.
    """

    def __init__(
        self, gangs: Gangs, planning: GangPlanning, ended: EndedMembers, kube: Kube, clock: Clock
    ) -> None:
        self._gangs, self._planning, self._ended, self._kube = gangs, planning, ended, kube
        self._stages = GangStages(gangs)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._retries: Retries[str] = Retries(clock)
        self._unknown: set[str] = set()  # owners

    async def run(self) -> None:
        self._gangs.may_keep = True
        begun = [group for group, _ in self._stages.begun()]
        self._unknown = {str(group.key) for group in begun}
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await self.check()
        except TimeoutError:
            log.warning("gangs are taken over without all answers", extra={"gangs": len(begun)})
        waiting = filter(None, self._stages.without_plan())
        released = [group for group in waiting if any(map(is_released, group.present()))]
        with self._planning.slices.hurry():  # nobody is answered before
            for group in dict.fromkeys((*begun, *released)):
                if self._gangs.record(group).is_whole:
                    continue
                if not await self._planning.plan(group, is_least=True):
                    log.warning("gang has no room for its members", extra={"gang": str(group.key)})

    async def check(self) -> None:
        """Ask the API server about the gangs of which it has not told everything yet."""
        if not self._unknown:
            return
        begun = {record.owner: group for group, record in self._stages.begun()}
        self._unknown &= begun.keys()
        self._retries.keep_only(self._unknown)
        async with asyncio.TaskGroup() as tasks:
            for owner in sorted(self._unknown):
                if self._retries.is_ready(owner):
                    tasks.create_task(self._look(owner, begun[owner]))

    async def _look(self, owner: str, group: Group) -> None:
        async with self._places:
            is_known = await self._ended.count(group, self._gangs.record(group))
            if not self._gangs.record(group).is_whole:
                now, age = await self._age(group)
                is_known &= age is not None
                if age is not None:
                    has_lost = self._has_lost(group, now - timedelta(seconds=age))
                    written.take_over(self._gangs, group, age, has_lost=has_lost)
        self._retries.tried(owner, landed=is_known)
        if is_known:
            self._unknown.discard(owner)

    def _has_lost(self, group: Group, begun: datetime) -> bool:
        """Return whether members must have gone since the first one was bound.

        All up to the minimum existed then.
        """
        created = (pod.metadata.creation_timestamp for pod in group.present())
        old = sum(not at or datetime.fromisoformat(at) <= begun for at in created)
        return old + self._gangs.record(group).ended < group.minimum

    async def _age(self, group: Group) -> tuple[datetime, float | None]:
        """Return the time, and how long ago the first member was bound, in seconds.

        Both times are the API server's. None if it does not say. kube-scheduler binds members
        without GPU memory by itself: they do not show what the gang was.
        """
        now = datetime.now(UTC)
        bound = [pod for pod in self._gangs.progress(group).bound if asks_for_share(pod)]
        if not bound:
            return now, 0.0
        pod = min(bound, key=_decided_at)
        path = paths.pod_path(pod.metadata.namespace, pod.metadata.name)
        try:
            async with asyncio.timeout(MOST_SECONDS):
                found = responses.decode(_decode, await self._kube.request("GET", path))
            now = parsedate_to_datetime(self._kube.server_date)
            ages = [now - datetime.fromisoformat(at) for at in found.scheduled_at()]
        except (ApiError, OSError, ValueError) as err:
            log.warning("age of a binding is unknown", extra={"pod": pod.key, "why": repr(err)})
            return now, None
        return now, max((age.total_seconds() for age in ages), default=0.0)


def _decided_at(pod: Pod) -> tuple[int, str]:
    """Return when a bound pod was probably decided on, to compare it with others of its gang.

    Without that time it may be the oldest.
    """
    at = pod.annotations.get(ANNOTATION_ASSUME_TIME, "")
    decided_at = int(at) if at.isascii() and at.isdecimal() else 0
    return decided_at, pod.metadata.creation_timestamp or ""


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Bound(msgspec.Struct):
    """A pod, only with the time of its binding: the watch does not keep it."""

    status: _Status

    def scheduled_at(self) -> Iterator[str]:
        for each in self.status.conditions or ():
            if each.type == "PodScheduled" and each.status == "True" and each.last_transition_time:
                yield each.last_transition_time


_decode: Final = msgspec.json.Decoder(_Bound).decode
