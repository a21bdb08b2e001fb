"""Which nodes kube-scheduler should rather avoid, and for whom that makes a difference (pure)."""

from collections.abc import Iterable, KeysView
from typing import Final

from gpushare.objects.model import Node, Pod
from gpushare.objects.scheduling import Taint
from gpushare.placement.node_constraints import is_tolerated

EFFECT: Final = "PreferNoSchedule"


class SoftTaints:
    """Nodes by the ``PreferNoSchedule`` taints that they have together."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Taint, ...], set[str]] = {}
        self._of: dict[str, tuple[Taint, ...]] = {}

    def put(self, node: Node) -> None:
        """Take a node as it is now."""
        taints = tuple(taint for taint in node.taints if taint.effect == EFFECT)
        if self._of.get(node.name, ()) == taints:
            return
        self.drop(node.name)
        if taints:
            self._of[node.name] = taints
            self._nodes.setdefault(taints, set()).add(node.name)

    def drop(self, node: str) -> None:
        """The node is gone."""
        taints = self._of.pop(node, ())
        if taints:
            nodes = self._nodes[taints]
            nodes.discard(node)
            if not nodes:
                del self._nodes[taints]

    def differ(self, pod: Pod, asked: Iterable[str], fitting: KeysView[str]) -> bool:
        """Whether some of the nodes that are asked about and fit suit a pod better than others.

        kube-scheduler counts the taints that the pod does not tolerate (tainttoleration,
        NormalizeScore): where all nodes have as many it has no preference.
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
