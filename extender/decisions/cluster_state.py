"""What the extender knows about the cluster: the ledger, pods and nodes (pure)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from extender.decisions.callers import DEFAULT_SCHEDULER, Callers
from extender.decisions.failing_nodes import FailingNodes
from extender.decisions.pod_records import PodRecords
from extender.decisions.queue.head_claims import HeadClaims
from extender.decisions.soft_taints import SoftTaints
from extender.settings.configuration import NAMESPACE
from gpushare.answers.gangs import GangStates
from gpushare.answers.group_states import GroupStates
from gpushare.answers.preemptions import NO_PREEMPTIONS, PreemptionStates
from gpushare.answers.queue.entries import NO_QUEUE, QueueStates
from gpushare.cards.model import Request
from gpushare.clock import Clock
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import NOT_KNOWN, Left
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.index import Groups
from gpushare.ledger.changes import Changes
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.resource_use import ResourceUse
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import (
    Amounts,
    Requests,
    foreign_resources,
    requests_of,
)
from gpushare.placement import verdict
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.node_constraints import ProfileRules
from gpushare.placement.node_resources import OfferedResources, every_of, free_resources, limited
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import COOLING, Reason
from gpushare.placement.rooms import KeptRooms
from gpushare.placement.scarcity_learner import OpenNode
from gpushare.placement.verdict import Look, Verdict
from gpushare.planning.ask import ZoneRole
from gpushare.preemption.ending import EndingPods
from gpushare.preemption.model import Rules
from gpushare.quota.lost import why_lost
from gpushare.quota.namespaces import Namespaces
from gpushare.quota.quotas import Quotas
from gpushare.quota.reasons import OVER_MODEL_QUOTA
from gpushare.quota.use import NamespaceUse

_NS: Final = 1_000_000_000


class ClusterState:
    """The watch writes it, a binding reserves in its ledger, and everything else reads it.

    ``callers`` are the schedulers that ask about their pods, at first ``schedulers``.
    ``closed`` says why a node takes no new pods, ``unreadable`` what is wrong with its annotations.
    ``offered`` are the foreign resources that are judged.
    ``freed`` counts how often units became free that no pod event shows, by what used them.
    ``gated_without_need`` have our gate, and neither request GPU memory nor belong to a gang.
    ``own_namespace`` is gpushare's. ``placeholders`` are its pods that only autoscalers are to see:
    nothing else counts them.
    ``nominated`` are the pods without a node whose nominated node the extender has written.
    ``ending`` knows the pods on nodes that are being deleted.
    ``rooms`` are for sentences about Pending pods. ``gangs``, ``preemptions`` and ``queue`` are
    what people see of these. ``victim_rules`` say which pods may be evicted by configuration.
    ``profile_rules`` are kube-scheduler's, which every node in ``nodes`` shows already.
    ``mix`` counts what pods request, and ``scarcity`` is what follows from it for ranking nodes.
    """

    def __init__(
        self,
        unit_mib: int,
        policies: Policies,
        clock: Clock,
        schedulers: Iterable[str] = (DEFAULT_SCHEDULER,),
    ) -> None:
        self.unit_mib, self.policies, self.clock = unit_mib, policies, clock
        self.callers = Callers(schedulers)
        self.ledger = Ledger()
        self.groups = Groups()
        self.use = ResourceUse()
        self.offered = OfferedResources()
        self.pods = PodRecords(policies, self.ledger.changes.add)
        self.zone_roles: tuple[ZoneRole, ...] = ()
        self.gated_without_need: dict[str, Pod] = {}
        self.own_namespace = NAMESPACE
        self.placeholders: dict[str, Pod] = {}
        self.nominated: dict[str, Pod] = {}
        self.ending = EndingPods(clock.monotonic, lambda uid: bool(self.use.node_of(uid)))
        self.nodes: dict[str, Node] = {}
        self.closed: dict[str, Reason] = {}
        self.unreadable: dict[str, str] = {}
        self.soft_taints = SoftTaints()
        self.failing_nodes = FailingNodes()
        self.freed: Counter[str] = Counter()
        self.rooms = KeptRooms()
        self.request_of = self.pods.request_of
        self.namespaces = Namespaces()
        self.namespace_use = NamespaceUse(self.ledger, self._namespace_of, self.let_go)
        self.head_claims = HeadClaims(self.ledger)
        self.quotas = Quotas(self.namespaces, self.ledger, self.namespace_use, self.request_of)
        self.pod = self.pods.pod
        self.gangs: GangStates = GroupStates(self.groups, self.request_of, unit_mib, self._wall)
        self.preemptions: PreemptionStates = NO_PREEMPTIONS
        self.queue: QueueStates = NO_QUEUE
        self.victim_rules = Rules()
        self.profile_rules = ProfileRules()
        self.mix = Mix()
        self.scarcity = NOT_KNOWN
        self._allocatable: dict[str, tuple[Node, Left | None]] = {}
        self.group_of = self.groups.of
        self.requests_used = self.use.requests_of
        self.will_end = self.ending.will_end
        self.ended_of: Callable[[Group], int] = _none_ended

    def pods_of(self, node: str) -> Iterator[Pod]:
        """Return the live pods bound to a node that name our resources."""
        return (each.pod for each in self.pods.on_node(node) if each.pod is not None)

    def put_node(self, node: Node) -> None:
        self._note_lost(node.name, node)
        self.nodes[node.name] = node
        if self.offered.put(node):
            self._all_changed()

    def drop_node(self, name: str) -> None:
        self._note_lost(name, None)
        self.nodes.pop(name, None)
        self._allocatable.pop(name, None)
        if self.offered.drop(name):
            self._all_changed()

    def let_go(self, node: str) -> frozenset[str]:
        """Return the pods (uids) with GPU memory that hang on a lost node: no quota counts them."""
        if not why_lost(self.nodes.get(node)):
            return frozenset()
        uids = (share.pod_uid for share in self.ledger.shares(node))
        return frozenset(uid for uid in uids if self.ending.hangs(uid))

    def note_late(self) -> None:
        """Take note of the pods whose grace period has ended: quotas may let go of them."""
        for uid in self.ending.newly_hanging():
            if node := self.use.node_of(uid):
                self.ledger.changes.add(node)

    def _note_lost(self, name: str, now: Node | None) -> None:
        if bool(why_lost(self.nodes.get(name))) != bool(why_lost(now)):
            self.ledger.changes.add(name)

    def _all_changed(self) -> None:
        """Take note that other resources are judged now, on every node."""
        for name in self.nodes:
            self.use.changes.add(name)

    def is_plain(self, whom: Pod | Group) -> bool:
        """Return whether gpushare evaluates all rules by which a pod is rejected, or members are.

        It does not evaluate resources that no node offers.
        """
        resources = foreign_resources(whom) if isinstance(whom, Pod) else whom.foreign_resources
        return whom.is_plain and self.offered.has_all(resources)

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def node_names(self) -> set[str]:
        """Return the nodes that share GPUs, or try to."""
        return {*self.ledger.nodes(), *self.closed}

    def all_node_names(self) -> Iterable[str]:
        """Return all nodes, with and without GPUs."""
        return self.nodes

    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int] | None:
        """Return a node's allocatable less what its pods use and what is kept for other pods.

        A pod that is being bound counts too. None if it is unknown.
        """
        found, used, ledger = self.nodes.get(node), self.use.used(node), self.ledger
        if found is None or used is None:
            return None
        kept = ledger.kept_resources(node, besides=besides, priority=priority)
        try:
            more = self._being_bound(node, besides)
            return free_resources(found, used, kept, *more, offered=self.offered)
        except RequestError:
            return None

    def leaving(self, node: str) -> Mapping[str, Requests]:
        """Return what pods use of a node that are evicted from it for others, by uid."""
        return {uid: self.requests_used(uid) for uid in self.preemptions.victims_on(node)}

    def _being_bound(self, node: str, besides: str) -> Iterator[Amounts]:
        """Return the requests of pods with a reserve, unless a slot or the watch has them here."""
        for reserve in self.ledger.reserves(node):
            uid, slot = reserve.pod_uid, self.ledger.slot_of(reserve.pod_uid)
            pod = self.pods.pod(uid)
            is_counted = self.use.node_of(uid) == node or (slot is not None and slot.node == node)
            if pod is not None and uid != besides and not is_counted:
                yield requests_of(pod)

    @property
    def resource_changes(self) -> Changes:
        """Return the nodes that came, changed or went, or on which pods use other resources."""
        return self.use.changes

    def why_closed(self, node: str) -> Reason | None:
        """Return why a node takes no new pods, whatever its GPUs have free."""
        return self.closed.get(node)

    def why_not(self, node: str, request: Request, pod: Pod) -> Reason | None:
        """Return why the pod does not fit on a node now; its own reservations do not count."""
        found = self.verdict(node, request, pod.uid, pod.priority)
        if isinstance(found, Reason):
            return found
        if self.failing_nodes.is_cooling(node, self.clock.monotonic()):
            return COOLING
        full = self.quotas.why_not(pod, request)
        if isinstance(full, Reason):
            return full
        return OVER_MODEL_QUOTA if full and node in self.namespace_use.nodes_with(full) else None

    def _namespace_of(self, uid: str) -> str:
        pod = self.pods.pod(uid)
        return pod.metadata.namespace if pod is not None else ""

    def _wall(self) -> float:
        return self.clock.wall_ns() / _NS

    def verdict(
        self, node: str, request: Request, pod_uid: str = "", priority: int | None = None
    ) -> Verdict:
        """Judge one node now, without any cache.

        A pod's own reservations do not count, nor claims below its ``priority``; None counts all.
        """
        look = self.look(node, pod_uid, priority)
        return verdict.decide(
            look, request, self.policies, self.unit_mib, node, scarcity=self.scarcity
        )

    def look(self, node: str, pod_uid: str = "", priority: int | None = None) -> Look:
        """Return what is the same for all requests on one node."""
        account = self.ledger.account(node, besides=pod_uid, priority=priority)
        expected = self.pods.expected.units_on(node)
        closed = self.closed.get(node)
        left = self._left(node, pod_uid, priority) if closed is None else None
        return verdict.look(account, closed, self.unit_mib, expected, left)

    def open_node(self, name: str, cards: FreeCards) -> OpenNode:
        """Return what is learned from about a node with these cards."""
        return OpenNode.of(name, cards, self._empty(name), self.use)

    def _empty(self, name: str) -> Left | None:
        """Return a node's CPU and memory without any pods; None if they are unknown."""
        node = self.nodes.get(name)
        if node is None:
            return None
        known = self._allocatable.get(name)
        if known is not None and known[0] is node:
            return known[1]
        found = every_of(node)
        self._allocatable[name] = node, found
        return found

    def _left(self, name: str, besides: str, priority: int | None) -> Left | None:
        """Return the CPU and memory of ``free_resources``, which filter needs for many nodes."""
        used, empty = self.use.used(name), self._empty(name)
        if used is None or empty is None:
            return None
        cpu = empty.cpu - used.get("cpu", 0)
        memory = empty.memory - used.get("memory", 0)
        kept = self.ledger.kept_resources(name, besides=besides, priority=priority)
        for amounts in (kept, *self._being_bound(name, besides)):
            cpu -= amounts.get("cpu", 0)
            memory -= amounts.get("memory", 0)
        return Left(limited(cpu), limited(memory), *empty[2:])


def _none_ended(_: Group) -> int:
    return 0
