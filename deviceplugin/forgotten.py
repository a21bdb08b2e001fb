"""Pods that run with a share and that the kubelet's checkpoint does not have (pure).

The kubelet takes their devices for free, and nothing but new pods in their place can tell it
better: it never reads a plugin's word about what is in use.
"""

from collections.abc import Container, Iterable
from typing import Final

from gpushare.contract import ANNOTATION_ASSIGNED
from gpushare.objects import Pod
from gpushare.records import asks_for_share

# The kubelet writes the checkpoint before a container starts. What is missing for a moment is a
# pod that has just ended and that the watch shows a little longer.
PATIENCE_SECONDS: Final = 15.0


class Forgotten:
    """Remembers since when each pod has been missing, by the caller's clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, pods: Iterable[Pod], held: Container[str], now: float) -> list[Pod]:
        """The pods that have been missing for PATIENCE_SECONDS.

        ``held`` are the pod UIDs that the checkpoint has, ``now`` seconds of a monotonic clock.
        """
        missing = [pod for pod in pods if _runs_with_share(pod) and pod.uid not in held]
        self._since = {pod.uid: self._since.get(pod.uid, now) for pod in missing}
        return [pod for pod in missing if now - self._since[pod.uid] >= PATIENCE_SECONDS]

    def cannot_tell(self) -> None:
        """The checkpoint cannot be read: nothing counts as missing until it can."""
        self._since = {}


def _runs_with_share(pod: Pod) -> bool:
    return (
        not pod.is_terminal
        and pod.metadata.deletion_timestamp is None
        and pod.annotations.get(ANNOTATION_ASSIGNED) == "true"
        and asks_for_share(pod)
        and pod.has_started
    )
