"""Pods that run with a share and that the kubelet's checkpoint does not have (pure).

One that the plugin has reported is *forgotten*: the checkpoint was lost afterwards. The kubelet
takes its devices for free, and nothing but a new pod in its place can tell it better, because it
never reads a plugin's word about what is in use.

One that was never reported was *never asked for*: a kubelet that has lost its checkpoint knows of
no device plugin until one registers, and starts containers that ask for our resource without a call
(isDevicePluginResource in pkg/kubelet/cm/devicemanager/manager.go). Nobody chose a card for it.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from gpushare.annotations.pod_annotations import share_statuses
from gpushare.contract import ANNOTATION_ASSIGNED
from gpushare.objects.model import Pod

# The kubelet writes the checkpoint before a container starts. What is missing for a moment is a
# pod that has just ended and that the watch shows a little longer.
PATIENCE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Missing:
    """Pods that have been missing for PATIENCE_SECONDS, of either kind."""

    forgotten: list[Pod] = field(default_factory=list)
    never_asked_for: list[Pod] = field(default_factory=list)


class Forgotten:
    """Remembers since when each pod has been missing, by the caller's clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._never_asked_for: set[str] = set()

    def look(self, pods: Iterable[Pod], held: Container[tuple[str, str]], now: float) -> Missing:
        """Return the pods with a running container that the checkpoint does not have.

        ``held`` are pod UID and container name of what the checkpoint has, ``now`` seconds of a
        monotonic clock. A pod stays of its kind: another container of it may be served later.
        """
        missing = [pod for pod in pods if _is_missing(pod, held)]
        self._since = {pod.uid: self._since.get(pod.uid, now) for pod in missing}
        self._never_asked_for &= self._since.keys()
        found = Missing()
        for pod in missing:
            if now - self._since[pod.uid] < PATIENCE_SECONDS:
                continue
            if pod.annotations.get(ANNOTATION_ASSIGNED) != "true":
                self._never_asked_for.add(pod.uid)
            is_known = pod.uid not in self._never_asked_for
            (found.forgotten if is_known else found.never_asked_for).append(pod)
        return found

    def cannot_tell(self) -> None:
        """The checkpoint cannot be read: nothing counts as missing until it can."""
        self._since = {}


def _is_missing(pod: Pod, held: Container[tuple[str, str]]) -> bool:
    if pod.is_terminal or pod.metadata.deletion_timestamp is not None:
        return False
    running = (s.name for s in share_statuses(pod) if s.state and s.state.running is not None)
    return any((pod.uid, name) not in held for name in running)
