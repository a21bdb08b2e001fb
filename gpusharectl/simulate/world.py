"""A simulated cluster as explain reads it (pure)."""

from collections.abc import Iterable, Mapping

from gpushare.answers.gangs import NO_GANGS, GangStates
from gpushare.answers.preemptions import NO_PREEMPTIONS, PreemptionStates
from gpushare.answers.queue.entries import NoQueue, QueueStates
from gpushare.answers.queue.lacking import Lacking
from gpushare.answers.queue.over_quota import OverQuota
from gpushare.cards.model import Request
from gpushare.demand.scarcity import Scarcity
from gpushare.groups.group import Group
from gpushare.ledger.changes import Changes
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import Requests
from gpushare.placement import verdict
from gpushare.placement.node_resources import free_resources
from gpushare.placement.reasons import Reason
from gpusharectl.simulate.simulated_cluster import SimulatedCluster


class SimulatedQueue(NoQueue):
    """The quotas, without positions. Implements QueueStates."""

    def __init__(self, lacking: Lacking) -> None:
        self._lacking = lacking

    def over_quota(self, pod: Pod, request: Request) -> OverQuota | None:
        return self._lacking.over_quota(pod, request)

    def full_models(self, pod: Pod, request: Request) -> Mapping[str, OverQuota]:
        return self._lacking.full_models(pod, request)


class SimulatedWorld:
    """What is known of the bound pods, the nodes and their GPUs."""

    preemptions: PreemptionStates = NO_PREEMPTIONS

    def __init__(self, cluster: SimulatedCluster, gangs: GangStates = NO_GANGS) -> None:
        self.queue: QueueStates = SimulatedQueue(cluster.lacking)
        self._cluster, self.gangs = cluster, gangs
        self.unit_mib, self.ledger = cluster.unit_mib, cluster.ledger
        self.policies, self.groups = cluster.policies, cluster.groups
        self.group_of, self.requests_used = cluster.groups.of, cluster.use.requests_of
        self.request_of = cluster.request_of

    @property
    def scarcity(self) -> Scarcity:
        return self._cluster.scarcity

    def pod(self, uid: str) -> Pod | None:
        return self._cluster.pod(uid)

    def node(self, name: str) -> Node | None:
        return self._cluster.node(name)

    def node_names(self) -> set[str]:
        return self._cluster.sharing_names()

    def why_closed(self, node: str) -> Reason | None:
        return self._cluster.closed.get(node)

    def all_node_names(self) -> Iterable[str]:
        return self._cluster.node_names()

    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int] | None:
        found, used = self._cluster.node(node), self._cluster.use.used(node)
        if found is None or used is None:
            return None
        kept = self.ledger.kept_resources(node, besides=besides, priority=priority)
        return free_resources(found, used, kept, offered=self._cluster.offered)

    def leaving(self, _: str) -> Mapping[str, Requests]:
        """Return nothing: an evicted pod is gone at once."""
        return {}

    @property
    def resource_changes(self) -> Changes:
        return self._cluster.use.changes

    def ended_of(self, _: Group) -> int:
        """Return 0: pods of a simulation end by being deleted."""
        return 0

    def will_end(self, _: str) -> bool:
        """Return False: a deleted pod is gone at once."""
        return False

    def pods_of(self, node: str) -> Iterable[Pod]:
        return self._cluster.pods_on(node)

    def why_not(self, node: str, request: Request, pod: Pod) -> Reason | None:
        account = self.ledger.account(node, besides=pod.uid, priority=pod.priority)
        look = verdict.look(account, self.why_closed(node), self.unit_mib)
        found = verdict.decide(look, request, self.policies, self.unit_mib, node)
        return found if isinstance(found, Reason) else None
