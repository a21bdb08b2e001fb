"""Computes what each container uses of each GPU, and which pods exceed their request (pure)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

from deviceplugin.driver.interface import MemoryLimit, ProcessMemory, UtilizationSample
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.usage.cgroup_paths import Owner, bare_id
from gpushare.cards.model import Inventory
from gpushare.objects.model import ContainerStatus

HOST: Final = "host"
ENDED_POD: Final = "ended-pod"
UNKNOWN: Final = "unknown"

LASTING_SECONDS: Final = 45.0
REPEAT_SECONDS: Final = 3600.0

# Why a limit is not known.
CANNOT_LIMIT: Final = "the driver offers no limits of memory on this GPU"
NO_CONTAINER: Final = "no container with a share runs"
NO_CGROUP: Final = "the cgroup of the container was not found"
NOT_READ: Final = "the driver has not reported it yet"

MIB: Final = 1 << 20
_OF_NOTHING: Final = MemoryLimit(why_unknown=NO_CONTAINER)
_ALL_PERCENT: Final = 100
_Key = tuple[str, str, str]  # pod uid, container, UUID


@dataclass(frozen=True, slots=True)
class VisibleProcess:
    """A process outside of pods has no ``owner``.

    It ran already at ``started_us``, in microseconds since the boot of the machine.
    """

    owner: Owner | None
    started_us: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU: its processes, those of them that are visible, and the limits by container ID.

    ``processes`` is None where they were not asked for or the driver does not report them. The
    machine was booted at ``booted_us``, in microseconds since the Unix epoch.
    """

    uuid: str
    processes: tuple[ProcessMemory, ...] | None = None
    visible: Mapping[int, VisibleProcess] = field(default_factory=dict)
    booted_us: int = 0
    samples: tuple[UtilizationSample, ...] = ()
    limits: Mapping[str, MemoryLimit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One running container on one GPU of its pod; None stands for what is not known.

    ``container_id`` is the runtime's own, and empty where the kubelet has not reported it.
    ``limit`` is that of the container's cgroup. ``is_measured``: the plugin has means to measure
    the use of this GPU.

    A row without ``container`` has what the pod holds outside of its running containers: the rest
    of its share, and processes in other cgroups. So the amounts asked for in all rows of a pod on a
    GPU are together its share.
    """

    pod: NodePod
    container: str
    container_id: str
    uuid: str
    asked_mib: int
    used_mib: int | None = None
    sm_percent: int | None = None
    limit: MemoryLimit = _OF_NOTHING
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class PodUse:
    """One pod on one GPU, with the rows of its containers; ``used_mib`` is None if one is."""

    pod: NodePod
    uuid: str
    containers: Sequence[ContainerUse]

    @property
    def used_mib(self) -> int | None:
        known = [row.used_mib for row in self.containers if row.used_mib is not None]
        return sum(known) if len(known) == len(self.containers) else None

    @property
    def asked_mib(self) -> int:
        return sum(row.asked_mib for row in self.containers)

    @property
    def is_over(self) -> bool:
        return self.used_mib is not None and self.used_mib > self.asked_mib

    @property
    def limit_text(self) -> str:
        """Say whether the driver keeps a limit, in a sentence."""
        running = [row for row in self.containers if row.container and row.asked_mib]
        limits = [row.limit for row in running or self.containers]
        unknown = [limit.why_unknown for limit in limits if limit.why_unknown]
        if unknown:
            return f"No limit is known: {unknown[0]}."
        kept = [limit.hard_bytes for limit in limits if limit.hard_bytes is not None]
        if len(kept) < len(limits):
            return "The driver keeps no limit."
        return f"The driver limits it to {sum(kept) // MIB} MiB."


@dataclass(frozen=True, slots=True)
class Usage:
    """``others`` is MiB by UUID and by user, of the GPUs that report their processes.

    That is HOST, ENDED_POD for pods that have ended, or UNKNOWN for processes that are not visible.
    """

    containers: tuple[ContainerUse, ...] = ()
    others: Mapping[tuple[str, str], int | None] = field(default_factory=dict)

    @property
    def pods(self) -> list[PodUse]:
        rows: dict[tuple[str, str], list[ContainerUse]] = defaultdict(list)
        for row in self.containers:
            rows[row.pod.uid, row.uuid].append(row)
        return [PodUse(found[0].pod, found[0].uuid, found) for found in rows.values()]


def shares(pods: Iterable[NodePod], inventory: Inventory | None) -> list[ContainerUse]:
    """Return the rows of all shares, without measurements."""
    rows = []
    for pod in pods:
        share = pod.share(inventory)
        if inventory is None or share is None or not share.cards:
            continue
        units = {container.name: container.units for container in pod.asked or ()}
        running = [each for each in pod.share_statuses if _runs(each)]
        settled = {each.name for each in pod.share_statuses if _runs(each) or _has_ended(each)}
        for uuid in share.cards:
            rest = share.units
            for each in running:
                part = units.get(each.name, 0) // len(share.cards)
                rest -= part
                asked_mib = part * inventory.unit_mib
                own_id = bare_id(each.container_id)
                rows.append(ContainerUse(pod, each.name, own_id, uuid, asked_mib))
            if rest > 0:
                asked_mib = rest * inventory.unit_mib
                used_mib = 0 if units and units.keys() <= settled else None
                rows.append(ContainerUse(pod, "", "", uuid, asked_mib, used_mib))
    return rows


def _runs(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None


def _has_ended(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.terminated is not None


def tally(
    readings: Iterable[Reading],
    rows: Iterable[ContainerUse],
    pods: Iterable[NodePod],
    *,
    limiting: Collection[str] = (),
    missing: Collection[str] = (),
    has_processes: bool = True,
) -> Usage:
    """Return the rows of ``shares`` with what was read, and rows of pods without a share.

    Memory is what the driver counts for a container's cgroup if it limits that, otherwise that of
    its processes. A process that is not visible may belong to any pod, so what is known only by
    processes is not known on its GPU. Nor is it known of a static pod: its cgroup has another uid
    than its mirror.

    ``limiting`` are the GPUs whose driver can limit memory, ``missing`` the IDs of containers whose
    cgroup was not found. ``has_processes``: GPUs are asked for them.
    """
    alive = {pod.uid: pod for pod in pods if not pod.is_terminal}
    by_key = {(row.pod.uid, row.container, row.uuid): row for row in rows}
    by_uuid = {reading.uuid: reading for reading in readings}
    names = _names(alive.values())
    used, others = _memory(by_uuid.values(), alive, names)
    sm = _utilization(by_uuid.values(), alive, names)
    for uid, container, uuid in used.keys() - by_key.keys():
        row = ContainerUse(alive[uid], container, "", uuid, 0)
        by_key[uid, container, uuid] = row
    measured = []
    for key, row in by_key.items():
        reading = by_uuid.get(row.uuid)
        limit = _limit(row, reading, limiting, missing)
        if limit.hard_bytes is not None and limit.used_bytes is not None:
            used_mib = _mib(limit.used_bytes)
        elif reading is None:
            used_mib = None
        elif reading.processes is None:
            used_mib = row.used_mib
        else:
            is_known = others[row.uuid, UNKNOWN] == 0 and not row.pod.is_static
            used_mib = _mib(used.get(key, 0)) if is_known else None
        measured.append(
            replace(
                row,
                used_mib=used_mib,
                sm_percent=sm.get(key),
                limit=limit,
                is_measured=has_processes or row.uuid in limiting,
            )
        )
    return Usage(tuple(measured), {key: _mib(amount) for key, amount in others.items()})


def in_force(found: Sequence[MemoryLimit]) -> MemoryLimit:
    """Return the limit of a container with these cgroups, at least one.

    NVIDIA's hook sets it on the one that has the processes, and the runtime decides which that is.
    Only the machine's root can limit the other.
    """
    limit = min(found, key=lambda each: (each.hard_bytes is None, not each.why_unknown))
    return replace(limit, soft_bytes=max(each.soft_bytes for each in found))


def _limit(
    row: ContainerUse, reading: Reading | None, limiting: Collection[str], missing: Collection[str]
) -> MemoryLimit:
    if row.uuid not in limiting:
        return MemoryLimit(why_unknown=CANNOT_LIMIT)
    if not row.container or not row.asked_mib:
        return row.limit
    if row.container_id in missing:
        return MemoryLimit(why_unknown=NO_CGROUP)
    limits = reading.limits if reading is not None else {}
    return limits.get(row.container_id, MemoryLimit(why_unknown=NOT_READ))


def _memory(
    readings: Iterable[Reading], alive: Mapping[str, NodePod], names: Mapping[Owner, str]
) -> tuple[dict[_Key, int | None], dict[tuple[str, str], int | None]]:
    """Return bytes of pods that live by container and GPU, and those of others."""
    used: dict[_Key, int | None] = {}
    others: dict[tuple[str, str], int | None] = {}
    for reading in readings:
        if reading.processes is None:
            continue
        uuid = reading.uuid
        others |= {(uuid, HOST): 0, (uuid, ENDED_POD): 0, (uuid, UNKNOWN): 0}
        for process in reading.processes:
            seen = reading.visible.get(process.pid)
            owner = seen.owner if seen is not None else None
            if owner is not None and owner.pod_uid in alive:
                key = owner.pod_uid, names.get(owner, ""), uuid
                used[key] = _plus(used.get(key, 0), process)
            else:
                by = UNKNOWN if seen is None else HOST if owner is None else ENDED_POD
                others[uuid, by] = _plus(others[uuid, by], process)
    return used, others


def _utilization(
    readings: Iterable[Reading], alive: Mapping[str, NodePod], names: Mapping[Owner, str]
) -> dict[_Key, int]:
    sums: dict[_Key, float] = defaultdict(float)
    for reading in readings:
        listed = {process.pid for process in reading.processes or ()}
        if not listed <= reading.visible.keys():
            continue
        samples: dict[int, list[int]] = defaultdict(list)
        for sample in reading.samples:
            if sample.pid not in listed:
                continue
            started_us = reading.booted_us + reading.visible[sample.pid].started_us
            if sample.at_us >= started_us:  # else it is of an earlier process with this ID
                samples[sample.pid].append(sample.sm_percent)
        for pid, percents in samples.items():
            owner = reading.visible[pid].owner
            if owner is not None and owner.pod_uid in alive:
                sums[owner.pod_uid, names.get(owner, ""), reading.uuid] += fmean(percents)
    # Samples of several processes are not of the same moments.
    return {key: min(_ALL_PERCENT, round(percent)) for key, percent in sums.items()}


def _names(pods: Iterable[NodePod]) -> dict[Owner, str]:
    """Return the names of the containers that run."""
    return {
        Owner(pod.uid, bare_id(each.container_id)): each.name
        for pod in pods
        for each in pod.statuses
        if _runs(each) and bare_id(each.container_id)
    }


def _mib(amount: int | None) -> int | None:
    return None if amount is None else -(-amount // MIB)


def _plus(amount: int | None, process: ProcessMemory) -> int | None:
    if amount is None or process.used_bytes is None:
        return None  # a part of the sum is not known, so neither is the sum
    return amount + process.used_bytes


class Overuse:
    """Finds pods that are above their request in each reading for LASTING_SECONDS."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}
        self._reported_at: dict[str, float] = {}

    def check(self, uses: Iterable[PodUse], now: float) -> list[PodUse]:
        """Return what to report now: a pod at most once in REPEAT_SECONDS.

        ``now`` is seconds of a monotonic clock.
        """
        over = {(use.pod.uid, use.uuid): use for use in uses if use.is_over}
        self._since = {key: self._since.get(key, now) for key in over}
        self._reported_at = {
            uid: at for uid, at in self._reported_at.items() if now - at < REPEAT_SECONDS
        }
        due = []
        for key, use in over.items():
            if now - self._since[key] >= LASTING_SECONDS and key[0] not in self._reported_at:
                self._reported_at[key[0]] = now
                due.append(use)
        return due
