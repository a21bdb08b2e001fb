"""Combine the lists of nodes and pods with an extender's reservations (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpushare.annotations import inventory
from gpushare.answers.inspect import Device, NodeView, view_node
from gpushare.cards.model import Health
from gpushare.objects.model import Node, Pod
from gpusharectl.reach.listed_cluster import ListedCluster

_REASON_LENGTH: Final = 80


class LargestFree(msgspec.Struct):
    """Units of one card, by its index in the node."""

    units: int
    node: str
    card: int


class Summary(msgspec.Struct, rename="camel"):
    """Amounts in units. ``free`` is on GPUs that take new pods: healthy and not cordoned.

    ``waiting`` is the number of Pending pods, None if not all pods were listed.
    """

    nodes: int
    cards: int
    total: int
    used: int
    reserved: int
    free: int
    largest_free: LargestFree | None
    waiting: int | None


class PodPlace(msgspec.Struct):
    """A pod whose node could not be listed; ``cards`` are UUIDs."""

    namespace: str
    name: str
    node: str
    units: int
    cards: list[str]


class Overview(msgspec.Struct, rename="camel"):
    """All that inspect shows.

    ``unit_mib`` is the cluster's unit. ``complete`` is false if some pods could not be listed, so
    that less may be free. ``not_shown`` says what is missing, and why. ``remarks`` by node are
    Kubernetes' own (not ready, unschedulable), and why GPUs are cordoned. ``pods`` is only set if
    nodes could not be listed.
    """

    unit_mib: int = msgspec.field(name="unitMiB")
    complete: bool
    nodes: list[NodeView]
    summary: Summary
    not_shown: list[str]
    remarks: dict[str, list[str]] = {}
    pods: list[PodPlace] = []


def of_lists(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    told: Sequence[NodeView] | None,
    *,
    complete: bool = True,
    not_shown: Iterable[str] = (),
) -> Overview:
    """Return the listed nodes that share GPUs, with the reservations that an extender ``told``.

    ``complete`` if no pod is missing.
    """
    cluster = ListedCluster(nodes, pods)
    views = [
        view_node(cluster.ledger, node.name, cluster.unreadable.get(node.name, ""))
        for node in nodes
    ]
    found = sorted((each for each in views if each is not None), key=lambda each: each.name)
    _add_reservations(found, told or ())
    ours = {each.name: each for each in found}
    listed = {node.name for node in nodes}
    return Overview(
        cluster.unit_mib,
        complete,
        found,
        summary_of(found, cluster.unit_mib, waiting=len(cluster.waiting()) if complete else None),
        list(not_shown),
        {
            node.name: remarks
            for node in nodes
            if node.name in ours and (remarks := _remarks(node, ours[node.name]))
        },
        [
            PodPlace(share.namespace, share.name, share.node, share.units, list(share.cards))
            for share in sorted(cluster.ledger.shares(), key=lambda each: each.pod_key)
            if share.node not in listed
        ],
    )


def of_extender(told: Sequence[NodeView], not_shown: Iterable[str] = ()) -> Overview:
    """Return only what an extender reports, if nothing can be listed."""
    units = Counter(each.unit_mib for each in told if each.unit_mib)
    unit = units.most_common(1)[0][0] if units else 1
    return Overview(unit, True, list(told), summary_of(told, unit), list(not_shown))


def only(overview: Overview, node: str) -> Overview:
    overview.nodes = [each for each in overview.nodes if each.name == node]
    overview.summary = summary_of(overview.nodes, overview.unit_mib)
    return overview


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
    )


def takes_new(card: Device) -> bool:
    return card.health == Health.HEALTHY and not card.cordoned


def _add_reservations(found: Iterable[NodeView], told: Iterable[NodeView]) -> None:
    reserved = {(node.name, card.uuid): card.reserved for node in told for card in node.devices}
    for node in found:
        for card in node.devices:
            card.reserved = reserved.get((node.name, card.uuid), 0)
            card.free = max(0, card.free - card.reserved)


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
