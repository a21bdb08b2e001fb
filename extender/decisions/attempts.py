"""Which nodes a pod was offered in vain (pure).

A pod that was offered nodes and comes again had an attempt that failed later: a volume, another
plugin, a bind. Offered the same few nodes it might fail on them for ever. So they come last at its
next attempts, last of all those that were the best of an attempt, and after some attempts the pod
is offered all there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

MAX_PODS: Final = 5000
MAX_TRIED: Final = 256  # of one pod; then it starts over
REMEMBERED_SECONDS: Final = 600.0  # kube-scheduler tries again after 300 s at the latest
MORE_AFTER: Final = 2  # failed attempts until four times as many nodes are offered
ALL_AFTER: Final = 3

NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(slots=True)
class _Pod:
    attempts: int = 0
    tried: dict[str, int] = field(default_factory=dict)  # before the attempt that goes on now
    last: tuple[str, ...] = ()
    at: float = 0.0


class Offers:
    """Every ``now`` is in seconds of the same monotonic clock."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}  # last offered to last

    def begin(self, pod_uid: str, now: float) -> int:
        """A new attempt of this pod; how many were offered nodes before and have failed."""
        while self._pods:
            uid, oldest = next(iter(self._pods.items()))
            if len(self._pods) <= MAX_PODS and now - oldest.at <= REMEMBERED_SECONDS:
                break
            del self._pods[uid]
        pod = self._pods.get(pod_uid)
        if pod is None:
            return 0
        if pod.last:
            if len(pod.tried) > MAX_TRIED:
                pod.tried.clear()
            for name in pod.last:
                pod.tried.setdefault(name, 1)
            pod.tried[pod.last[0]] = 1 + pod.attempts
            pod.last = ()
        return pod.attempts

    def offered(self, pod_uid: str, nodes: Sequence[str], now: float) -> None:
        """This attempt stands or falls with these nodes, most of all with the first."""
        pod = self._pods.pop(pod_uid, None) or _Pod()
        self._pods[pod_uid] = pod
        pod.last, pod.at = tuple(nodes), now
        pod.attempts += 1

    def failed(self, pod_uid: str) -> int:
        """How many attempts of this pod have failed, besides the one that goes on now."""
        pod = self._pods.get(pod_uid)
        return pod.attempts - bool(pod.last) if pod is not None else 0

    def tried(self, pod_uid: str) -> Mapping[str, int]:
        """The nodes of attempts that have failed; the higher the number, the later its turn."""
        pod = self._pods.get(pod_uid)
        return pod.tried if pod is not None else NOWHERE

    def forget(self, pod_uid: str) -> None:
        """The pod is bound or gone."""
        self._pods.pop(pod_uid, None)

    def __len__(self) -> int:
        return len(self._pods)


def how_many(few: int, failed: int) -> int:
    """How many nodes to offer after so many failed attempts; 0 is all."""
    if not few or failed >= ALL_AFTER:
        return 0
    return few * 4 if failed >= MORE_AFTER else few
