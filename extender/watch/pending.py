"""Pods that have no node yet, and what each asks for (pure)."""

from gpushare.annotations import pod_annotations
from gpushare.errors import RequestError
from gpushare.objects.model import Pod


class Pending:
    """Pods that kube-scheduler should ask about: without a node, and held by no scheduling gate."""

    def __init__(self) -> None:
        self._units: dict[str, int | None] = {}  # by uid; None asks for what nobody can have

    def __len__(self) -> int:
        return len(self._units)

    @property
    def least_units(self) -> int:
        """What the smallest of them asks for in all; 0 where none asks for what can be had."""
        return min((units for units in self._units.values() if units is not None), default=0)

    def look_at(self, pod: Pod) -> None:
        """The pod is new, or has changed."""
        if pod.node or pod.spec.scheduling_gates:
            self.forget(pod.uid)
            return
        try:
            self._units[pod.uid] = pod_annotations.amounts_of(pod).units
        except RequestError:
            self._units[pod.uid] = None

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._units.pop(pod_uid, None)
