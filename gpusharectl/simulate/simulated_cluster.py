"""A cluster in memory, and where a pod is placed in it (pure).

gpushare.placement decides and gpushare.ledger counts, as in the extender. Of kube-scheduler's own
rules only those in gpushare.placement apply: taints, selectors, required node affinity, amounts.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from msgspec.structs import replace

from gpushare.annotations import pod_annotations
from gpushare.answers.queue.lacking import Lacking
from gpushare.cards.model import Card, Inventory, Request, Share
from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import NOT_KNOWN
from gpushare.errors import RequestError
from gpushare.groups.index import Groups
from gpushare.groups.sources import key_of
from gpushare.ledger.accounts import NodeAccount
from gpushare.ledger.holds import Slot
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.resource_use import ResourceUse
from gpushare.objects.model import Node, Pod, belong_to_node
from gpushare.objects.pod_requests import (
    MILLI,
    PODS,
    Amounts,
    may_use_gpus,
    requests_of,
    resources_used,
)
from gpushare.objects.scheduling import REPELLING
from gpushare.placement import card_choice, node_constraints, verdict
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.node_resources import (
    OfferedResources,
    every_of,
    free_resources,
    insufficient,
    left_of,
)
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import Reason
from gpushare.placement.scarcity_learner import OpenNode, ScarcityLearner
from gpushare.placement.verdict import Look
from gpushare.placement.verdict_cache import Judge, VerdictCache, Verdicts
from gpushare.quota.namespaces import Namespaces
from gpushare.quota.quotas import Quotas
from gpushare.quota.use import NamespaceUse
from gpushare.text.natural import natural
from gpusharectl.simulate.notes import Notes
from gpusharectl.simulate.other_systems.node_gpus import NodeGpus, Sharing
from gpusharectl.simulate.other_systems.occupancy import Occupancy
from gpusharectl.simulate.shown_nodes import ShownNodes

TOO_LITTLE: Final = "node has too little allocatable left of "
_BY_KUBERNETES: Final = "node.kubernetes.io/"  # taints that Kubernetes itself sets
# Of a node that does not state its amount.
_PLENTY: Final = {"cpu": 10**6, "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": 10**6}


def why_no_room(node: Node) -> str:
    """Return why Kubernetes itself keeps new pods off a node; empty if it does not."""
    if any(each.type == "Ready" and each.status != "True" for each in node.status.conditions or ()):
        return "is not Ready"
    repelling = (taint.key for taint in node.taints if taint.effect in REPELLING)
    key = next((key for key in repelling if key.startswith(_BY_KUBERNETES)), "")
    return f"has taint {key[:100]}" if key and key != node_constraints.UNSCHEDULABLE.key else ""


class SimulatedCluster:
    """``unit_mib`` is the cluster's unit; ``policies`` apply to pods without their own.

    ``groups`` are the gangs of all pods, which SimulatedGangs puts there.
    """

    def __init__(self, unit_mib: int, policies: Policies) -> None:
        self.unit_mib, self.policies = unit_mib, policies
        self.ledger = Ledger()
        self.namespaces = Namespaces()
        self.namespace_use = NamespaceUse(self.ledger, _namespace_of)
        self.quotas = Quotas(self.namespaces, self.ledger, self.namespace_use, self.request_of)
        self.lacking = Lacking(self.namespaces, self.namespace_use, self.quotas, unit_mib)
        self.use = ResourceUse()
        self.offered = OfferedResources()
        self.groups = Groups()
        self.closed: dict[str, Reason] = {}
        self._wrong: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # bound ones, by node and uid
        self._bound: dict[str, Pod] = {}  # the same, by uid
        self._rooms: dict[str, Amounts] = {}
        self.shown = ShownNodes(self.ledger, self.sharing, self._why_shut)
        self.others = Occupancy()
        self.unknown = Notes()
        self._shares: dict[str, tuple[str, ...]] = {}  # in the ledger, by the pod's uid
        self.scarcity = NOT_KNOWN
        self._mix, self._learner = Mix(), ScarcityLearner()
        self._open: dict[str, OpenNode] = {}  # that take new pods
        self._index = VerdictCache(self.ledger.changes, self._names, self._judging)

    def put_node(self, node: Node, gpus: NodeGpus | None = None) -> None:
        """Add or replace a node; its pods stay. ``gpus``: how other systems offer its GPUs."""
        name = node.name
        allocatable = {**_PLENTY, **node.allocatable}
        node = replace(node, status=replace(node.status, allocatable=allocatable))
        self._nodes[name] = node
        if self.offered.put(node):
            for each in self._nodes:
                self.use.changes.add(each)
                self._changed(each)
        self.use.changes.add(name)
        found, wrong, closed = verdict.cards_of(node, self.unit_mib)
        self._wrong[name] = wrong
        self.closed.pop(name, None)
        if closed is not None:
            self.closed[name] = closed
        self.ledger.set_inventory(name, found)
        self.others.put_node(name, gpus)
        self._changed(name)
        pods = list(self._pods.get(name, {}).values())
        for pod in pods:
            self._forget(pod)
        for pod in pods:
            self._count(pod)

    def bind(self, pod: Pod) -> None:
        self._pods.setdefault(pod.node, {})[pod.uid] = self._bound[pod.uid] = pod
        used = resources_used(pod)
        names = (name for name, _ in used or ())
        uses_gpus = may_use_gpus(names, has_claims=bool(pod.spec.resource_claims))
        is_other = not (
            uses_gpus or belong_to_node(pod.metadata.owner_references) or key_of(pod) is not None
        )
        self.use.put(pod.uid, pod.node, used, is_other=is_other)
        self._changed(pod.node)
        self._count(pod)

    def remove(self, pod: Pod) -> None:
        self._pods[pod.node].pop(pod.uid, None)
        self._bound.pop(pod.uid, None)
        self.use.remove(pod.uid)
        self.others.remove(pod)
        self._forget(pod)
        self._changed(pod.node)

    def bound(self) -> Collection[Pod]:
        """Return the bound pods."""
        return self._bound.values()

    def pod(self, uid: str) -> Pod | None:
        """Return a bound pod by its uid, or that of one of its shares."""
        return self._bound.get(uid.partition("#")[0])

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def node_names(self) -> Collection[str]:
        """Return all nodes, with and without GPUs."""
        return self._nodes.keys()

    def pods_on(self, node: str) -> Collection[Pod]:
        return self._pods.get(node, {}).values()

    def empty_copy(self, of: Callable[[str], bool]) -> "SimulatedCluster":
        """Return a cluster with the nodes whose names ``of`` selects, and no pods."""
        made = SimulatedCluster(self.unit_mib, self.policies)
        for name, node in self._nodes.items():
            if of(name):
                made.put_node(node, self.others.offered(name))
        return made

    def pods_left(self, node: str) -> int:
        """Return how many more pods the node takes, whatever they request."""
        known = self._nodes[node]
        if known.spec.unschedulable or node in self.closed or why_no_room(known):
            return 0
        return max(0, self._room(node)[PODS]) // MILLI

    def count(self, pod: Pod) -> None:
        """Add what a new pod requests to the mix."""
        with suppress(RequestError):  # placing it says what is wrong
            self._mix.add(self.request_of(pod), pod.metadata.namespace)

    def learn(self) -> None:
        """Learn what is scarce now, as the extender does once a second."""
        deque(self._learner.renewing(self._mix, self._open_nodes()), maxlen=0)
        if self.scarcity is not self._learner.now:
            self.scarcity = self._learner.now
            deque(self._index.renewing(), maxlen=0)

    def request_of(self, pod: Pod) -> Request:
        """Return what a pod requests; RequestError if no node can ever grant it."""
        return verdict.request_of(pod, self.policies)

    def verdicts(self, request: Request) -> Verdicts:
        """Return what the GPUs of each node say to a request."""
        return self._index.of(request)

    def place(self, pod: Pod) -> Pod | None:
        """Bind the pod to the best node; return it with its decision, None if it does not fit.

        Raises RequestError if no node can ever grant its request.
        """
        request, asked = self.request_of(pod), requests_of(pod)
        full = self.quotas.why_not(pod, request)
        if isinstance(full, Reason):
            return None
        barred = self.namespace_use.nodes_with(full)
        for _, _, _, name in self.verdicts(request).ranks:
            if name in barred or self.why_kept_off(pod, asked, name):
                continue
            bound = self._bind_on(pod, name, request)
            assert bound is not None, "a node that fits has cards"  # noqa: S101
            return bound
        return None

    def place_on(self, pod: Pod, name: str) -> Pod | None:
        """Bind the pod to a node with GPUs as if it ran there already, also if it is cordoned."""
        if insufficient(self._room(name), requests_of(pod)):
            return None
        return self._bind_on(pod, name, self.request_of(pod))

    def place_in(self, pod: Pod, slot: Slot) -> Pod:
        """Bind the pod to the node and GPUs of a slot that was planned for it."""
        if not slot.cards:
            bound = replace(pod, spec=replace(pod.spec, node_name=slot.node))
        else:
            cards = self.account(slot.node).inventory.cards
            chosen = tuple(card for card in cards if card.uuid in slot.cards)
            request = self.request_of(pod)
            bound = self._decided(pod, slot.node, request, chosen)
        self.bind(bound)
        return bound

    def _bind_on(self, pod: Pod, name: str, request: Request) -> Pod | None:
        chosen = card_choice.choose(self.account(name), request, self.policies.card)
        if chosen is None:
            return None
        bound = self._decided(pod, name, request, chosen)
        self.bind(bound)
        return bound

    def knows(self, node: str) -> bool:
        return node in self._nodes

    def cards_of(self, pod: Pod) -> tuple[int, ...]:
        """Return the indexes of a bound pod's GPUs."""
        stock = self.ledger.inventory(pod.node)
        uuids = {uuid for share in self._shares_of(pod) for uuid in share.cards}
        return tuple(card.index for card in stock.cards if card.uuid in uuids) if stock else ()

    def units_of(self, pod: Pod) -> int:
        """Return what a bound pod uses of each of its GPUs; the most, if it differs."""
        return max((share.units for share in self._shares_of(pod)), default=0)

    def _shares_of(self, pod: Pod) -> list[Share]:
        found = (self.ledger.share(uid) for uid in self._shares.get(pod.uid, ()))
        return [share for share in found if share is not None]

    def sharing(self) -> list[str]:
        """Return the names of the nodes that share GPUs, or try to, in order."""
        return sorted(self.sharing_names(), key=natural)

    def sharing_names(self) -> set[str]:
        return {*self.ledger.nodes(), *self.closed}

    def is_whole(self, node: str) -> bool:
        """Return whether pods have the GPUs of a node whole."""
        offered = self.others.offered(node)
        return offered is not None and offered.sharing is Sharing.WHOLE

    def idle_whole_gpus(self) -> dict[str, int]:
        """Return by node that offers whole GPUs how many of them new pods could have."""
        return {
            name: sum(not entry.used for entry in self.account(name).open)
            for name in filter(self.is_whole, self.ledger.nodes())
        }

    def account(self, name: str) -> NodeAccount:
        """Return the GPUs of a node that has some."""
        found = self.ledger.account(name)
        assert found is not None, "asked only about nodes that have cards"  # noqa: S101
        return found

    def _decided(self, pod: Pod, node: str, request: Request, chosen: tuple[Card, ...]) -> Pod:
        stock = self.ledger.inventory(node)
        decision = pod_annotations.decision_annotations(
            request, chosen, is_legacy=stock is not None and stock.is_legacy, assume_time_ns=0
        )
        annotations = {**pod.annotations, **decision}
        return replace(
            pod,
            metadata=replace(pod.metadata, annotations=annotations),
            spec=replace(pod.spec, node_name=node),
        )

    def _count(self, pod: Pod) -> None:
        stock = self.ledger.inventory(pod.node)
        share = pod_annotations.share_of(pod, stock)
        shares = [share] if share is not None else self._of_others(pod, stock)
        for each in shares:
            self.ledger.put_share(each)
        if shares:
            self._shares[pod.uid] = tuple(each.pod_uid for each in shares)

    def _of_others(self, pod: Pod, stock: Inventory | None) -> list[Share]:
        """Return what a pod uses that requests its GPUs of another system."""
        account = self.ledger.account(pod.node)
        cards = account.cards if account is not None else ()
        used = frozenset(entry.card.uuid for entry in cards if entry.used)
        counted = self.others.count(pod, stock, used)
        if counted.note is not None:
            self.unknown.add(counted.note.text, pod.key, counted.note.fix)
        return counted.shares

    def _forget(self, pod: Pod) -> None:
        for uid in self._shares.pop(pod.uid, ()):
            self.ledger.remove_share(uid)

    def _changed(self, name: str) -> None:
        self.ledger.changes.add(name)
        self._rooms.pop(name, None)
        self._open.pop(name, None)
        self.shown.changed(name)

    def _names(self) -> Iterator[str]:
        return chain(self.ledger.nodes(), self.closed)

    def _judging(self, request: Request) -> Judge:
        judge = verdict.judging(request, self.policies, self.unit_mib, self.scarcity)
        return lambda name: judge(self._look(name), name)

    def _look(self, name: str) -> Look:
        account, closed, left = self.ledger.account(name), self.closed.get(name), None
        if account is not None:
            left = left_of(self._room(name), every_of(self._nodes[name]))
        return verdict.look(account, closed, self.unit_mib, left=left)

    def _open_nodes(self) -> Iterator[OpenNode]:
        for name in self.ledger.nodes():
            if name in self.closed:
                continue
            known = self._open.get(name)
            if known is None:
                every = every_of(self._nodes[name])
                cards = FreeCards(self.account(name), left=left_of(self._room(name), every))
                known = self._open[name] = OpenNode.of(name, cards, every, self.use)
            yield known

    def why_kept_off(self, pod: Pod, asked: Amounts, name: str) -> str:
        """Return which of kube-scheduler's own rules excludes the node."""
        node = self._nodes[name]
        rules = node_constraints.why_not(pod, node)
        if rules:
            return rules[0]
        missing = insufficient(self._room(name), asked)
        return TOO_LITTLE + ", ".join(missing) if missing else ""

    def _room(self, name: str) -> Amounts:
        room = self._rooms.get(name)
        if room is None:
            used = self.use.used(name)
            assert used is not None, "the scenario has read all requests"  # noqa: S101
            room = self._rooms[name] = free_resources(self._nodes[name], used, offered=self.offered)
        return room

    def _why_shut(self, name: str) -> str:
        is_cordoned = self._nodes[name].spec.unschedulable
        return self._wrong.get(name) or ("unschedulable" if is_cordoned else "")


def _namespace_of(uid: str) -> str:
    return uid.partition("/")[0]
