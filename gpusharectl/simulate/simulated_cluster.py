"""A cluster in memory, and where a pod is placed in it (pure).

gpushare.placement decides and gpushare.ledger counts, as in the extender. Of kube-scheduler's own
rules only those in gpushare.placement apply: taints, selectors, required node affinity, amounts.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpushare.annotations import pod_annotations
from gpushare.cards.model import Card, Request
from gpushare.ledger.holds import NodeResources
from gpushare.ledger.ledger import Ledger, NodeAccount
from gpushare.objects.model import Node, Pod
from gpushare.placement import card_choice, node_constraints, verdict
from gpushare.placement.card_choice import why_not_card
from gpushare.placement.fragmentation import fragmentation
from gpushare.placement.node_resources import Amounts, free_resources, insufficient, requests_of
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.verdict import Verdict
from gpushare.placement.verdict_cache import VerdictCache
from gpusharectl.simulate import view

NODES_SHOWN: Final = 5  # of those on which a Pending pod does not fit
# Not checked if the node does not state its amount.
UNSTATED: Final = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})


class _Sum(NamedTuple):
    """A node's part of the sums; ``free`` by card, ``wanted`` by pod and card."""

    units: int
    used: int
    free: tuple[int, ...]
    wanted: tuple[int, ...]


class _Why(NamedTuple):
    """Why a pod does not fit on a node; sorts by how near it comes to fitting."""

    is_kept_off: bool
    free: int  # of the GPU with most, negated
    name: str
    text: str


@dataclass(slots=True)
class Reasons:
    """By node, why pods with equal requests are Pending, after the change ``seen``."""

    seen: int = 0
    nodes: dict[str, _Why] = field(default_factory=dict)


class SimulatedCluster:
    """``unit_mib`` is the cluster's unit; ``policies`` apply to pods without their own."""

    def __init__(self, unit_mib: int, policies: Policies) -> None:
        self.unit_mib, self.policies = unit_mib, policies
        self.ledger = Ledger()
        self.closed: dict[str, Reason] = {}
        self._wrong: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # bound ones, by node and uid
        self._rooms: dict[str, Amounts] = {}
        self._views: dict[str, view.Node] = {}
        self._sums: dict[str, _Sum] = {}
        self._index = VerdictCache(self.ledger.changes, self._names, self._judge)

    def put_node(self, node: Node) -> None:
        """Add or replace a node; its pods stay."""
        name = node.name
        self._nodes[name] = node
        found, wrong, closed = verdict.cards_of(node, self.unit_mib)
        self._wrong[name] = wrong
        self.closed.pop(name, None)
        if closed is not None:
            self.closed[name] = closed
        self.ledger.set_inventory(name, found)
        self._changed(name)
        for pod in self._pods.get(name, {}).values():
            self._count(pod)

    def bind(self, pod: Pod) -> None:
        self._pods.setdefault(pod.node, {})[pod.uid] = pod
        self._changed(pod.node)
        self._count(pod)

    def remove(self, pod: Pod) -> None:
        self._pods[pod.node].pop(pod.uid, None)
        self.ledger.remove_share(pod.uid)
        self._changed(pod.node)

    def place(self, pod: Pod) -> Pod | None:
        """Bind the pod to the best node; return it with its decision, None if it does not fit.

        Raises RequestError if no node can ever grant its request.
        """
        request = verdict.request_of(pod, self.policies)
        asked = requests_of(pod)
        for _, _, _, name in self._index.of(request).ranks:
            if self._why_kept_off(pod, asked, name):
                continue
            chosen = card_choice.choose(self._account(name), request, self.policies.card)
            assert chosen is not None, "a node that fits has cards"  # noqa: S101
            bound = self._decided(pod, name, request, chosen)
            self.bind(bound)
            return bound
        return None

    def knows(self, node: str) -> bool:
        return node in self._nodes

    def cards_of(self, pod: Pod) -> tuple[int, ...]:
        """Return the indexes of a bound pod's GPUs."""
        share, stock = self.ledger.share(pod.uid), self.ledger.inventory(pod.node)
        if share is None or stock is None:
            return ()
        return tuple(card.index for card in stock.cards if card.uuid in share.cards)

    def units_of(self, pod: Pod) -> int:
        """Return what a bound pod uses of each of its GPUs."""
        share = self.ledger.share(pod.uid)
        return share.units if share is not None else 0

    def sharing(self) -> list[str]:
        """Return the names of the nodes that share GPUs, or try to, in order."""
        return sorted({*self.ledger.nodes(), *self.closed})

    def nodes(self, touched: Iterable[str] = ()) -> tuple[view.Node, ...]:
        """Return every node that shares GPUs, or tries to, with all its GPUs."""
        here = set(touched)
        found = []
        for name in self.sharing():
            made = self._views.get(name)
            if made is None:
                made = self._views[name] = self._view(name)
            found.append(replace(made, touched=True) if name in here else made)
        return tuple(found)

    def why_waits(
        self, pod: Pod, waiting: tuple[view.WaitingPod, ...], before: Reasons
    ) -> view.Waiting:
        """Explain by node and GPU why pods like this one are Pending; may raise RequestError.

        ``before`` has the previous reasons, and is updated.
        """
        request = verdict.request_of(pod, self.policies)
        self._update(before, pod, request)
        reasons = Counter(each.text for each in before.nodes.values())
        nearest = heapq.nsmallest(NODES_SHOWN, before.nodes.values())
        return view.Waiting(
            pods=waiting,
            priority=pod.priority,
            units=request.units,
            cards=request.card_count,
            units_per_card=request.units_per_card,
            says="",
            reasons=dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0]))),
            nodes=tuple(self._node_why(each.name, each.text, request) for each in nearest),
            nodes_left_out=len(before.nodes) - len(nearest),
        )

    def _update(self, before: Reasons, pod: Pod, request: Request) -> None:
        changes = self.ledger.changes
        changed = changes.since(before.seen) if before.nodes else None
        verdicts, asked = self._index.of(request), requests_of(pod)
        for name in self.sharing() if changed is None else changed:
            account = self.ledger.account(name)
            if account is None and name not in self.closed:
                before.nodes.pop(name, None)
                continue
            kept_off = self._why_kept_off(pod, asked, name)
            largest = account.largest_free[0] if account and account.largest_free else 0
            found = "" if name in verdicts.fits else verdicts.rejected.get(name, NO_CARDS).text
            before.nodes[name] = _Why(bool(kept_off), -largest, name, kept_off or found)
        before.seen = changes.now

    def sums(self) -> tuple[int, int, int, float]:
        """Return units, used units, the most free on one usable GPU, and fragmentation."""
        free: Counter[int] = Counter()
        wanted: Counter[int] = Counter()
        units = used = 0
        for name in self.ledger.nodes():
            here = self._sums.get(name)
            if here is None:
                here = self._sums[name] = self._sum(name)
            units += here.units
            used += here.used
            free.update(here.free)
            wanted.update(here.wanted)
        return units, used, max(free, default=0), round(fragmentation(free, wanted), 4)

    def _sum(self, name: str) -> _Sum:
        account = self._account(name)
        return _Sum(
            sum(entry.card.units for entry in account.cards),
            sum(entry.card.units - entry.free for entry in account.cards),
            account.largest_free,
            tuple(s.units for s in self.ledger.shares(name) if not s.is_unplaced),
        )

    def _account(self, name: str) -> NodeAccount:
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
        share = pod_annotations.share_of(pod, self.ledger.inventory(pod.node))
        if share is not None:
            self.ledger.put_share(share)

    def _changed(self, name: str) -> None:
        self.ledger.changes.add(name)
        self._rooms.pop(name, None)
        self._views.pop(name, None)
        self._sums.pop(name, None)

    def _names(self) -> Iterator[str]:
        return chain(self.ledger.nodes(), self.closed)

    def _judge(self, name: str, request: Request) -> Verdict:
        look = verdict.look(self.ledger.account(name), self.closed.get(name), self.unit_mib)
        return verdict.decide(look, request, self.policies, self.unit_mib, name)

    def _why_kept_off(self, pod: Pod, asked: Amounts, name: str) -> str:
        """Return which of kube-scheduler's own rules excludes the node."""
        node = self._nodes[name]
        rules = node_constraints.why_not(pod, node)
        if rules:
            return rules[0]
        room = self._rooms.get(name)
        if room is None:
            room = free_resources(node, self._pods.get(name, {}).values(), NodeResources())
            self._rooms[name] = room
        short = insufficient(room, asked)
        missing = [each for each in short if each in node.allocatable or each not in UNSTATED]
        return f"node has too little allocatable left of {', '.join(missing)}" if missing else ""

    def _node_why(self, name: str, text: str, request: Request) -> view.NodeWhy:
        account = self.ledger.account(name)
        if account is None:
            return view.NodeWhy(name, text, ())
        found = []
        for entry in account.cards:
            reason = why_not_card(account, entry, request, self.unit_mib)
            why = reason.text if reason is not None else ""
            found.append(view.CardWhy(entry.card.index, entry.free, why))
        return view.NodeWhy(name, text, tuple(found))

    def _view(self, name: str) -> view.Node:
        # In order of arrival: each keeps its place in the bar.
        shares = list(self.ledger.shares(name))
        account = self.ledger.account(name)
        node = self._nodes[name]
        closed = self._wrong.get(name) or ("unschedulable" if node.spec.unschedulable else "")
        found = []
        for entry in account.cards if account is not None else ():
            here = [share for share in shares if entry.card.uuid in share.cards]
            found.append(
                view.Card(
                    index=entry.card.index,
                    uuid=entry.card.uuid,
                    model=entry.card.model,
                    health=entry.card.health.value,
                    cordoned=entry.card.is_cordoned,
                    units=entry.card.units,
                    used=entry.used,
                    free=entry.free,
                    pods=tuple(view.Share(s.namespace, s.name, s.units) for s in here),
                )
            )
        unplaced = [
            view.Unplaced(s.namespace, s.name, s.units, s.why_unplaced)
            for s in shares
            if s.is_unplaced
        ]
        return view.Node(
            name=name,
            units=sum(card.units for card in found),
            used=sum(card.units - card.free for card in found),
            closed=closed,
            touched=False,
            cards=tuple(found),
            unplaced=tuple(unplaced),
        )
