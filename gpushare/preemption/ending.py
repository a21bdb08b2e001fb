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
    when its deletion was first noticed. Others wait for its end for MOST_GRACE_SECONDS at most.

    ``is_on_node`` returns whether a pod still uses a node.
    """

    def __init__(self, clock: Callable[[], float], is_on_node: Callable[[str], bool]) -> None:
        self._clock, self._is_on_node = clock, is_on_node
        self._by: dict[str, float] = {}  # by uid, until when others wait for its end
        self._ends: dict[str, float] = {}  # by uid, the end of the whole grace period
        self._hanging: set[str] = set()  # those of ``newly_hanging`` so far

    def put(self, pod: Pod) -> None:
        """Take a pod or its new version; a deletion may be repeated with a shorter period."""
        meta = pod.metadata
        if pod.node and meta.deletion_timestamp:
            now, grace = self._clock(), meta.deletion_grace_period_seconds or 0
            by = now + min(grace, MOST_GRACE_SECONDS)
            self._by[pod.uid] = min(by, self._by.get(pod.uid, inf))
            self._ends[pod.uid] = min(now + grace, self._ends.get(pod.uid, inf))

    def drop(self, uid: str) -> None:
        self._by.pop(uid, None)
        self._ends.pop(uid, None)
        self._hanging.discard(uid)

    def will_end(self, uid: str) -> bool:
        """Return whether a pod is being deleted, and has time left for its end."""
        return self._clock() < self._by.get(uid, -inf) + LATE_SECONDS

    def hangs(self, uid: str) -> bool:
        """Return whether a pod is still there after its whole grace period."""
        return self._clock() >= self._ends.get(uid, inf)

    def hanging(self) -> list[str]:
        """Return the pods that hang."""
        return [uid for uid in self._ends if self.hangs(uid)]

    def newly_hanging(self) -> list[str]:
        """Return the pods that have begun to hang since the last call."""
        found = [uid for uid in self.hanging() if uid not in self._hanging]
        self._hanging.update(found)
        return found

    def uids(self) -> list[str]:
        """Return the pods that are being deleted."""
        return list(self._by)

    def is_gone(self, uid: str) -> bool:
        return not self._is_on_node(uid)

    def seconds_left(self, uid: str) -> float | None:
        """Return what is left of a pod's grace period, of which MOST_GRACE_SECONDS count.

        Return None if it is not being deleted.
        """
        by = self._by.get(uid)
        return max(0.0, by - self._clock()) if by is not None else None
