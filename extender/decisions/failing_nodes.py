"""Which nodes take no pods for a while because they just failed some at admission (pure).

A pod that the kubelet rejects is Failed for good, and its controller creates another at once. If
the device plugin has died, the kubelet's status offers the node's units for up to 10 s more: ten
failed pods per second. Only pods that this extender has bound itself count, so that no user can
close a node with pods made to fail. A pod that was evicted because it ran without the memory limit
that it must have counts as failed too. One failure is enough if it shows that no plugin answered,
or that a limit was missing; any other may be the pod's own fault, so it takes two.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpushare.contract import RESOURCE_MEMORY
from gpushare.objects.model import Pod

FAILURES: Final = 2
WITHIN_SECONDS: Final = 10.0
FIRST_SECONDS: Final = 5.0
MOST_SECONDS: Final = 60.0
REMEMBERED_SECONDS: Final = 60.0  # a pod that ends later than this after its binding does not count
FORGOTTEN_SECONDS: Final = 600.0
# The kubelet's message for a resource without a plugin (pkg/kubelet/cm/devicemanager/manager.go),
# and gRPC's for a plugin that ends during a call, which does not name the resource.
_NO_PLUGIN: Final = (
    f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE_MEMORY}",
    "code = Unavailable",
    "code = Canceled",
)


class _Of(StrEnum):
    """What a node has failed at; a pod that starts there proves only that its admission works."""

    ADMISSION = "admission"
    LIMITS = "limits"


@dataclass(slots=True)
class _Node:
    failed_at: deque[float] = field(default_factory=lambda: deque(maxlen=FAILURES))
    seconds: float = 0.0  # of the last pause
    until: float = 0.0


class FailingNodes:
    """Every ``now`` is in seconds of one monotonic clock.

    A binding is remembered here, not in the pod's record: the watch of live pods may drop a Failed
    pod before the watch of failed pods shows why.
    """

    def __init__(self) -> None:
        self._bound: dict[str, tuple[str, float]] = {}  # pod uid to node and time, oldest first
        self._started: dict[str, tuple[str, float]] = {}  # the same of pods that have started
        self._nodes: dict[tuple[str, _Of], _Node] = {}
        self._paused: set[str] = set()  # or were, at the last call of ``ended``

    def bound(self, pod_uid: str, node: str, now: float) -> None:
        """Note that this extender binds the pod now."""
        self._bound.pop(pod_uid, None)
        self._bound[pod_uid] = node, now
        while now - next(iter(self._bound.values()))[1] > REMEMBERED_SECONDS:
            del self._bound[next(iter(self._bound))]

    def failed(self, pod: Pod, now: float) -> None:
        """Note that a pod is Failed; its reason says whether the node's admission rejected it."""
        node = self._take(pod.uid, now) if _was_rejected(pod) else None
        if node is not None:
            self._count((node, _Of.ADMISSION), now, is_certain=_was_unanswered(pod))

    def unlimited(self, pod_uid: str, now: float) -> None:
        """Note that a pod was evicted because its memory limit was missing after its start."""
        node, at = self._started.pop(pod_uid, ("", 0.0))
        if node and now - at <= REMEMBERED_SECONDS:
            self._count((node, _Of.LIMITS), now, is_certain=True)

    def _count(self, key: tuple[str, _Of], now: float, *, is_certain: bool) -> None:
        self._nodes = {
            known: entry
            for known, entry in self._nodes.items()
            if now - max((entry.until, *entry.failed_at)) <= FORGOTTEN_SECONDS
        }
        entry = self._nodes.setdefault(key, _Node())
        if now < entry.until:
            return  # bound before the pause began
        entry.failed_at.append(now)
        first = entry.failed_at[0]
        are_enough = len(entry.failed_at) == FAILURES and now - first <= WITHIN_SECONDS
        # After a pause one failure is enough: no pod has run there since.
        if are_enough or entry.seconds or is_certain:
            entry.seconds = min(MOST_SECONDS, entry.seconds * 2 or FIRST_SECONDS)
            entry.until = now + entry.seconds
            self._paused.add(key[0])
            entry.failed_at.clear()

    def started(self, pod_uid: str, now: float) -> None:
        """Note that a container of the pod has started: its node's admission works."""
        node = self._take(pod_uid, now)
        if node is None:
            return
        self._started[pod_uid] = node, now
        while now - next(iter(self._started.values()))[1] > REMEMBERED_SECONDS:
            del self._started[next(iter(self._started))]
        self._nodes.pop((node, _Of.ADMISSION), None)

    def ended(self, now: float) -> list[str]:
        """Return the nodes whose pause has ended since the last call."""
        paused = self.cooling(now)
        found = [name for name in self._paused if name not in paused]
        self._paused.difference_update(found)
        return found

    def is_cooling(self, node: str, now: float) -> bool:
        return node in self.cooling(now)

    def cooling(self, now: float) -> set[str]:
        return {name for (name, _), entry in self._nodes.items() if now < entry.until}

    def _take(self, pod_uid: str, now: float) -> str | None:
        node, at = self._bound.pop(pod_uid, ("", 0.0))
        return node if node and now - at <= REMEMBERED_SECONDS else None


def _was_rejected(pod: Pod) -> bool:
    reason = pod.status.reason or ""
    return reason == "UnexpectedAdmissionError" or reason.startswith("OutOf")


def _was_unanswered(pod: Pod) -> bool:
    message = pod.status.message or ""
    return any(each in message for each in _NO_PLUGIN)
