"""The cluster as the extender knows it: pods and nodes from the watch, and the ledger from them."""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from extender import explain
from extender.cooldown import Cooldown
from extender.hearing import Hearing
from extender.waiting import Waiting
from gpushare import inventory, records
from gpushare.cards import Inventory, Request
from gpushare.clock import Clock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.errors import RecordError
from gpushare.ledger import Ledger
from gpushare.objects import Node, Pod
from gpushare.placement import cards as placement
from gpushare.placement.reasons import COOLING, UNREADABLE, Reason
from gpushare.placement.victims import why_not_without

log = logging.getLogger(__name__)

COMPARED_AT_ONCE: Final = 50
TOLD_AT_ONCE: Final = 5  # pods a second that are told why they wait

Notice = Callable[[Pod | Node, str, str], None]


class Cluster:
    """Handles the watch; every change of the ledger that comes from the API server goes by here.

    ``notice(about, reason, message)`` is called once for each thing an operator should know of.
    """

    def __init__(self, unit_mib: int, notice: Notice, clock: Clock) -> None:
        self.unit_mib = unit_mib
        self.cooldown = Cooldown()
        self.waiting = Waiting()
        self.hearing = Hearing(clock)
        self.freed: Counter[str] = Counter()  # by what it was
        self.in_trouble: dict[str, Pod] = {}  # those that say of themselves that they cannot start
        self.clock = clock
        self.ledger = Ledger()
        self.unreadable: dict[str, str] = {}
        self.changed_decisions: set[str] = set()
        self.differences = 0
        self._notice = notice
        self._told_unplaced: set[str] = set()
        self._to_compare: list[str] = []
        self._pods: dict[str, Pod] = {}
        self._pods_of_node: dict[str, set[str]] = {}
        self._nodes: dict[str, Node] = {}

    def pod(self, uid: str) -> Pod | None:
        """A live pod that names our resources, as last seen."""
        return self._pods.get(uid)

    def pod_named(self, namespace: str, name: str) -> Pod | None:
        """The live pod of that name, the last that came; every pod is looked at."""
        found = None
        for pod in self._pods.values():
            if pod.metadata.name == name and pod.metadata.namespace == namespace:
                found = pod
        return found

    def pods_of(self, node: str) -> Iterator[Pod]:
        """The live pods bound to a node that name our resources."""
        return (self._pods[uid] for uid in self._pods_of_node.get(node, ()))

    def node(self, name: str) -> Node | None:
        """A node as last seen."""
        return self._nodes.get(name)

    def node_names(self) -> set[str]:
        """The nodes that share GPUs, or try to."""
        return {*self.ledger.nodes(), *self.unreadable}

    def why_closed(self, node: str) -> Reason | None:
        """Why a node takes nothing new, whatever its cards have free."""
        return UNREADABLE if node in self.unreadable else None

    def pod_asked(self, pod: Pod, offered: int, texts: Iterable[str]) -> None:
        """kube-scheduler has offered nodes; ``texts`` are why none would do, one a node."""
        self.waiting.asked(pod.uid, offered, texts, self.clock.monotonic())

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
            said = explain.said(asked.offered, asked.reasons, never)
            self._notice(pod, "GpushareWaiting", said)

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

    def why_not(self, node: str, request: Request, pod_uid: str) -> Reason | None:
        """Why the pod does not fit on a node now; its own reserves do not stand in its way."""
        if node in self.unreadable:
            return UNREADABLE
        besides = pod_uid if self.ledger.has_reserve(pod_uid) else ""
        account = self.ledger.account(node, besides=besides)
        reason = placement.why_not(account, request, self.unit_mib)
        if reason is None and self.cooldown.is_cooling(node, self.clock.monotonic()):
            return COOLING
        return reason

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
        listed = {pod.uid for pod in items}
        for uid in [uid for uid in self._pods if uid not in listed]:
            self._forget(uid)
        for pod in items:
            self.pod_changed(pod)

    def pod_changed(self, pod: Pod) -> None:
        if not records.asks_for_share(pod):
            return
        if pod.is_terminal:
            self._forget(pod.uid)
            return
        if records.contradicts_decision(pod):
            self._report_changed(pod)
        before = self._pods.get(pod.uid)
        if before is not None:
            if before.node and before.node != pod.node:
                return  # no pod is ever unbound: this is older than what is known
            kept = records.keep_decision(before, pod)
            if kept is not None:
                self._report_changed(pod)
                pod = kept
        self._pods[pod.uid] = pod
        self._note_trouble(pod)
        if pod.node:
            self._pods_of_node.setdefault(pod.node, set()).add(pod.uid)
            self._count(pod)
            self.waiting.forget(pod.uid)

    def pod_failed(self, pod: Pod) -> None:
        """A pod has just ended as Failed."""
        self.cooldown.failed(pod, self.clock.monotonic())

    def pod_deleted(self, pod: Pod) -> None:
        self._forget(pod.uid)

    def nodes_replaced(self, items: list[Node]) -> None:
        listed = {node.name for node in items}
        for name in [name for name in self._nodes if name not in listed]:
            self._drop_node(name)
        for node in items:
            self.node_changed(node)

    def node_changed(self, node: Node) -> None:
        before, self._nodes[node.name] = self._nodes.get(node.name), node
        if before is not None and _same_cards(before, node):
            return
        try:
            found = inventory.of_node(node, self.unit_mib)
            self.unreadable.pop(node.name, None)
        except RecordError as err:
            found = None
            if self.unreadable.get(node.name) != str(err):
                log.warning("inventory unreadable", extra={"node": node.name, "why": str(err)})
                self._notice(node, "GpushareInventoryUnreadable", str(err))
            self.unreadable[node.name] = str(err)
        self.ledger.set_inventory(node.name, found)
        self._recount(node.name)

    def node_deleted(self, node: Node) -> None:
        self._drop_node(node.name)

    def compare_some(self) -> None:
        """Compare the next few nodes, so that filter never waits for all of them."""
        if not self._to_compare:
            self._to_compare = list(self._pods_of_node)
        some = [self._to_compare.pop() for _ in range(min(COMPARED_AT_ONCE, len(self._to_compare)))]
        self._compare(some)

    def compare(self) -> int:
        """Compute every share anew, and return how many the ledger has ever had otherwise.

        Nothing is repaired: such a difference is a defect of ours, a metric and a log line.
        """
        held = {share.node for share in self.ledger.shares()}
        self._compare([*self._pods_of_node.keys() | held])
        return self.differences

    def _compare(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            found = self._inventory(node)
            pods = (self._pods[uid] for uid in self._pods_of_node.get(node, ()))
            shares = (records.share_of(pod, found) for pod in pods)
            wanted = {share.pod_uid: share for share in shares if share is not None}
            held = {share.pod_uid: share for share in self.ledger.shares(node)}
            differ = [
                uid for uid in wanted.keys() | held.keys() if wanted.get(uid) != held.get(uid)
            ]
            if differ:
                log.error("ledger differs from pods", extra={"node": node, "pod_uids": differ[:20]})
                self.differences += len(differ)

    def _count(self, pod: Pod) -> None:
        share = records.share_of(pod, self._inventory(pod.node))
        if share is None:
            self.ledger.remove_share(pod.uid)
            return
        if self.ledger.share(pod.uid) != share or self.ledger.has_reserve(pod.uid):
            self.ledger.put_share(share)
        if not share.is_unplaced:
            self._told_unplaced.discard(pod.uid)
        # A node that is not known yet says nothing about the pod.
        elif share.node in self._nodes and pod.uid not in self._told_unplaced:
            self._told_unplaced.add(pod.uid)
            log.warning("pod is unplaced", extra={"pod": share.pod_key, "why": share.why_unplaced})
            self._notice(
                pod,
                "GpushareUnplaced",
                f"which GPU of node {share.node} this pod uses cannot be told, so its "
                f"{share.units} units are taken from every one: {share.why_unplaced}",
            )

    def _note_trouble(self, pod: Pod) -> None:
        if pod.has_started:
            self.cooldown.started(pod.uid, self.clock.monotonic())
        condition = pod.condition(CONDITION_CARD_USABLE)
        if condition is not None and condition.status == "False":
            self.in_trouble[pod.uid] = pod
        else:
            self.in_trouble.pop(pod.uid, None)

    def _recount(self, node: str) -> None:
        for uid in self._pods_of_node.get(node, ()):
            self._count(self._pods[uid])

    def _inventory(self, node: str) -> Inventory | None:
        account = self.ledger.account(node)
        return account.inventory if account is not None else None

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.node:
            uids = self._pods_of_node[pod.node]
            uids.discard(uid)
            if not uids:
                del self._pods_of_node[pod.node]
        self.changed_decisions.discard(uid)
        self.in_trouble.pop(uid, None)
        self._told_unplaced.discard(uid)
        self.waiting.forget(uid)
        self.ledger.remove_share(uid)

    def _drop_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self.unreadable.pop(name, None)
        self.ledger.set_inventory(name, None)
        self._recount(name)

    def _report_changed(self, pod: Pod) -> None:
        if pod.uid in self.changed_decisions:
            return
        self.changed_decisions.add(pod.uid)
        log.warning("decision changed by somebody", extra={"pod": pod.key})
        self._notice(
            pod,
            "GpushareDecisionChanged",
            "somebody changed the GPU decision of this bound pod; what was decided at first counts",
        )


def _same_cards(before: Node, after: Node) -> bool:
    return before.annotations == after.annotations and before.capacity == after.capacity


class PodHandler:
    """Hands the pod watch to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.replaced = cluster.pods_replaced
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
        self.replaced = cluster.nodes_replaced
        self.changed = cluster.node_changed
        self.deleted = cluster.node_deleted
