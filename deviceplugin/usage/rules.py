"""Who really uses how much of which card, and who uses more than it asked for (pure)."""

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
TELL_AGAIN_SECONDS: Final = 3600.0

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PodUse:
    """One pod on one card; ``used_mib`` is None where the driver does not tell."""

    pod: NodePod
    uuid: str
    used_mib: int | None
    asked_mib: int

    @property
    def is_over(self) -> bool:
        return self.used_mib is not None and self.used_mib > self.asked_mib


@dataclass(frozen=True, slots=True)
class Usage:
    """``others`` is MiB by UUID and by what uses it.

    That is HOST, ENDED_POD for pods that are gone, or UNKNOWN for processes that nobody can see.
    """

    pods: tuple[PodUse, ...]
    others: Mapping[tuple[str, str], int | None]


def tally(
    processes: Mapping[str, Sequence[ProcessMemory] | None],
    pod_of: Mapping[int, str | None],
    pods: Iterable[NodePod],
    inventory: Inventory | None,
) -> Usage:
    """Add up what the processes of each pod use of each card.

    ``processes`` are by UUID, None for a card that does not tell; ``pod_of`` is process ID to pod
    uid, None for a process of no pod. A process that is not in it may be anybody's, so nothing is
    said of the pods on its card. Each share has a row for each of its cards, also while it uses
    nothing.
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
            PodUse(
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
    """MiB by pod uid and UUID."""
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
        return None  # part of the sum is not known, so neither is the sum
    return amount + process.used_bytes


class Overuse:
    """Tells a use that is over what was asked for OVERUSE_READINGS readings in a row."""

    def __init__(self) -> None:
        self._streaks: dict[tuple[str, str], int] = {}
        self._told_at: dict[str, float] = {}

    def look(self, uses: Iterable[PodUse], now: float) -> list[PodUse]:
        """What is to be told now: a pod once in TELL_AGAIN_SECONDS at most.

        ``now`` is seconds of a monotonic clock.
        """
        over = {(use.pod.uid, use.uuid): use for use in uses if use.is_over}
        self._streaks = {key: self._streaks.get(key, 0) + 1 for key in over}
        self._told_at = {
            uid: at for uid, at in self._told_at.items() if now - at < TELL_AGAIN_SECONDS
        }
        due = []
        for key, use in over.items():
            if self._streaks[key] >= OVERUSE_READINGS and key[0] not in self._told_at:
                self._told_at[key[0]] = now
                due.append(use)
        return due
