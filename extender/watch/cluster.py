"""The cluster as the extender knows it: pods and nodes from the watch, and the ledger from them."""

import logging
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from extender.decisions.filter import Filtered
from extender.decisions.prioritize import Prioritized
from extender.decisions.scheduling import Choices
from extender.settings.configuration import Policy
from extender.watch.audit import Audit, Difference
from extender.watch.failing_nodes import Cooldown
from extender.watch.grace import Hearing
from extender.watch.notices import Notice, Notices
from extender.watch.over import OverCards
from extender.watch.pending import Pending
from extender.watch.waiting import Waiting
from gpushare.annotations import pod_annotations
from gpushare.answers import explain
from gpushare.cards.model import Request, Share
from gpushare.clock import Clock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.ledger.changes import Changes
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Node, Pod
from gpushare.placement import verdict
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import COOLING, Reason
from gpushare.placement.victims import why_not_without

log = logging.getLogger(__name__)

TOLD_AT_ONCE: Final = 5  # pods a second that are told why they wait

_POLICY: Final = Policy()


class Cluster:
    """Handles the watch; every change of the ledger that comes from the API server goes by here.

    ``notice`` is called once for each thing that somebody should know of.
    ``unreadable`` has what is wrong with annotations of nodes, ``closed`` why they take no pods.
    """

    def __init__(
        self, unit_mib: int, notice: Notice, clock: Clock, policy: Policy = _POLICY
    ) -> None:
        self.unit_mib = unit_mib
        self.cooldown = Cooldown()
        self.waiting = Waiting()
        self.pending = Pending()
        self.hearing = Hearing(clock)
        self.queue = Changes()  # uids of pods without a node that came, changed, or are none now
        self.freed: Counter[str] = Counter()  # by what it was
        # Where shares or their cards changed; who looks clears it.
        self.touched_nodes: set[str] = set()
        self.in_trouble: dict[str, Pod] = {}  # those that say of themselves that they cannot start
        self.clock = clock
        self.ledger = Ledger()
        self.unreadable: dict[str, str] = {}
        self.closed: dict[str, Reason] = {}
        self.choices = Choices(self.ledger, unit_mib, self.closed, self.cooldown.cooling, policy)
        self.notices = Notices(notice)
        self.audit = Audit(self.ledger, self, clock)
        self.unplaced: set[str] = set()
        self.over = OverCards(self.ledger)
        self._pods: dict[str, Pod] = {}
        self._uids: dict[str, str] = {}  # by namespace and name
        self._pods_of_node: dict[str, dict[str, None]] = {}  # uids, in the order in which they came
        self._nodes: dict[str, Node] = {}

    def pod(self, uid: str) -> Pod | None:
        """A live pod that names our resources, as last seen."""
        return self._pods.get(uid)

    def pod_named(self, namespace: str, name: str) -> Pod | None:
        """The live pod of that name, the last that came."""
        return self._pods.get(self._uids.get(f"{namespace}/{name}", ""))

    def pods_of(self, node: str) -> Iterator[Pod]:
        """The live pods bound to a node that name our resources."""
        return (self._pods[uid] for uid in self._pods_of_node.get(node, ()))

    def node(self, name: str) -> Node | None:
        """A node as last seen."""
        return self._nodes.get(name)

    def node_names(self) -> set[str]:
        """The nodes that share GPUs, or try to."""
        return {*self.ledger.nodes(), *self.closed}

    def why_closed(self, node: str) -> Reason | None:
        """Why a node takes nothing new, whatever its cards have free."""
        return self.closed.get(node)

    @property
    def policies(self) -> Policies:
        """Return the policies of pods that set none."""
        return self.choices.policies

    def pod_asked(self, pod: Pod, offered: int, texts: Iterable[str]) -> None:
        """kube-scheduler has offered nodes; ``texts`` are why none would do, one a node."""
        self.waiting.asked(pod.uid, offered, texts, self.clock.monotonic())
        self.queue.add(pod.uid)

    def explain(self, pod: Pod, shown: int) -> Generator[None, None, explain.PodView]:
        """Why a pod is where it is, in steps; of ``shown`` nodes every card."""
        asked = self.waiting.of(pod.uid)
        return explain.explain(self, pod, asked, now=self.clock.monotonic(), shown=shown)

    def tell_waiting(self) -> None:
        """Tell the next few pods why they wait, if they do not know yet."""
        for uid, asked in self.waiting.to_tell(self.clock.monotonic(), TOLD_AT_ONCE):
            pod = self._pods.get(uid)
            if pod is None or pod.node:
                self.waiting.forget(uid)  # it was asked about as it went
                continue
            never = explain.never_offered(self, asked)
            self.notices.waits(pod, explain.said(asked.offered, asked.reasons, never))

    def expire_plans(self) -> None:
        """Let go of holds and claims whose time is over."""
        for kept in self.ledger.expire(self.clock.monotonic()):
            for node in {slot.node for slot in kept.slots}:
                self.units_freed(node, type(kept).__name__.lower(), kept.owner)

    def units_freed(self, node: str, what: str, owner: str) -> None:
        """Note that units became free which no pod event shows: kube-scheduler is not told.

        It tries pods that wait again at their next event, or after five minutes.
        """
        self.freed[what] += 1
        log.info("units became free", extra={"node": node, "what": what, "owner": owner})

    def request_of(self, pod: Pod) -> Request:
        """What the pod asks for; RequestError if it can be granted nowhere."""
        return self.choices.request_of(pod)

    def why_not(self, node: str, request: Request, pod: Pod) -> Reason | None:
        """Why the pod does not fit on a node now; its own reserves do not stand in its way."""
        verdict = self.choices.verdict(node, request, pod.uid, pod.priority)
        if isinstance(verdict, Reason):
            return verdict
        return COOLING if self.cooldown.is_cooling(node, self.clock.monotonic()) else None

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        """Which of ``nodes`` to offer to a pod, and why not the others."""
        return self.choices.filter(pod, nodes, self.clock.monotonic())

    def prioritize(self, pod: Pod, nodes: Sequence[str]) -> Prioritized:
        """``nodes`` best first, with scores; RequestError if no node could ever have the pod."""
        return self.choices.prioritize(pod, nodes, self.clock.monotonic())

    def cooling_nodes(self) -> int:
        """How many nodes take no pods because they have just failed some."""
        return self.cooldown.count(self.clock.monotonic())

    def why_not_without(
        self, node: str, request: Request, victims: Iterable[str], pod: Pod
    ) -> Reason | None:
        """Why the pod would not fit on a node once ``victims`` (uids) are gone.

        A node that takes no pods for a while is no obstacle: by the time they are gone it may.
        """
        closed = self.why_closed(node)
        return closed or why_not_without(
            self.ledger,
            node,
            request,
            victims,
            unit_mib=self.unit_mib,
            pod_uid=pod.uid,
            priority=pod.priority,
        )

    def pods_replaced(self, items: list[Pod]) -> None:
        """Take a list of all pods; what was known and is not in it is gone."""
        for _ in self.replacing_pods(items):
            pass

    def replacing_pods(self, items: list[Pod]) -> Iterator[None]:
        """The same pod by pod: each step is as if the watch had told it, so others may go on."""
        listed = {pod.uid for pod in items}
        for uid in [uid for uid in self._pods if uid not in listed]:
            self._forget(uid)
            yield
        for pod in items:
            before = self._pods.get(pod.uid)
            if before is not None and before.node and before.node != pod.node:
                # A consistent list is the API server's state: etcd was restored from before the
                # binding. An event says the same only where it is older than what is known.
                self._forget(pod.uid)
            self.pod_changed(pod)
            yield
        self.audit.begin()

    def pod_changed(self, pod: Pod) -> None:
        if not pod_annotations.asks_for_share(pod):
            return
        if pod.is_terminal:
            self._forget(pod.uid)
            return
        if pod_annotations.contradicts_decision(pod):
            self.notices.decision_changed(pod)
        before = self._pods.get(pod.uid)
        if before is not None:
            if before.node and before.node != pod.node:
                return  # no pod is ever unbound: this is older than what is known
            cards = self.ledger.inventory(pod.node)
            is_legacy = cards is not None and cards.is_legacy
            kept = pod_annotations.keep_decision(before, pod) or pod_annotations.not_from_a_binding(
                before, pod, is_legacy=is_legacy
            )
            if kept is not None:
                self.notices.decision_changed(pod)
                pod = kept
            if _is_same(before, pod):
                # Told again, and not changed: what is counted here would hide a difference.
                differences = self.audit.look_at(pod.uid)
                self._tell(differences)
                if not differences:
                    return
        self._keep(pod, before)
        self.pending.look_at(pod)
        self._note_trouble(pod)
        if pod.node:
            self.choices.forget(pod.uid)
            self._pods_of_node.setdefault(pod.node, {})[pod.uid] = None
            self._count(pod)
            self.waiting.forget(pod.uid)

    def pod_failed(self, pod: Pod) -> None:
        """A pod has just ended as Failed."""
        self.cooldown.failed(pod, self.clock.monotonic())

    def pod_deleted(self, pod: Pod) -> None:
        self._forget(pod.uid)

    def nodes_replaced(self, items: list[Node]) -> None:
        """Take a list of all nodes; what was known and is not in it is gone."""
        for _ in self.replacing_nodes(items):
            pass

    def replacing_nodes(self, items: list[Node]) -> Iterator[None]:
        """The same node by node."""
        listed = {node.name for node in items}
        for name in [name for name in self._nodes if name not in listed]:
            self._drop_node(name)
            yield
        for node in items:
            self.node_changed(node)
            yield
        self.audit.begin()

    def node_changed(self, node: Node) -> None:
        before, self._nodes[node.name] = self._nodes.get(node.name), node
        self.choices.soft_taints.put(node)
        if before is not None and _same_cards(before, node):
            return
        found, wrong, why = verdict.cards_of(node, self.unit_mib)
        if why is not None and wrong and self.unreadable.get(node.name) != wrong:
            self.notices.unreadable(node, wrong, why)
        self._open(node.name)
        if why is not None:
            self.closed[node.name] = why
        if wrong:
            self.unreadable[node.name] = wrong
        self.ledger.set_inventory(node.name, found)
        self.over.changed(node.name)
        self._recount(node.name)

    def _open(self, node: str) -> None:
        self.unreadable.pop(node, None)
        self.closed.pop(node, None)

    def node_deleted(self, node: Node) -> None:
        self._drop_node(node.name)

    def compare_some(self) -> None:
        """Go on comparing for a slice of time, so that filter never waits for all of it."""
        self._tell(self.audit.step())

    def compare(self) -> int:
        """Compute every share anew, and return how many the ledger has ever had otherwise.

        Nothing is repaired: such a difference is a defect of ours, a metric and a log line.
        """
        self._tell(self.audit.whole())
        return self.notices.differences

    def pod_uids(self) -> list[str]:
        """All pods that name our resources, bound or not."""
        return list(self._pods)

    def fresh_share(self, uid: str) -> Share | None:
        """What the pod holds by what was last seen of it and its node."""
        pod = self._pods.get(uid)
        return (
            pod_annotations.share_of(pod, self.ledger.inventory(pod.node))
            if pod is not None
            else None
        )

    def _tell(self, differences: list[Difference]) -> None:
        self.notices.differ(
            (each, self._pods.get(each.pod_uid), self._nodes.get(each.node)) for each in differences
        )

    def _keep(self, pod: Pod, before: Pod | None) -> None:
        self._pods[pod.uid] = pod
        self._uids[pod.key] = pod.uid
        if not (before or pod).node:
            self.queue.add(pod.uid)

    def _count(self, pod: Pod) -> None:
        share = pod_annotations.share_of(pod, self.ledger.inventory(pod.node))
        if share is None:
            self.ledger.remove_share(pod.uid)
            return
        if self.ledger.share(pod.uid) != share or self.ledger.has_reserve(pod.uid):
            self.ledger.put_share(share)
            self.over.changed(share.node)
            if share.node in self._nodes:  # others have no cards that could hold too much
                self.touched_nodes.add(share.node)
        (self.unplaced.add if share.is_unplaced else self.unplaced.discard)(pod.uid)
        if not share.is_unplaced:
            self.notices.placed(pod.uid)
        elif share.node in self._nodes:  # one that is not known yet says nothing about the pod
            self.notices.unplaced(pod, share)

    def _note_trouble(self, pod: Pod) -> None:
        if pod.has_started:
            self.cooldown.started(pod.uid, self.clock.monotonic())
        condition = pod.condition(CONDITION_CARD_USABLE)
        if condition is not None and condition.status == "False":
            self.in_trouble[pod.uid] = pod
        else:
            self.in_trouble.pop(pod.uid, None)

    def _recount(self, node: str) -> None:
        uids = self._pods_of_node.get(node)
        if not uids:
            return
        for uid in uids:
            self._count(self._pods[uid])
        if node in self._nodes:
            self.touched_nodes.add(node)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None and self._uids.get(pod.key) == uid:
            del self._uids[pod.key]
        if pod is not None and not pod.node:
            self.queue.add(uid)
        if pod is not None and pod.node:
            uids = self._pods_of_node[pod.node]
            uids.pop(uid, None)
            if not uids:
                del self._pods_of_node[pod.node]
        self.notices.forget(uid)
        self.pending.forget(uid)
        self.in_trouble.pop(uid, None)
        self.choices.forget(uid)
        self.unplaced.discard(uid)
        if pod is not None and pod.node:
            self.over.freed(pod.node)
        self.waiting.forget(uid)
        self.ledger.remove_share(uid)

    def _drop_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self.choices.soft_taints.drop(name)
        self._open(name)
        self.ledger.set_inventory(name, None)
        self._recount(name)
        self.over.freed(name)
        self.touched_nodes.discard(name)


def _is_same(before: Pod, after: Pod) -> bool:
    version = after.metadata.resource_version
    return bool(version) and version == before.metadata.resource_version


def _same_cards(before: Node, after: Node) -> bool:
    return before.annotations == after.annotations and before.capacity == after.capacity


class PodHandler:
    """Hands the pod watch to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.replaced = cluster.replacing_pods
        self.changed = cluster.pod_changed
        self.deleted = cluster.pod_deleted


class FailedPodHandler:
    """Hands pods that end as Failed to the cluster; those that had ended before say nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.changed = cluster.pod_failed

    def replaced(self, _: list[Pod]) -> None: ...

    def deleted(self, _: Pod) -> None: ...


class NodeHandler:
    """Hands the node watch to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.replaced = cluster.replacing_nodes
        self.changed = cluster.node_changed
        self.deleted = cluster.node_deleted
