"""Which pods are evicted: those that are stuck, and one of two on an overbooked GPU (pure).

The device plugin reports on a pod that its decision cannot be kept; it may not delete pods, and the
kubelet would retry forever. So the extender evicts a pod if its controller would create a new one,
which then gets a new decision. A pod that was bound without a decision keeps room and can start on
no GPU, so it is evicted also if nothing creates it again.

A GPU is overbooked although the writes of two leaders never overlap: if a process was stopped
between its last check of the clock and the first byte, or if an API server executed a request long
after its time limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpushare.cards.model import Share
from gpushare.contract import (
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARD_UNITS,
    ANNOTATION_CARDS,
    CONDITION_CARD_USABLE,
)
from gpushare.objects.model import Pod

LIMIT_MISSING: Final = "MemoryLimitMissing"
# Reasons of the condition on pods that run, and must not run so.
OF_RUNNING: Final = frozenset({LIMIT_MISSING, "MemoryLimitChanged"})
GRACE_SECONDS: Final = 30  # that these have at most to end, whatever their authors wrote
# Reasons that never pass by themselves, and those that may.
AT_ONCE: Final = OF_RUNNING | {"AnswerStale"}
AFTER_A_WHILE: Final = frozenset({"CardGone", "CardUnhealthy", "CardTooFull", "MemoryNotLimited"})
NO_DECISION: Final = "NoDecision"  # it never passes, and the kubelet may be about to fail the pod
MAX_DIGITS: Final = 19


def why_stuck(pod: Pod, share: Share | None) -> str:
    """Return the reason for which ``pod``, which has this ``share``, is evicted, else "".

    It is NO_DECISION for a pod that can have no card of its node, except for a static pod, which
    its kubelet would make again. Otherwise it is the reason of the condition if a new decision
    would help: never for a pod with a running container, whatever wrote the condition; nor for one
    without a controller: nothing would create it again. Only a pod that runs without its memory
    limit (OF_RUNNING) is evicted in any case.
    """
    if share is not None and share.starts_nowhere:
        is_staying = pod.metadata.deletion_timestamp is None and not pod.is_static
        return NO_DECISION if is_staying else ""
    condition = pod.condition(CONDITION_CARD_USABLE)
    if condition is None or condition.status != "False" or not pod.node:
        return ""
    if pod.is_terminal or pod.is_static or pod.metadata.deletion_timestamp is not None:
        return ""
    reason = condition.reason or ""
    if reason not in OF_RUNNING and (pod.runs or not pod.has_controller):
        return ""
    return reason if reason in AT_ONCE or reason in AFTER_A_WHILE else ""


class StuckPods:
    """For how long each pod has been stuck, by the caller's clock: never by a node's timestamps."""

    def __init__(self, after_seconds: float) -> None:
        self._after = after_seconds
        self._since: dict[str, float] = {}

    def due(self, pods: Iterable[tuple[Pod, Share | None]], now: float) -> list[tuple[Pod, str]]:
        """Return those of ``pods`` that have been stuck for long enough, with the reason.

        ``pods``, each with its share, are all pods whose condition says that their GPU cannot be
        used, and all unplaced ones.
        """
        stuck = {pod.uid: (pod, why) for pod, share in pods if (why := why_stuck(pod, share))}
        self._since = {uid: self._since.get(uid, now) for uid in stuck}
        return [
            (pod, why)
            for uid, (pod, why) in stuck.items()
            if why in AT_ONCE or now - self._since[uid] >= self._after
        ]


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A bound, live pod and its units of the GPU."""

    pod: Pod
    units: int


@dataclass(frozen=True, slots=True)
class _Decided:
    assume_time_ns: int
    size: int


def to_evict(card: str, units: int, holders: Iterable[BoundPod]) -> Pod | None:
    """Return the pod whose end would fix ``card`` of ``units``; None if nothing is wrong.

    Every decision records the size of the GPU at that time. If all pods fit into the smallest
    recorded size, the GPU has shrunk since: nothing was given away twice, and no pod is evicted.
    The smallest, because a decision may be forged: none can claim more units for the others. Pods
    without a decision of ours do not count: no leader gave them anything.

    It is the newest, by assume time and then by uid, of the pods that have never run; pods with a
    controller come before those without. A pod that has run is never evicted. If two leaders wrote
    these times by clocks that differ, it may be the older pod.
    """
    staying = [each for each in holders if not _is_leaving(each.pod)]
    decided = {each.pod.uid: found for each in staying if (found := _decided(each.pod, card))}
    if not decided:
        return None
    size = min(found.size for found in decided.values())
    given = [each for each in staying if each.pod.uid in decided]
    if sum(each.units for each in given) <= max(size, units):
        return None
    able = [each.pod for each in given if not _has_begun(each.pod)]
    return max(
        able,
        key=lambda pod: (pod.has_controller, decided[pod.uid].assume_time_ns, pod.uid),
        default=None,
    )


def _is_leaving(pod: Pod) -> bool:
    """Return whether the pod is being deleted and has never run: its units are as good as free."""
    return pod.metadata.deletion_timestamp is not None and not _has_begun(pod)


def _has_begun(pod: Pod) -> bool:
    return pod.has_started or pod.runs or pod.status.phase not in {None, "", "Pending"}


def _decided(pod: Pod, card: str) -> _Decided | None:
    """Return when the pod got the GPU and its size then; None if that is not readable."""
    cards = pod.annotations.get(ANNOTATION_CARDS, "").split(",")
    sizes = pod.annotations.get(ANNOTATION_CARD_UNITS, "").split(",")
    at = pod.annotations.get(ANNOTATION_ASSUME_TIME, "")
    if card not in cards or len(sizes) != len(cards):
        return None
    size = sizes[cards.index(card)]
    if not all(
        text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS for text in (at, size)
    ):
        return None
    return _Decided(int(at), int(size))
