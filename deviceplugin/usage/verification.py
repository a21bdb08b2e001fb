"""Compares the limits of running containers with those that they were given.

NVIDIA's hook sets a container's limit before the container starts, and skips it without an error
where it cannot read the container's specification. So the driver is asked after each start. What a
container was given is in the CDI file of its share, which is written again only before another
start, so nothing is lost when this program ends.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.errors import CheckpointError, PluginError
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.report.refusals import RefusalReport
from deviceplugin.usage.cgroups import Cgroups
from deviceplugin.usage.rules import MIB, NOT_READ, ContainerUse, Usage
from gpushare.cards.placement_policy import Isolation
from gpushare.clock import Clock
from gpushare.contract import (
    ANNOTATION_ISOLATION,
    BY_DRIVER,
    ENV_ENFORCED,
    ENV_MEMORY_LIMIT,
)

log = logging.getLogger(__name__)

UNREAD_SECONDS: Final = 30.0  # for which reading a limit may fail after the container's start
HIDDEN: Final = (
    "the plugin sees no pod's cgroup, so it cannot read the limits: mount the machine's "
    "/sys/fs/cgroup into it, or set --cgroup-dir"
)

_Key = tuple[str, str]  # container ID and UUID


@dataclass(frozen=True, slots=True)
class Missing:
    """A container whose limit is not in force."""

    use: ContainerUse
    text: str


class LimitChecks:
    """Which of the limits that containers were promised are missing (pure).

    A limit that was in force stays so for the container's life: only the machine's root can change
    it, and the driver may answer no longer.
    """

    def __init__(self) -> None:
        self._kept: set[_Key] = set()
        self._unread_since: dict[_Key, float] = {}

    def missing(self, uses: Iterable[tuple[ContainerUse, int]], now: float) -> list[Missing]:
        """Return what is missing of the promised limits in MiB, at ``now`` of a monotonic clock.

        A limit that cannot be read counts as missing after UNREAD_SECONDS, unless the GPU does not
        answer at all.
        """
        found: list[Missing] = []
        kept, unread = set(), {}
        for use, promised_mib in uses:
            key = use.container_id, use.uuid
            limit = use.limit
            if key in self._kept or limit.hard_bytes == promised_mib * MIB:
                kept.add(key)
            elif not limit.why_unknown:
                has = f"one of {limit.hard_bytes // MIB} MiB" if limit.hard_bytes else "none"
                found.append(Missing(use, _text(use, promised_mib, f"the driver has {has}")))
            elif limit.why_unknown != NOT_READ:
                unread[key] = self._unread_since.get(key, now)
                if now - unread[key] >= UNREAD_SECONDS:
                    why = f"it cannot be read ({limit.why_unknown})"
                    found.append(Missing(use, _text(use, promised_mib, why)))
        self._kept, self._unread_since = kept, unread
        return found


def _text(use: ContainerUse, promised_mib: int, why: str) -> str:
    return (
        f"container {use.container} should be limited to {promised_mib} MiB of GPU {use.uuid}, and "
        f"{why}: see docs/isolation.md, When a limit is missing"
    )


class Verification:
    """The listener of ``UsageWatch`` that reports missing limits."""

    def __init__(
        self,
        *,
        cards: NodeCards,
        cgroups: Cgroups,
        checkpoint: CheckpointFile,
        specs: Specs,
        refusals: RefusalReport,
        clock: Clock,
    ) -> None:
        self._cards = cards
        self._cgroups = cgroups
        self._checkpoint = checkpoint
        self._specs = specs
        self._refusals = refusals
        self._clock = clock
        self._checks = LimitChecks()
        self._promised: dict[str, int] = {}  # MiB by container ID, 0 for nothing
        self._reported: set[_Key] = set()
        self._see()

    def check(self, usage: Usage) -> None:
        """Report what is missing of the limits of the running containers."""
        self._see()
        uses = [use for use in usage.containers if use.container_id and use.asked_mib]
        self._learn(uses)
        promised = [(use, mib) for use in uses if (mib := self._promised.get(use.container_id, 0))]
        missing = self._checks.missing(promised, self._clock.monotonic())
        metrics.LIMITS_MISSING.set(len({each.use.container_id for each in missing}))
        keys = {(each.use.container_id, each.use.uuid) for each in missing}
        for each in missing:
            if (each.use.container_id, each.use.uuid) not in self._reported:
                self._report(each)
        self._reported = keys

    def _see(self) -> None:
        self._cards.set_limits(why_unread="" if self._cgroups.sees_pods() else HIDDEN)

    def _report(self, missing: Missing) -> None:
        pod = missing.use.pod
        is_required = pod.annotations.get(ANNOTATION_ISOLATION) == Isolation.REQUIRED
        evicts = is_required or self._cards.isolation.is_required
        log.warning("memory limit missing", extra={"pod": pod.key, "why": missing.text})
        self._refusals.limit_missing(pod, missing.text, evicts=evicts)

    def _learn(self, uses: Iterable[ContainerUse]) -> None:
        """Read what new containers were given; a container that starts again has another ID."""
        ids = {(use.pod.uid, use.container): use.container_id for use in uses}
        self._promised = {i: mib for i, mib in self._promised.items() if i in set(ids.values())}
        if self._promised.keys() >= set(ids.values()):
            return
        try:
            entries = self._checkpoint.read()
        except CheckpointError as err:
            log.warning("limits wait for the checkpoint", extra={"why": str(err)})
            return
        for entry in entries:
            container_id = ids.get((entry.pod_uid, entry.container))
            if container_id is not None and container_id not in self._promised:
                self._promised[container_id] = self._given(entry.pod_uid, entry.answer)

    def _given(self, pod_uid: str, answer: bytes) -> int:
        try:
            share = allocate_response.read(answer, self._cards.inventory).share
        except PluginError as err:
            log.warning("a running container's answer is invalid", extra={"why": str(err)})
            return 0
        given = self._specs.read(share) if share else None
        if given is None or given.pod_uid != pod_uid:
            return 0
        if given.environment.get(ENV_ENFORCED) != BY_DRIVER:
            return 0
        return int(given.environment[ENV_MEMORY_LIMIT])
