"""Find what quotas permit to release although there is no room, for autoscalers (pure).

Cluster Autoscaler and Karpenter add nodes for pods that kube-scheduler has rejected, and ignore
pods with a scheduling gate.
"""

from collections import Counter
from collections.abc import Generator

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.stages import GangStages
from extender.decisions.queue.waiting_pods import WaitingPods
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.quota.order import Standing


class Unplaced:
    """Of a namespace, what comes first in the queue is released first.

    Pods without gates and without room count against the quota as if they were placed: nodes are
    added for them, and then they are.
    """

    def __init__(self, gangs: Gangs, pods: WaitingPods) -> None:
        self._state, self._gangs = gangs.state, gangs
        self._stages, self._pods = GangStages(gangs), pods

    def permitted(self) -> Generator[Pod | None, None, None]:
        """Yield the gated pods to release, and None in between: other work may run there."""
        waiting: list[tuple[Standing, tuple[Pod, ...]]] = []
        for standing, _ in self._pods.waiting():
            yield None
            pod = self._pods.pod(standing.owner)
            if pod is not None and pod.gates:
                waiting.append((standing, (pod,)))
        for group in self._stages.without_plan():
            yield None
            if group is None:
                continue
            gated = tuple(pod for pod in self._gangs.progress(group).waiting if pod.has_our_gate)
            if gated:
                waiting.append((self._gangs.standing(group), gated))
        if not waiting:
            return
        expected = yield from self._expected()
        for standing, pods in sorted(waiting, key=lambda each: each[0].age):
            yield None
            units = sum(map(self._state.quotas.units_of, pods))
            left = self._state.quotas.left(standing.namespace)
            if isinstance(left, Reason):
                continue
            if left is None or units + expected[standing.namespace] <= left.units:
                expected[standing.namespace] += units
                yield from pods

    def _expected(self) -> Generator[None, None, Counter[str]]:
        """Return the units that pods without gates wait for, by namespace."""
        found = Counter[str]()
        for record in list(self._state.pods.pending.values()):
            yield None
            pod, request = record.pod, record.request
            if pod is None or request is None or pod.metadata.deletion_timestamp:
                continue
            if not self._state.ledger.has_reserve(pod.uid):
                found[pod.metadata.namespace] += request.units
        return found
