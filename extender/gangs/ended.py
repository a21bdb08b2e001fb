"""Counts members that have succeeded, which no watch shows, where a gang lacks members."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice
from math import inf
from typing import Final

import msgspec

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import GangRecord
from extender.decisions.gangs.stages import GangStages
from gpushare.contract import (
    LABEL_GANG,
    LABEL_KUEUE_GROUP,
    LABEL_POD_GROUP,
    LABEL_WORKER_GROUP,
)
from gpushare.errors import UNDECODABLE, ApiError
from gpushare.groups.group import Group
from gpushare.groups.model import Source
from gpushare.groups.sources import key_of
from gpushare.kube import paths, responses
from gpushare.kube.backoff import Retries
from gpushare.kube.client import Kube
from gpushare.kube.lists import pages
from gpushare.objects.pod_reader import read_pod
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

LACKS_SECONDS: Final = 0.5  # members of a new gang come one by one
RECALLED_SECONDS: Final = 5.0  # a controller that creates all members again has done so by then
AGAIN_SECONDS: Final = 5.0  # between two lists for a gang that changes
LIST_SECONDS: Final = 10.0
AT_ONCE: Final = 4
MOST_JOBS: Final = 16  # of one gang that are read
_LABELS: Final[dict[Source, tuple[str, ...]]] = {
    Source.POD_GROUP: (LABEL_POD_GROUP,),
    Source.LABELS: (LABEL_GANG, LABEL_WORKER_GROUP),
    Source.KUEUE: (LABEL_KUEUE_GROUP,),
}


class EndedMembers:
    """A pod that has succeeded counts if the controller of a live member has created it.

    A controller that replaces a failed pod creates one member of a gang of which the others may
    have succeeded already. Their pods may be gone: a Job says how many have succeeded. Pods without
    a controller may be from an earlier run. They count in a group of Kueue, which keeps them until
    the group has ended.
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
                if now - since >= RECALLED_SECONDS:
                    self._gangs.recall(group, record)
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
        owners = frozenset(pod.controller_uid for pod in group.present())
        if group.key.source is not Source.KUEUE:
            owners -= {""}
        if not owners:
            return True
        listed = paths.pods(
            field_selector="status.phase=Succeeded",
            namespace=group.key.namespace,
            label_selector=_selector(group),
        )
        found, behind = Counter[str](), Counter[str]()  # by controller

        def count(items: list[msgspec.Raw]) -> Iterator[None]:
            for raw in items:
                pod = read_pod(raw)
                owner, is_bare = pod.controller_uid, not pod.has_controller
                is_meant = owner in owners and key_of(pod) == group.key
                if is_meant and not (is_bare and pod.metadata.deletion_timestamp):
                    # A live member counts already: the watch is behind.
                    (behind if pod.uid in group.members else found)[owner] += 1
                yield

        try:
            async with self._places, asyncio.timeout(LIST_SECONDS):
                async for page in pages(self._kube, listed):
                    await in_slices(count(list(page.items or ())))
                is_short = group.count + found.total() < group.minimum
                for owner, name in _jobs_of(group).items() if is_short else ():
                    said = await self._succeeded(group.key.namespace, name, owner)
                    found[owner] = max(found[owner], said - behind[owner])
        except (ApiError, OSError, *UNDECODABLE) as err:
            log.warning(
                "ended members could not be listed", extra={"gang": record.owner, "why": repr(err)}
            )
            return False
        self._gangs.ended(group, found.total(), owners)
        return True

    async def _succeeded(self, namespace: str, name: str, uid: str) -> int:
        """Return how many pods of a Job have succeeded; 0 for one that may not be read."""
        try:
            raw = await self._kube.request("GET", paths.job_path(namespace, name))
        except ApiError as err:
            if err.code in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
                return 0
            raise
        job = responses.decode(_decode_job, raw)
        is_same = job.metadata.uid == uid and job.spec.completions is not None
        return job.status.succeeded or 0 if is_same else 0


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Spec(msgspec.Struct):
    completions: int | None = None


class _Status(msgspec.Struct):
    succeeded: int | None = None


class _Job(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decode_job: Final = msgspec.json.Decoder(_Job).decode


def _selector(group: Group) -> str:
    """Return what selects the members by the labels that live ones have in common.

    Nothing does if an annotation names the group of Kueue.
    """
    names = _LABELS.get(group.key.source, ())
    found = {name: {pod.labels.get(name) for pod in group.present()} for name in names}
    common = ((name, value) for name, (value, *more) in found.items() if value and not more)
    return ",".join(map("=".join, common))


def _jobs_of(group: Group) -> dict[str, str]:
    """Return the names of the Jobs that control live members, by uid; of a few only."""
    owners = (each for pod in group.present() for each in pod.metadata.owner_references or ())
    jobs = {each.uid: each.name for each in owners if each.controller and each.kind == "Job"}
    return dict(islice(jobs.items(), MOST_JOBS))
