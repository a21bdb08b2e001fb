"""What kube-scheduler was last told about each pod that waits (pure).

Only time, number of nodes and counts per reason are kept; why each card does not fit is computed
when somebody asks. Pods are told of it by one Event, and again only when the reasons are others.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpushare.answers.explain import Asked

MOST_PODS: Final = 10_000
SETTLED_SECONDS: Final = 2.0  # a pod that waits no longer than this is told nothing
AGAIN_SECONDS: Final = 60.0  # between two Events of one pod
_LOOKED_AT: Final = 1000


@dataclass(slots=True)
class _Entry:
    asked: Asked
    told: frozenset[str] = frozenset()
    told_at: float = float("-inf")


class Waiting:
    """Every ``now`` is in seconds of the same monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}  # by uid, who was asked about longest ago first
        self._untold: dict[str, None] = {}  # in the order in which they came
        self.of_reason: Counter[str] = Counter()  # pods for which it holds on some node

    def __len__(self) -> int:
        """How many pods no offered node would do for when kube-scheduler last asked."""
        return sum(bool(entry.asked.reasons) for entry in self._entries.values())

    def asked(self, pod_uid: str, offered: int, texts: Iterable[str], now: float) -> None:
        """kube-scheduler has asked; ``texts`` are why, one a node, and none if some node fits."""
        reasons = dict(Counter(texts))
        entry = self._entries.pop(pod_uid, None)
        if entry is None:
            if not reasons:
                return  # the usual case leaves nothing behind
            entry = _Entry(Asked(now, now, offered))
        since = entry.asked.since if entry.asked.reasons or not reasons else now
        self._count(entry.asked.reasons, -1)
        self._count(reasons, 1)
        entry.asked = Asked(since, now, offered, reasons)
        self._entries[pod_uid] = entry
        if reasons and reasons.keys() != entry.told:
            self._untold[pod_uid] = None
        else:
            self._untold.pop(pod_uid, None)
        if len(self._entries) > MOST_PODS:
            self.forget(next(iter(self._entries)))

    def forget(self, pod_uid: str) -> None:
        """This pod is bound, or gone."""
        entry = self._entries.pop(pod_uid, None)
        if entry is not None:
            self._count(entry.asked.reasons, -1)
        self._untold.pop(pod_uid, None)

    def _count(self, reasons: Iterable[str], by: int) -> None:
        for reason in reasons:
            self.of_reason[reason] += by
            if not self.of_reason[reason]:
                del self.of_reason[reason]  # texts about a pod's own request are without end

    def of(self, pod_uid: str) -> Asked | None:
        entry = self._entries.get(pod_uid)
        return entry.asked if entry is not None else None

    def to_tell(self, now: float, most: int) -> list[tuple[str, Asked]]:
        """At most so many pods, by uid, whose reasons they have not been told; they are now."""
        found: list[tuple[str, Asked]] = []
        for uid in list(self._untold)[:_LOOKED_AT]:
            if len(found) == most:
                break
            entry = self._entries[uid]
            del self._untold[uid]
            is_due = now - entry.asked.since >= SETTLED_SECONDS
            if not is_due or now - entry.told_at < AGAIN_SECONDS:
                self._untold[uid] = None  # to the end: nobody stands before the others
                continue
            entry.told, entry.told_at = frozenset(entry.asked.reasons), now
            found.append((uid, entry.asked))
        return found
