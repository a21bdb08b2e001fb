"""Know which pods on nodes are being deleted, and by when they should be gone (pure)."""

from collections.abc import Callable
from math import inf
from typing import Final

from gpushare.objects.model import Pod

# Of a grace period, which the author of a pod chooses: nobody waits longer for its room.
MOST_GRACE_SECONDS: Final = 300
LATE_SECONDS: Final = 60.0  # after its grace period, in which a pod may still end


class EndingPods:
    """All times are in seconds of ``clock``, which is monotonic: a pod's grace period counts from
    when its deletion was first noticed, and for MOST_GRACE_SECONDS at most.

    ``is_on_node`` returns whether a pod still uses a node.
    """

    def __init__(self, clock: Callable[[], float], is_on_node: Callable[[str], bool]) -> None:
        self._clock, self._is_on_node = clock, is_on_node
        self._by: dict[str, float] = {}  # the end of the grace period, by uid
        self._late: set[str] = set()  # those of ``newly_late`` so far

    def put(self, pod: Pod) -> None:
        """Take a pod or its new version; a deletion may be repeated with a shorter period."""
        meta = pod.metadata
        if pod.node and meta.deletion_timestamp:
            grace = min(meta.deletion_grace_period_seconds or 0, MOST_GRACE_SECONDS)
            by = self._clock() + grace
            self._by[pod.uid] = min(by, self._by.get(pod.uid, inf))

    def drop(self, uid: str) -> None:
        self._by.pop(uid, None)
        self._late.discard(uid)

    def will_end(self, uid: str) -> bool:
        """Return whether a pod is being deleted, and has time left for its end."""
        return self._clock() < self._by.get(uid, -inf) + LATE_SECONDS

    def is_late(self, uid: str) -> bool:
        """Return whether a pod is still there after its grace period."""
        return self._clock() >= self._by.get(uid, inf)

    def late(self) -> list[str]:
        """Return the pods that are late."""
        return [uid for uid in self._by if self.is_late(uid)]

    def newly_late(self) -> list[str]:
        """Return the pods that have become late since the last call."""
        found = [uid for uid in self.late() if uid not in self._late]
        self._late.update(found)
        return found

    def uids(self) -> list[str]:
        """Return the pods that are being deleted."""
        return list(self._by)

    def is_gone(self, uid: str) -> bool:
        return not self._is_on_node(uid)

    def seconds_left(self, uid: str) -> float | None:
        """Return what is left of a pod's grace period; None if it is not being deleted."""
        by = self._by.get(uid)
        return max(0.0, by - self._clock()) if by is not None else None
