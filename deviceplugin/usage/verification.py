"""Compares the limits of running containers with those that they were given.

NVIDIA's hook sets a container's limit before the container starts, and skips it without an error
where it cannot read the container's specification. So the driver is asked after each start. What a
container was given is in the CDI file of its share, which is written again only before another
start, so nothing is lost when this program ends.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.driver.interface import MemoryLimit
from deviceplugin.errors import CheckpointError, PluginError, Reason
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.report.refusals import LimitMissing, RefusalReport
from deviceplugin.usage.cgroups import Cgroups
from deviceplugin.usage.rules import MIB, NOT_READ, ContainerUse, Usage
from gpushare.cards.placement_policy import requires_limit
from gpushare.clock import Clock
from gpushare.contract import BY_DRIVER, ENV_CARD_UUID, ENV_ENFORCED, ENV_MEMORY_LIMIT

log = logging.getLogger(__name__)

UNREAD_SECONDS: Final = 30.0  # for which reading a limit may fail after the container's start
HIDDEN: Final = (
    "the plugin sees no pod's cgroup, so it cannot read the limits: mount the machine's "
    "/sys/fs/cgroup into it, or set --cgroup-dir"
)
_CGROUPS, _READING = "cgroups", "reading"  # what is in doubt

_Key = tuple[str, str]  # container ID and UUID


@dataclass(frozen=True, slots=True)
class Promise:
    """What a container was given: a limit of ``mib`` on each of these GPUs; none for nothing."""

    uuids: frozenset[str] = frozenset()
    mib: int = 0


class Fault(StrEnum):
    """How a container does not have its limit.

    MISSING: NVIDIA's hook has set none. CHANGED: the hook has set a larger one or a reservation, so
    the image of the container has variables of its own. UNREAD: the limit cannot be read.
    """

    MISSING = "missing"
    CHANGED = "changed"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class Missing:
    """A container that does not have the limit that it was promised."""

    use: ContainerUse
    fault: Fault
    why: str


class LimitChecks:
    """Which of the limits that containers were promised they do not have (pure).

    A limit that was in force stays so for the container's life: only the machine's root can change
    it, and the driver may answer no longer.
    """

    def __init__(self) -> None:
        self._kept: set[_Key] = set()
        self._unread_since: dict[_Key, float] = {}

    def missing(self, uses: Iterable[tuple[ContainerUse, Promise]], now: float) -> list[Missing]:
        """Return what is missing of what was promised, at ``now`` of a monotonic clock.

        A limit that cannot be read counts after UNREAD_SECONDS, unless the GPU does not answer at
        all.
        """
        found: list[Missing] = []
        kept: set[_Key] = set()
        unread: dict[_Key, float] = {}
        for use, promise in uses:
            if use.uuid not in promise.uuids:
                continue
            key = use.container_id, use.uuid
            fault = None if key in self._kept else _fault(use.limit, promise)
            if fault is None:
                kept.add(key)
                continue
            if fault is Fault.UNREAD:
                unread[key] = self._unread_since.get(key, now)
                is_silent = use.limit.why_unknown == NOT_READ
                if is_silent or now - unread[key] < UNREAD_SECONDS:
                    continue
            found.append(Missing(use, fault, _text(use, promise)))
        self._kept, self._unread_since = kept, unread
        return found


def _fault(limit: MemoryLimit, promise: Promise) -> Fault | None:
    if limit.why_unknown:
        return Fault.UNREAD
    if limit.hard_bytes is None and not limit.soft_bytes:
        return Fault.MISSING
    is_tight = limit.hard_bytes is not None and limit.hard_bytes <= promise.mib * MIB
    return None if is_tight and not limit.soft_bytes else Fault.CHANGED


def _text(use: ContainerUse, promise: Promise) -> str:
    limit = use.limit
    if limit.why_unknown:
        found = f"its limit cannot be read ({limit.why_unknown})"
    else:
        hard = "none" if limit.hard_bytes is None else f"{limit.hard_bytes // MIB} MiB"
        found = f"its limit is {hard}"
        if limit.soft_bytes:
            found += f", with {limit.soft_bytes // MIB} MiB reserved"
    return (
        f"container {use.container} was given {promise.mib} MiB of GPU {use.uuid}, and {found}: "
        f"see docs/isolation.md, When a limit is missing"
    )


class Verification:
    """The listener of ``UsageWatch`` that reports missing limits.

    While limits cannot be read, the node promises none, and no pod is evicted: their limits may
    well be in force.
    """

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
        self._promises: dict[str, Promise] = {}  # by container ID
        self._see()

    def check(self, usage: Usage) -> None:
        """Report what is missing of the limits of the running containers."""
        self._see()
        uses = [use for use in usage.containers if use.container_id and use.asked_mib]
        self._learn(uses)
        promised = [(u, p) for u in uses if (p := self._promises.get(u.container_id)) is not None]
        missing = self._checks.missing(promised, self._clock.monotonic())
        metrics.LIMITS_MISSING.set(len({each.use.container_id for each in missing}))
        unread = next((each.why for each in missing if each.fault is Fault.UNREAD), "")
        self._cards.doubt_limits(_READING, unread)
        self._refusals.set_limits_missing(self._reported(missing))

    def _reported(self, missing: Iterable[Missing]) -> list[LimitMissing]:
        """Evict who takes memory from others by variables of its own, and who must be limited."""
        must = self._cards.isolation.is_required
        return [
            LimitMissing(
                each.use.pod,
                Reason.LIMIT_CHANGED if each.fault is Fault.CHANGED else Reason.LIMIT_MISSING,
                each.why,
                evicts=each.fault is Fault.CHANGED
                or (each.fault is Fault.MISSING and (must or _requires(each.use))),
            )
            for each in missing
        ]

    def _see(self) -> None:
        self._cards.doubt_limits(_CGROUPS, "" if self._cgroups.sees_pods() else HIDDEN)

    def _learn(self, uses: Iterable[ContainerUse]) -> None:
        """Read what new containers were given; a container that starts again has another ID."""
        ids = {(use.pod.uid, use.container): use.container_id for use in uses}
        running = set(ids.values())
        self._promises = {key: each for key, each in self._promises.items() if key in running}
        if self._promises.keys() >= running:
            return
        try:
            entries = self._checkpoint.read()
        except CheckpointError as err:
            log.warning("limits wait for the checkpoint", extra={"why": str(err)})
            return
        for entry in entries:
            container_id = ids.get((entry.pod_uid, entry.container))
            if container_id is not None and container_id not in self._promises:
                self._promises[container_id] = self._given(entry.pod_uid, entry.answer)

    def _given(self, pod_uid: str, answer: bytes) -> Promise:
        try:
            share = allocate_response.read(answer, self._cards.inventory).share
        except PluginError as err:
            log.warning("a running container's answer is invalid", extra={"why": str(err)})
            return Promise()
        given = self._specs.read(share) if share else None
        if given is None or given.pod_uid != pod_uid:
            return Promise()
        variables = given.environment
        limit = variables.get(ENV_MEMORY_LIMIT, "")
        if variables.get(ENV_ENFORCED) != BY_DRIVER or not limit.isdecimal():
            return Promise()
        return Promise(frozenset(variables.get(ENV_CARD_UUID, "").split(",")), int(limit))


def _requires(use: ContainerUse) -> bool:
    return requires_limit(use.pod.annotations)
