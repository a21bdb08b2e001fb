"""Combine the lists of nodes and pods with an extender's reservations (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec

from gpushare.annotations import inventory
from gpushare.answers.gangs import NO_GANGS, GangStates
from gpushare.answers.inspect import Device, NodeView, view_node
from gpushare.answers.queue.entries import NO_QUEUE, QueueStates
from gpushare.cards.model import Health
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import HOLD_PRIORITY, Claim, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Node, Pod
from gpusharectl.inspect import namespaces
from gpusharectl.inspect.namespaces import NamespaceUse
from gpusharectl.inspect.waiting import (
    MOST_SENTENCES,
    WaitingPod,
    waiting_pods,
    with_nodes,
    without_others,
)
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.pod_events import Said

_REASON_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class Scope:
    """What is asked for: one node or all, the pods of one namespace or all.

    At most so many different ``sentences`` say why pods are Pending, the longest waiting first.
    """

    node: str = ""
    namespace: str = ""
    sentences: int = MOST_SENTENCES


@dataclass(frozen=True, slots=True)
class Listed:
    """``nodes`` or ``pods`` are None without the right to list them.

    ``pods_of`` is the only namespace whose pods could be listed; empty for all. ``missing`` says
    what could not be listed, and why. ``said`` is then why pods are Pending, by uid, from Events.
    """

    nodes: list[Node] | None
    pods: list[Pod] | None
    pods_of: str = ""
    missing: tuple[str, ...] = ()
    said: Mapping[str, Said] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.nodes is not None and self.pods is not None and not self.pods_of


class LargestFree(msgspec.Struct):
    """Units of one card, by its index in the node."""

    units: int
    node: str
    card: int


class Summary(msgspec.Struct, rename="camel"):
    """Amounts in units. ``free`` is on GPUs that take new pods: healthy and not cordoned.

    Units that are ``claimed`` may be used too. ``waiting`` is the number of Pending pods, None if
    they are not known.
    """

    nodes: int
    cards: int
    total: int
    used: int
    reserved: int
    free: int
    largest_free: LargestFree | None
    waiting: int | None
    claimed: int = 0


class PodPlace(msgspec.Struct):
    """A pod whose node could not be listed; ``cards`` are UUIDs."""

    namespace: str
    name: str
    node: str
    units: int
    cards: list[str]


class Overview(msgspec.Struct, rename="camel"):
    """All that inspect shows.

    ``unit_mib`` is the cluster's unit, None if nodes could not be listed. ``namespace`` is the one
    asked for, empty for all. Unless ``complete``, nodes or pods could not be listed, so that less
    may be free, and there is no ``summary``. ``namespaces`` is None if the pods asked for could not
    all be listed. ``waiting`` are Pending pods, None if they are not known. ``not_shown`` says what
    is missing, and why. ``remarks`` by node are Kubernetes' own (not ready, unschedulable), and why
    GPUs are cordoned. ``pods`` is only set if nodes could not be listed. ``gangs`` are
    sentences about the gangs of Pending pods, by NAMESPACE/NAME.
    """

    unit_mib: int | None = msgspec.field(name="unitMiB")
    complete: bool
    namespace: str
    nodes: list[NodeView]
    summary: Summary | None
    namespaces: list[NamespaceUse] | None
    waiting: list[WaitingPod] | None
    not_shown: list[str]
    remarks: dict[str, list[str]] = {}
    pods: list[PodPlace] = []
    gangs: dict[str, str] = {}


def of_lists(
    found: Listed,
    told: Sequence[NodeView] | None = (),
    scope: Scope = Scope(),
    *,
    not_shown: Iterable[str] = (),
    gangs: GangStates = NO_GANGS,
    queue: QueueStates = NO_QUEUE,
) -> Overview:
    """Return the listed nodes that share GPUs, with what an extender ``told`` to be kept."""
    nodes = found.nodes or []
    cluster = ListedCluster(nodes, found.pods or [])
    cluster.gangs, cluster.queue = gangs, queue
    views = [
        view_node(cluster.ledger, node.name, cluster.unreadable.get(node.name, ""))
        for node in nodes
    ]
    shown = sorted((each for each in views if each is not None), key=lambda each: each.name)
    _add_reservations(cluster.ledger, shown, told or ())
    listed = {node.name for node in nodes}
    places = [
        PodPlace(share.namespace, share.name, share.node, share.units, list(share.cards))
        for share in sorted(cluster.ledger.shares(), key=lambda each: each.pod_key)
        if share.node not in listed
    ]
    unit = cluster.unit_mib if found.nodes is not None else None
    waiting: list[WaitingPod] | None = None
    if found.pods is not None and not scope.node:  # with a node, only the pods on it are listed
        asked_about = [
            pod for pod in cluster.waiting() if scope.namespace in {"", pod.metadata.namespace}
        ]
        alone = without_others(unit or 0, found.said)
        why = with_nodes(cluster, scope.sentences) if found.complete else alone
        waiting = waiting_pods(asked_about, why)
    overview = Overview(
        unit,
        found.complete,
        scope.namespace,
        shown,
        None,
        None,
        waiting,
        [*found.missing, *not_shown],
        pods=places,
        gangs=_gangs(gangs, waiting or ()),
    )
    asked_for = found.pods is not None and found.pods_of in {"", scope.namespace}
    _sum_up(overview, scope, can_sum=found.nodes is not None and asked_for)
    ours = {each.name: each for each in overview.nodes}
    overview.remarks = {
        node.name: remarks
        for node in nodes
        if node.name in ours and (remarks := _remarks(node, ours[node.name]))
    }
    return overview


def _gangs(states: GangStates, waiting: Iterable[WaitingPod]) -> dict[str, str]:
    named = {f"{each.namespace}/{each.gang}" for each in waiting if each.gang}
    views = ((f"{each.namespace}/{each.name}", each.text) for each in states.views())
    return {name: text for name, text in views if name in named}


def of_extender(
    told: Sequence[NodeView],
    not_shown: Iterable[str] = (),
    scope: Scope = Scope(),
) -> Overview:
    """Return only what an extender reports, if nothing can be listed."""
    units = Counter(each.unit_mib for each in told if each.unit_mib)
    unit = units.most_common(1)[0][0] if units else None
    nodes = [each for each in told if scope.node in {"", each.name}]
    overview = Overview(unit, True, scope.namespace, nodes, None, None, None, list(not_shown))
    _sum_up(overview, scope, can_sum=True)
    return overview


def _sum_up(overview: Overview, scope: Scope, *, can_sum: bool) -> None:
    """Add the sums, and restrict the overview to the namespace that is asked for."""
    unit, waiting = overview.unit_mib or 0, overview.waiting
    sums = namespaces.sums(overview.nodes, unit, waiting) if can_sum else None
    if scope.namespace:
        overview.nodes = namespaces.only(overview.nodes, scope.namespace)
        overview.pods = [each for each in overview.pods if each.namespace == scope.namespace]
        if sums is not None:
            sums = [namespaces.of(sums, scope.namespace, waiting)]
    overview.namespaces = sums
    if overview.complete:
        count = len(waiting) if waiting is not None else None
        overview.summary = summary_of(overview.nodes, unit, waiting=count)


def summary_of(nodes: Sequence[NodeView], unit_mib: int, *, waiting: int | None = None) -> Summary:
    """Sum up all nodes with the cluster's unit; count the others."""
    counted = [node for node in nodes if node.unit_mib == unit_mib]
    cards = [(node, card) for node in counted for card in node.devices]
    free = [
        (card.free, node.name, card.id)
        for node, card in cards
        if takes_new(card) and not node.problem
    ]
    largest = max(free, key=lambda each: each[0], default=None)
    return Summary(
        nodes=len(nodes),
        cards=sum(len(node.devices) for node in nodes),
        total=sum(card.total for _, card in cards),
        used=sum(node.used for node in counted),
        reserved=sum(card.reserved for _, card in cards),
        free=sum(units for units, *_ in free),
        largest_free=LargestFree(*largest) if largest is not None and largest[0] else None,
        waiting=waiting,
        claimed=sum(card.claimed for _, card in cards),
    )


def takes_new(card: Device) -> bool:
    return card.health == Health.HEALTHY and not card.cordoned


def _add_reservations(ledger: Ledger, found: Iterable[NodeView], told: Iterable[NodeView]) -> None:
    """Add what an extender ``told`` to the views, and to the ledger for the sentences."""
    cards = {(node.name, card.uuid): card for node in told for card in node.devices}
    for node in found:
        for card in node.devices:
            other = cards.get((node.name, card.uuid))
            if other is None:
                continue
            card.reserved, card.claimed = other.reserved, other.claimed
            card.free = max(0, card.free - card.reserved - card.claimed)
            uid = f"{node.name}/{card.uuid}"  # of no pod: whose these are is not told
            if card.reserved:
                ledger.reserve(Reserve(uid, "", "", node.name, (card.uuid,), card.reserved, 0))
            if card.claimed:
                slot = Slot(node.name, (card.uuid,), card.claimed)
                ledger.keep(Claim(uid, (slot,), inf, HOLD_PRIORITY))


def _remarks(node: Node, view: NodeView) -> list[str]:
    """Return Kubernetes' own objections to the node, and why GPUs are cordoned."""
    conditions = node.status.conditions or ()
    is_ready = any(each.type == "Ready" and each.status == "True" for each in conditions)
    found = [] if is_ready else ["not ready"]
    if node.spec.unschedulable:
        found.append("unschedulable")
    reasons = inventory.cordon_reasons(node)
    return found + [
        f"GPU {card.id} is cordoned: {reason}"
        for card in view.devices
        if card.cordoned and (reason := _plain(reasons.get(card.uuid, "")))
    ]


def _plain(text: str) -> str:
    """Return one line without control characters."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())[:_REASON_LENGTH]
