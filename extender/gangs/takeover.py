"""Takes over gangs that a former leader has begun, before the first answer."""

import logging
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from extender.decisions.gangs.gangs import Gangs
from extender.gangs.ended import EndedMembers
from extender.gangs.planning import GangPlanning
from gpushare.annotations.slot_hint import is_released
from gpushare.errors import ApiError
from gpushare.groups.group import Group
from gpushare.kube import paths, responses
from gpushare.kube.client import Kube

log = logging.getLogger(__name__)


class Takeover:
    """Nothing about plans is stored: what is bound and what was released shows what has begun.

    A gang that has begun is planned again, around its bound members. It fits unless a node or GPU
    was lost: nobody else has been given room in the meantime.
    """

    def __init__(
        self, gangs: Gangs, planning: GangPlanning, ended: EndedMembers, kube: Kube
    ) -> None:
        self._gangs, self._planning, self._ended, self._kube = gangs, planning, ended, kube

    async def run(self) -> None:
        self._gangs.may_keep = True
        begun = [group for group, _ in self._gangs.begun()]
        for group in begun:
            record = self._gangs.record(group)
            await self._ended.count(group, record)
            if not record.is_whole and await self._is_old(group):
                record.is_whole = True
        waiting = self._gangs.without_plan()
        released = [group for group in waiting if any(map(is_released, group.present()))]
        for group in (*begun, *released):
            if not self._gangs.record(group).is_whole and not await self._planning.plan(group):
                log.warning("gang has no room for its members", extra={"gang": str(group.key)})

    async def _is_old(self, group: Group) -> bool:
        """Return whether a member was bound so long ago that the gang must have been whole.

        Both times are the API server's. Nobody who has worked for long is evicted by mistake.
        """
        limit, bound = self._gangs.complete_seconds(group), self._gangs.progress(group).bound
        for pod in bound:
            path = paths.pod_path(pod.metadata.namespace, pod.metadata.name)
            try:
                found = responses.decode(_decode, await self._kube.request("GET", path))
                now = parsedate_to_datetime(self._kube.server_date)
                ages = (now - datetime.fromisoformat(at) for at in found.scheduled_at())
                if any(age.total_seconds() >= limit for age in ages):
                    return True
            except (ApiError, ValueError) as err:
                log.warning("age of a binding is unknown", extra={"pod": pod.key, "why": repr(err)})
        return False


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
