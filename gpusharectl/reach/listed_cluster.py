"""The cluster as its listed nodes and pods show it, for explain and what-if (pure).

Uses the extender's code, without what only the extender knows: reservations, what kube-scheduler
asked, and its settings.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Final

from gpushare.annotations import inventory, pod_annotations
from gpushare.answers.gangs import NO_GANGS, GangStates
from gpushare.answers.preemptions import NO_PREEMPTIONS, PreemptionStates
from gpushare.answers.queue.entries import NO_QUEUE, QueueStates
from gpushare.cards.model import Request
from gpushare.contract import ANNOTATION_INVENTORY
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import Scarcity
from gpushare.errors import RecordError, RequestError
from gpushare.groups.group import Group
from gpushare.groups.index import Groups
from gpushare.groups.model import GroupKey
from gpushare.groups.sources import key_of
from gpushare.ledger.changes import Changes
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.resource_use import ResourceUse
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import Requests, resources_used
from gpushare.placement import card_choice, verdict
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.node_resources import OfferedResources, every_of, free_resources, left_of
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import Reason
from gpushare.placement.scarcity_learner import OpenNode, ScarcityLearner
from gpushare.placement.verdict import cards_of

GIB: Final = 1024


class ListedCluster:
    """``unreadable``: by node, what is wrong with its annotations."""

    policies = Policies()
    gangs: GangStates = NO_GANGS
    preemptions: PreemptionStates = NO_PREEMPTIONS
    queue: QueueStates = NO_QUEUE

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._offered = OfferedResources(self._nodes.values())
        self.unit_mib = unit_of(self._nodes.values())
        self.ledger = Ledger()
        self._live: dict[str, Pod] = {}
        self._succeeded: Counter[GroupKey] = Counter()
        self.unreadable: dict[str, str] = {}
        self._closed: dict[str, Reason] = {}
        self._pods: dict[str, Pod] = {}
        self._pods_of_node: dict[str, list[Pod]] = {}
        for node in self._nodes.values():
            found, wrong, why = cards_of(node, self.unit_mib)
            if why is not None:
                self._closed[node.name] = why
            if wrong:
                self.unreadable[node.name] = wrong
            if found is not None:
                self.ledger.set_inventory(node.name, found)
        for pod in pods:
            self._count(pod)

    def _count(self, pod: Pod) -> None:
        if pod.is_terminal:
            if pod.status.phase == "Succeeded" and (key := key_of(pod)) is not None:
                self._succeeded[key] += 1
            return
        self._live[pod.uid] = pod
        if not pod_annotations.asks_for_share(pod):
            return
        self._pods[pod.uid] = pod
        if pod.node:
            self._pods_of_node.setdefault(pod.node, []).append(pod)
            share = pod_annotations.share_of(pod, self.ledger.inventory(pod.node))
            if share is not None:
                self.ledger.put_share(share)

    def pod(self, uid: str) -> Pod | None:
        """Return a live pod that names our resources."""
        return self._pods.get(uid)

    def sharing(self) -> Collection[Pod]:
        """Return the live pods that request a share, bound or not."""
        return self._pods.values()

    def waiting(self) -> list[Pod]:
        """Return the live pods that request a share and have no node."""
        return [pod for pod in self._pods.values() if not pod.node]

    def pods_of(self, node: str) -> Iterable[Pod]:
        """Return the live pods on a node that request GPU memory."""
        return self._pods_of_node.get(node, ())

    @cached_property
    def _groups(self) -> Groups:
        found = Groups()
        for pod in self._live.values():
            found.update(pod)
        return found

    def group_of(self, uid: str) -> Group | None:
        """Return the gang of a live pod, without its PodGroup."""
        return self._groups.of(uid)

    def ended_of(self, group: Group) -> int:
        """Return how many members of a gang have succeeded, as far as these are listed."""
        return self._succeeded[group.key]

    def will_end(self, uid: str) -> bool:
        """Return whether a bound pod is being deleted; by when it should be gone is not judged."""
        pod = self._live.get(uid)
        return pod is not None and bool(pod.node) and bool(pod.metadata.deletion_timestamp)

    def requests_used(self, uid: str) -> Requests:
        return self._use.requests_of(uid)

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def node_names(self) -> set[str]:
        """Return the nodes that share GPUs, or try to."""
        return {*self.ledger.nodes(), *self._closed}

    @cached_property
    def scarcity(self) -> Scarcity:
        """Return what is scarce for pods like those of the cluster, as it is now.

        One list does not say how many pods without GPU memory come (``demand.other_pods``). Where
        they do, the extender may choose another node.
        """
        mix, learner = Mix(), ScarcityLearner()
        for pod in self._pods.values():
            with suppress(RequestError):  # it would fit nowhere
                mix.add(self.request_of(pod), pod.metadata.namespace)
        deque(learner.renewing(mix, self._open_nodes()), maxlen=0)
        return learner.now

    def _open_nodes(self) -> Iterator[OpenNode]:
        for name in self.ledger.nodes():
            account, free = self.ledger.account(name), self.free_resources(name)
            if account is not None and free is not None and name not in self._closed:
                every = every_of(self._nodes[name])
                cards = FreeCards(account, left=left_of(free, every))
                yield OpenNode.of(name, cards, every, self._use)

    @cached_property
    def _use(self) -> ResourceUse:
        found = ResourceUse()
        for pod in self._live.values():
            if pod.node:
                found.put(pod.uid, pod.node, resources_used(pod))
        return found

    def all_node_names(self) -> Iterable[str]:
        """Return all nodes, with and without GPUs."""
        return self._nodes

    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int] | None:
        """Return a node's allocatable less what all its pods use; None if that is unknown."""
        found, used = self._nodes.get(node), self._use.used(node)
        kept = self.ledger.kept_resources(node, besides=besides, priority=priority)
        try:
            if found is None or used is None:
                return None
            return free_resources(found, used, kept, offered=self._offered)
        except RequestError:
            return None

    def leaving(self, _: str) -> Mapping[str, Requests]:
        """Return nothing: only the extender knows whom it evicts."""
        return {}

    @property
    def resource_changes(self) -> Changes:
        return self._use.changes

    def why_closed(self, node: str) -> Reason | None:
        """Return why a node accepts no new pods, whatever its GPUs have free."""
        return self._closed.get(node)

    def request_of(self, pod: Pod) -> Request:
        """Return what a pod requests; RequestError if no node can ever grant it."""
        return verdict.request_of(pod, self.policies)

    def why_not(self, node: str, request: Request, pod: Pod) -> Reason | None:
        closed = self._closed.get(node)
        if closed is not None:
            return closed
        account = self.ledger.account(node, besides=pod.uid, priority=pod.priority)
        return card_choice.why_not(account, request, self.unit_mib)


def unit_of(nodes: Iterable[Node]) -> int:
    """Return the unit of most nodes in MiB; GiB if none states it, as with Aliyun gpushare."""
    counted: Counter[int] = Counter()
    for node in nodes:
        text = node.annotations.get(ANNOTATION_INVENTORY)
        if text is not None:
            try:
                counted[inventory.decode(text).unit_mib] += 1
            except RecordError:
                continue  # shown as the problem of the node
    return max(counted, key=lambda unit: (counted[unit], -unit), default=GIB)
