"""Which nodes have ``PreferNoSchedule`` taints, and for which pods that matters (pure)."""

from collections.abc import Iterable, KeysView

from gpushare.objects.model import Node, Pod
from gpushare.objects.scheduling import SOFT, Taint
from gpushare.placement.node_constraints import is_tolerated


class SoftTaints:
    """Nodes grouped by their set of ``PreferNoSchedule`` taints."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Taint, ...], set[str]] = {}
        self._of: dict[str, tuple[Taint, ...]] = {}

    def put(self, node: Node) -> None:
        taints = tuple(taint for taint in node.taints if taint.effect == SOFT)
        if self._of.get(node.name, ()) == taints:
            return
        self.drop(node.name)
        if taints:
            self._of[node.name] = taints
            self._nodes.setdefault(taints, set()).add(node.name)

    def drop(self, node: str) -> None:
        taints = self._of.pop(node, ())
        if taints:
            nodes = self._nodes[taints]
            nodes.discard(node)
            if not nodes:
                del self._nodes[taints]

    def differ(self, pod: Pod, asked: Iterable[str], fitting: KeysView[str]) -> bool:
        """Return whether the asked nodes that fit differ in taints that the pod does not tolerate.

        kube-scheduler scores by the number of such taints (tainttoleration, NormalizeScore): if all
        nodes have the same number it has no preference.
        """
        tolerations = pod.spec.tolerations or ()
        counts = {
            taints: sum(not is_tolerated(taint, tolerations) for taint in taints)
            for taints in self._nodes
        }
        if not any(counts.values()):
            return False
        left = fitting & asked
        found = set()
        for taints, count in counts.items():
            nodes = self._nodes[taints]
            if not nodes.isdisjoint(left):
                found.add(count)
                left -= nodes
        return len(found) + (bool(left) and 0 not in found) > 1
