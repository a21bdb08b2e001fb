"""Computes the measured memory of each pod, and which pods exceed their request (pure)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deviceplugin.driver.interface import ProcessMemory
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.cards.model import Inventory

HOST: Final = "host"
ENDED_POD: Final = "ended-pod"
UNKNOWN: Final = "unknown"

OVERUSE_READINGS: Final = 3
REPEAT_SECONDS: Final = 3600.0

_MIB: Final = 1 << 20
# A UUID, or the hash of its manifest that a static pod has.
_POD: Final = re.compile(
    r"(?:^|[/-])pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?=[/:]|$)"
)


@dataclass(frozen=True, slots=True)
class PodMemory:
    """One pod on one GPU; ``used_mib`` is None where the driver does not report it."""

    pod: NodePod
    uuid: str
    used_mib: int | None
    asked_mib: int

    @property
    def is_over(self) -> bool:
        return self.used_mib is not None and self.used_mib > self.asked_mib


@dataclass(frozen=True, slots=True)
class Usage:
    """``others`` is MiB by UUID and by user.

    That is HOST, ENDED_POD for pods that have ended, or UNKNOWN for processes that are not visible.
    """

    pods: tuple[PodMemory, ...]
    others: Mapping[tuple[str, str], int | None]


def tally(
    processes: Mapping[str, Sequence[ProcessMemory] | None],
    pod_of: Mapping[int, str | None],
    pods: Iterable[NodePod],
    inventory: Inventory | None,
) -> Usage:
    """Add up the memory that the processes of each pod use on each GPU.

    ``processes`` are by UUID, None for a GPU that does not report them; ``pod_of`` is pod uid by
    process ID, None for a process outside of pods. A process that is not in it may belong to any
    pod, so the pods on its GPU have no value. Each share has a row for each of its GPUs, even while
    it uses nothing.
    """
    alive = {pod.uid: pod for pod in pods if not pod.is_terminal}
    asked = _asked(alive.values(), inventory)
    used: dict[tuple[str, str], int | None] = dict.fromkeys(asked, 0)
    others: dict[tuple[str, str], int | None] = {}
    for uuid, found in processes.items():
        if found is None:
            continue
        others |= {(uuid, HOST): 0, (uuid, ENDED_POD): 0, (uuid, UNKNOWN): 0}
        for process in found:
            uid = pod_of.get(process.pid, UNKNOWN)
            if uid in alive:
                used[uid, uuid] = _plus(used.get((uid, uuid), 0), process)
            else:
                by = {None: HOST, UNKNOWN: UNKNOWN}.get(uid, ENDED_POD)
                others[uuid, by] = _plus(others[uuid, by], process)
    return Usage(
        pods=tuple(
            PodMemory(
                alive[uid],
                uuid,
                None if others.get((uuid, UNKNOWN)) != 0 else _mib(amount),
                asked.get((uid, uuid), 0),
            )
            for (uid, uuid), amount in used.items()
        ),
        others={key: _mib(amount) for key, amount in others.items()},
    )


def _asked(pods: Iterable[NodePod], inventory: Inventory | None) -> dict[tuple[str, str], int]:
    """Return MiB by pod uid and UUID."""
    asked = {}
    for pod in pods:
        share = pod.share(inventory)
        for uuid in share.cards if share is not None else ():
            if share is not None and inventory is not None:
                asked[pod.uid, uuid] = share.units * inventory.unit_mib
    return asked


def _mib(amount: int | None) -> int | None:
    return None if amount is None else -(-amount // _MIB)


def _plus(amount: int | None, process: ProcessMemory) -> int | None:
    if amount is None or process.used_bytes is None:
        return None  # a part of the sum is not known, so neither is the sum
    return amount + process.used_bytes


def pod_uid(content: str) -> str | None:
    """Return the uid of the pod of a process from its ``/proc/<pid>/cgroup``; None for no pod.

    The kubelet gives each pod a control group whose name ends in ``pod<uid>``: with the driver
    cgroupfs as it is, with systemd as a slice, dashes of the uid as underscores. Runtimes put
    containers below it, and a reader in a control group namespace of its own sees ``..`` instead of
    the groups above (kubernetes/pkg/kubelet/cm, pod_container_manager_linux.go and
    cgroup_manager_linux.go).

    For pods within pods it is the outer one, which is the pod that this node's kubelet knows.
    """
    for line in content.splitlines():
        _, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        if match := _POD.search(path):
            return match[1].replace("_", "-")
    return None


class Overuse:
    """Finds pods above their request for OVERUSE_READINGS readings in a row."""

    def __init__(self) -> None:
        self._streaks: dict[tuple[str, str], int] = {}
        self._reported_at: dict[str, float] = {}

    def check(self, uses: Iterable[PodMemory], now: float) -> list[PodMemory]:
        """Return what to report now: a pod at most once in REPEAT_SECONDS.

        ``now`` is seconds of a monotonic clock.
        """
        over = {(use.pod.uid, use.uuid): use for use in uses if use.is_over}
        self._streaks = {key: self._streaks.get(key, 0) + 1 for key in over}
        self._reported_at = {
            uid: at for uid, at in self._reported_at.items() if now - at < REPEAT_SECONDS
        }
        due = []
        for key, use in over.items():
            if self._streaks[key] >= OVERUSE_READINGS and key[0] not in self._reported_at:
                self._reported_at[key[0]] = now
                due.append(use)
        return due
