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
from gpushare.text.manual import manual

log = logging.getLogger(__name__)

UNREAD_SECONDS: Final = 30.0  # for which reading a limit may fail after the container's start
HIDDEN: Final = (
    "the plugin sees no pod's cgroup, so it cannot read the limits: mount the machine's "
    "/sys/fs/cgroup into it, or set --cgroup-dir"
)
UNREAD: Final = "the driver tells the limit of no container"
_CGROUPS, _READING = "cgroups", "reading"  # what is in doubt

_Key = tuple[str, str]  # container ID and UUID


@dataclass(frozen=True, slots=True)
class Given:
    """What a container was given of these GPUs: a limit of ``mib``, or None for no limit.

    ``is_promised``: it was told that the driver enforces its limit.
    """

    uuids: frozenset[str] = frozenset()
    mib: int | None = None
    is_promised: bool = False


class Fault(StrEnum):
    """How a container does not have what it was given.

    MISSING: NVIDIA's hook has set no limit. CHANGED: the hook has set a larger one or a
    reservation, so the image of the container has variables of its own. UNREAD: the limit cannot be
    read.
    """

    MISSING = "missing"
    CHANGED = "changed"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class Missing:
    """A container that does not have what it was given."""

    use: ContainerUse
    fault: Fault
    why: str


class LimitChecks:
    """Which containers do not have the limits that they were given (pure).

    What the driver has said of a container stays so while it cannot be read.
    """

    def __init__(self) -> None:
        self._said: dict[_Key, Missing | None] = {}  # None: the limit is in force
        self._unread_since: dict[_Key, float] = {}

    def missing(self, uses: Iterable[tuple[ContainerUse, Given]], now: float) -> list[Missing]:
        """Return what is missing of what was given, at ``now`` of a monotonic clock.

        A limit that cannot be read counts after UNREAD_SECONDS, unless the GPU does not answer at
        all.
        """
        said: dict[_Key, Missing | None] = {}
        unread: dict[_Key, float] = {}
        found = []
        for use, given in uses:
            if use.uuid not in given.uuids:
                continue
            key = use.container_id, use.uuid
            if not use.limit.why_unknown:
                fault = _fault(use.limit, given)
                said[key] = None if fault is None else Missing(use, fault, _text(use, given))
            elif key in self._said:
                said[key] = self._said[key]
            elif given.is_promised and use.limit.why_unknown != NOT_READ:
                unread[key] = self._unread_since.get(key, now)
                if now - unread[key] >= UNREAD_SECONDS:
                    found.append(Missing(use, Fault.UNREAD, _text(use, given)))
        self._said, self._unread_since = said, unread
        return [*(each for each in said.values() if each is not None), *found]

    def is_known(self, use: ContainerUse) -> bool:
        """Return whether the driver has said which limit this container has."""
        return (use.container_id, use.uuid) in self._said


def _fault(limit: MemoryLimit, given: Given) -> Fault | None:
    if limit.soft_bytes:
        return Fault.CHANGED
    if given.mib is None:
        return None
    if limit.hard_bytes is None:
        return Fault.MISSING if given.is_promised else None
    return Fault.CHANGED if limit.hard_bytes > given.mib * MIB else None


def _text(use: ContainerUse, given: Given) -> str:
    limit = use.limit
    if limit.why_unknown:
        found = f"its limit cannot be read ({limit.why_unknown})"
    else:
        hard = limit.hard_bytes
        found = "it has no limit" if hard is None else f"its limit is {hard // MIB} MiB"
        if limit.soft_bytes:
            found += f", with {limit.soft_bytes // MIB} MiB reserved"
    amount = "no limit" if given.mib is None else f"{given.mib} MiB"
    return (
        f"container {use.container} was given {amount} of GPU {use.uuid}, and {found}: "
        f"see {manual('isolation.md#when-a-limit-is-missing')}"
    )


class Verification:
    """Reports missing limits at each measurement of ``UsageWatch``.

    While no limit can be read, the node promises none, and no pod is evicted: their limits may well
    be in force.
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
        self._given: dict[str, Given] = {}  # by container ID
        self._see()

    def check(self, usage: Usage) -> None:
        """Report what is missing of the limits of the running containers."""
        self._see()
        uses = [use for use in usage.containers if use.container_id and use.asked_mib]
        self._learn(uses)
        given = [(u, g) for u in uses if (g := self._given.get(u.container_id)) is not None]
        missing = self._checks.missing(given, self._clock.monotonic())
        metrics.LIMITS_MISSING.set(len({each.use.container_id for each in missing}))
        is_unread = any(each.fault is Fault.UNREAD for each in missing)
        is_any_read = any(not use.limit.why_unknown for use, _ in given)
        self._cards.doubt_limits(_READING, UNREAD if is_unread and not is_any_read else "")
        unknown = {use.pod.uid for use in uses if not self._checks.is_known(use)}
        self._refusals.set_limits_missing(self._reported(missing), unknown)

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
        self._given = {key: each for key, each in self._given.items() if key in running}
        if self._given.keys() >= running:
            return
        try:
            entries = self._checkpoint.read()
        except CheckpointError as err:
            log.warning("limits wait for the checkpoint", extra={"why": str(err)})
            return
        for entry in entries:
            container_id = ids.get((entry.pod_uid, entry.container))
            if container_id is None or container_id in self._given:
                continue
            given = self._read(entry.pod_uid, entry.answer)
            if given is not None:
                self._given[container_id] = given

    def _read(self, pod_uid: str, answer: bytes) -> Given | None:
        """Return what a container was given; None if that cannot be read now."""
        try:
            answered = allocate_response.read(answer, self._cards.inventory)
        except PluginError as err:
            log.warning("a running container's answer is invalid", extra={"why": str(err)})
            return None
        if not answered.share:
            return Given(answered.cards)
        found = self._specs.read(answered.share)
        if found is None or found.pod_uid != pod_uid:
            return None
        variables = found.environment
        limit = variables.get(ENV_MEMORY_LIMIT, "")
        return Given(
            frozenset(variables.get(ENV_CARD_UUID, "").split(",")),
            int(limit) if limit.isdecimal() else None,
            variables.get(ENV_ENFORCED) == BY_DRIVER,
        )


def _requires(use: ContainerUse) -> bool:
    return requires_limit(use.pod.annotations)
