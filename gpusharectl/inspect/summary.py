"""What inspect shows, from lists of nodes and pods and from what an extender tells (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpushare.annotations import inventory
from gpushare.answers.inspect import Device, NodeView, view_node
from gpushare.cards.model import Health
from gpushare.objects.model import Node, Pod
from gpusharectl.reach.listed_cluster import Seen

_REASON_SIGNS: Final = 80


class LargestFree(msgspec.Struct):
    """Units of one card, by its index in the node."""

    units: int
    node: str
    card: int


class Summary(msgspec.Struct, rename="camel"):
    """Units. ``free`` is of cards that take new pods: healthy, not cordoned, their node readable.

    ``waiting`` is the number of pods without a node, None where pods were not listed.
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
    """A pod whose node could not be seen; ``cards`` are UUIDs."""

    namespace: str
    name: str
    node: str
    units: int
    cards: list[str]


class Sight(msgspec.Struct, rename="camel"):
    """What there is to show.

    ``unit_mib`` is the cluster's unit. ``complete``: false where pods could not be seen, so that
    less may be free than is said. ``not_shown`` says what is missing, and why. ``remarks`` by node
    are Kubernetes' own (not ready, unschedulable), and why cards are cordoned. ``pods``: only where
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
) -> Sight:
    """What lists show, with the reserves that an extender told; ``complete`` if no pod is missing.

    All nodes that are listed are shown if they share GPUs.
    """
    seen = Seen(nodes, pods)
    views = [
        view_node(seen.ledger, node.name, seen.unreadable.get(node.name, "")) for node in nodes
    ]
    found = sorted((each for each in views if each is not None), key=lambda each: each.name)
    _add_reserves(found, told or ())
    ours = {each.name: each for each in found}
    listed = {node.name for node in nodes}
    return Sight(
        seen.unit_mib,
        complete,
        found,
        summary_of(found, seen.unit_mib, waiting=len(seen.waiting()) if complete else None),
        list(not_shown),
        {
            node.name: remarks
            for node in nodes
            if node.name in ours and (remarks := _remarks(node, ours[node.name]))
        },
        [
            PodPlace(share.namespace, share.name, share.node, share.units, list(share.cards))
            for share in sorted(seen.ledger.shares(), key=lambda each: each.pod_key)
            if share.node not in listed
        ],
    )


def of_extender(told: Sequence[NodeView], not_shown: Iterable[str] = ()) -> Sight:
    """What an extender tells, where the API server shows nothing."""
    units = Counter(each.unit_mib for each in told if each.unit_mib)
    unit = units.most_common(1)[0][0] if units else 1
    return Sight(unit, True, list(told), summary_of(told, unit), list(not_shown))


def only(sight: Sight, node: str) -> Sight:
    """The same of one node."""
    sight.nodes = [each for each in sight.nodes if each.name == node]
    sight.summary = summary_of(sight.nodes, sight.unit_mib)
    return sight


def summary_of(nodes: Sequence[NodeView], unit_mib: int, *, waiting: int | None = None) -> Summary:
    """What all nodes have together; of those that count in another unit only their number."""
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


def _add_reserves(found: Iterable[NodeView], told: Iterable[NodeView]) -> None:
    reserved = {(node.name, card.uuid): card.reserved for node in told for card in node.devices}
    for node in found:
        for card in node.devices:
            card.reserved = reserved.get((node.name, card.uuid), 0)
            card.free = max(0, card.free - card.reserved)


def _remarks(node: Node, view: NodeView) -> list[str]:
    """What Kubernetes itself says against the node, and why its operator cordoned cards."""
    conditions = node.status.conditions or ()
    is_ready = any(each.type == "Ready" and each.status == "True" for each in conditions)
    found = [] if is_ready else ["not ready"]
    if node.spec.unschedulable:
        found.append("unschedulable")
    reasons = inventory.cordon_reasons(node)
    return found + [
        f"card {card.id} is cordoned: {reason}"
        for card in view.devices
        if card.cordoned and (reason := _plain(reasons.get(card.uuid, "")))
    ]


def _plain(text: str) -> str:
    """A line that moves no cursor."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())[:_REASON_SIGNS]
