"""Counts members that have succeeded, which no watch shows, where a gang lacks members."""

import asyncio
import logging
from collections.abc import Iterator
from math import inf
from typing import Final

import msgspec

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import GangRecord
from extender.decisions.gangs.stages import GangStages
from gpushare.contract import LABEL_GANG, LABEL_KUEUE_GROUP, LABEL_POD_GROUP
from gpushare.errors import UNDECODABLE, ApiError
from gpushare.groups.group import Group
from gpushare.groups.model import Source
from gpushare.groups.sources import key_of
from gpushare.kube import paths
from gpushare.kube.backoff import Retries
from gpushare.kube.client import Kube
from gpushare.kube.lists import pages
from gpushare.objects.pod_reader import read_pod
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

LACKS_SECONDS: Final = 0.5  # members of a new gang come one by one
AGAIN_SECONDS: Final = 5.0  # between two lists for a gang that changes
LIST_SECONDS: Final = 10.0
AT_ONCE: Final = 4
_LABELS: Final = {
    Source.POD_GROUP: LABEL_POD_GROUP,
    Source.LABELS: LABEL_GANG,
    Source.KUEUE: LABEL_KUEUE_GROUP,
}


class EndedMembers:
    """A pod that has succeeded counts if the controller of a live member has created it.

    A controller that replaces a failed pod creates one member of a gang of which the others may
    have succeeded already. Pods without a controller do not count: they may be from an earlier run.
    """

    def __init__(self, state: ClusterState, gangs: Gangs, kube: Kube) -> None:
        self._clock, self._gangs, self._kube = state.clock, gangs, kube
        self._stages = GangStages(gangs)
        self._read: dict[str, tuple[int, float]] = {}  # version of a gang and when, by owner
        self._places = asyncio.Semaphore(AT_ONCE)
        self._retries: Retries[str] = Retries(state.clock)

    async def check(self) -> None:
        """Ask the API server about gangs that lack members, again when they have changed."""
        now = self._clock.monotonic()
        lacking = list(self._stages.lacking_members())
        self._read = {r.owner: self._read[r.owner] for _, r in lacking if r.owner in self._read}
        async with asyncio.TaskGroup() as tasks:
            for group, record in lacking:
                since = record.lacks_since if record.lacks_since is not None else now
                version, at = self._read.get(record.owner, (0, -inf))
                is_due = version != group.version and now - at >= AGAIN_SECONDS
                if is_due and now - since >= LACKS_SECONDS:
                    tasks.create_task(self._look(group, record))
        self._retries.keep_only(self._gangs.records)

    async def _look(self, group: Group, record: GangRecord) -> None:
        read = group.version, self._clock.monotonic()
        if await self.count(group, record):
            self._read[record.owner] = read

    async def count(self, group: Group, record: GangRecord) -> bool:
        """Count the members of a gang that have succeeded; return whether they could be listed.

        After a failure they are not listed again for a while.
        """
        if not self._retries.is_ready(record.owner):
            return False
        is_counted = await self._count(group, record)
        self._retries.tried(record.owner, landed=is_counted)
        return is_counted

    async def _count(self, group: Group, record: GangRecord) -> bool:
        owners = frozenset(uid for pod in group.present() if (uid := pod.controller_uid))
        if not owners:
            return True
        label = _LABELS.get(group.key.source)
        if not all(pod.labels.get(label or "") == group.key.name for pod in group.present()):
            label = None  # Kueue's group may be named by an annotation, which nothing can select
        listed = paths.pods(
            field_selector="status.phase=Succeeded",
            namespace=group.key.namespace,
            label_selector=f"{label}={group.key.name}" if label else "",
        )
        found = 0

        def count(items: list[msgspec.Raw]) -> Iterator[None]:
            nonlocal found
            for raw in items:
                pod = read_pod(raw)
                is_new = pod.uid not in group.members  # else the watch is behind, and it counts
                found += is_new and pod.controller_uid in owners and key_of(pod) == group.key
                yield

        try:
            async with self._places, asyncio.timeout(LIST_SECONDS):
                async for page in pages(self._kube, listed):
                    await in_slices(count(list(page.items or ())))
        except (ApiError, OSError, *UNDECODABLE) as err:
            log.warning(
                "ended members could not be listed", extra={"gang": record.owner, "why": repr(err)}
            )
            return False
        self._gangs.ended(group, found, owners)
        return True
