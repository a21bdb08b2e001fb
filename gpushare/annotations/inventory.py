"""Encode and decode a node's inventory annotation, which the device plugin writes (pure)."""

import sys
from dataclasses import replace
from typing import Final

import msgspec

from gpushare.cards import placement_policy
from gpushare.cards.model import Card, Health, Inventory
from gpushare.contract import (
    ANNOTATION_CORDON_REASONS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INVENTORY,
    INVENTORY_VERSION,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import QuantityError, RecordError
from gpushare.objects.model import Node
from gpushare.objects.quantity import MOST_NODE_UNITS, parse_units

MOST_UNIT_MIB: Final = 2**20  # no card has a TiB
MAX_LEGACY_CARDS: Final = 1024  # far above any machine: a wrong count must not exhaust memory


class _Card(msgspec.Struct, rename="camel", omit_defaults=True):
    index: int
    uuid: str
    tag: str
    minor: int
    model: str
    memory_mib: int = msgspec.field(name="memMiB")
    units: int
    health: Health
    gone_since: int = 0
    enforces: str = ""
    why_not_more: str = ""


class _Inventory(msgspec.Struct, omit_defaults=True):
    version: int
    unit_mib: int = msgspec.field(name="unitMiB")
    plugin: str
    binding: str
    cards: list[_Card]
    injection: str = ""
    runtime_classes: list[str] = msgspec.field(name="runtimeClasses", default_factory=list)
    leaving: bool = False
    next_index: int = msgspec.field(name="nextIndex", default=0)
    reserve: str = ""


def encode(inventory: Inventory) -> str:
    return msgspec.json.encode(
        _Inventory(
            version=INVENTORY_VERSION,
            unit_mib=inventory.unit_mib,
            plugin=inventory.plugin,
            binding=inventory.binding,
            cards=[msgspec.convert(card, _Card, from_attributes=True) for card in inventory.cards],
            injection=inventory.injection,
            runtime_classes=sorted(inventory.runtime_classes),
            leaving=inventory.is_leaving,
            next_index=inventory.next_index,
            reserve=inventory.reserve,
        )
    ).decode()


def decode(text: str) -> Inventory:
    """Return the inventory in an annotation; raise RecordError if it cannot be read."""
    try:
        wire = msgspec.json.decode(text, type=_Inventory)
    except (msgspec.DecodeError, RecursionError) as err:
        raise RecordError(f"annotation {ANNOTATION_INVENTORY} cannot be read: {err}") from err
    if wire.version != INVENTORY_VERSION:
        raise RecordError(
            f"annotation {ANNOTATION_INVENTORY} has version {wire.version}, this program reads "
            f"{INVENTORY_VERSION}: upgrade the extender first, then the plugins"
        )
    if not 0 < wire.unit_mib <= MOST_UNIT_MIB or any(
        not 0 <= card.units <= MOST_NODE_UNITS or card.index < 0 or not card.uuid
        for card in wire.cards
    ):
        raise RecordError(
            f"annotation {ANNOTATION_INVENTORY} has numbers that are impossible for a GPU"
        )
    cards = tuple(_card(each) for each in sorted(wire.cards, key=lambda card: card.index))
    if len(cards) > min(len({card.index for card in cards}), len({card.uuid for card in cards})):
        raise RecordError(f"annotation {ANNOTATION_INVENTORY} lists a GPU twice")
    return Inventory(
        wire.unit_mib,
        cards,
        plugin=wire.plugin,
        binding=wire.binding,
        injection=wire.injection,
        runtime_classes=frozenset(wire.runtime_classes),
        is_leaving=wire.leaving,
        next_index=wire.next_index,
        reserve=wire.reserve,
    )


def _card(wire: _Card) -> Card:
    # The same text, kept once for the cards of all nodes.
    wire.enforces, wire.why_not_more = sys.intern(wire.enforces), sys.intern(wire.why_not_more)
    return Card(**msgspec.structs.asdict(wire))


def of_node(node: Node, unit_mib: int) -> Inventory | None:
    """Return the cards of ``node``; None if it reports none.

    A node without our annotation is read as Aliyun gpushare's device plugin reports it:
    ``gpu-count`` equal cards of ``gpu-mem / gpu-count`` units of ``unit_mib``. The kubelet's
    allocatable is not used: it falls when one card is unhealthy, and every card would look smaller.

    Raises RecordError if the annotation or a total cannot be read.
    """
    text = node.annotations.get(ANNOTATION_INVENTORY)
    if text is not None:
        return decode(text)
    if RESOURCE_MEMORY not in node.capacity:
        return None
    try:
        total = parse_units(node.capacity[RESOURCE_MEMORY])
        count = parse_units(node.capacity.get(RESOURCE_COUNT, 0))
    except QuantityError as err:
        raise RecordError(f"node status has an unusable total: {err}") from err
    if not total or not count:
        return None
    if total > MOST_NODE_UNITS:
        raise RecordError(f"node status says {RESOURCE_MEMORY} {total}: more than any machine has")
    if count > MAX_LEGACY_CARDS:
        raise RecordError(f"node status says {RESOURCE_COUNT} {count}: more than any machine has")
    cards = tuple(
        Card(index=minor, uuid=f"minor-{minor}", units=total // count, minor=minor)
        for minor in range(count)
    )
    return Inventory(unit_mib, cards, is_legacy=True)


def with_cordons(found: Inventory, node: Node) -> Inventory:
    """Return ``found`` with the cards marked that the node's annotation cordons.

    Raises RecordError if the annotation names a card that the node does not have: after a typing
    error, the intended card would still take new pods.
    """
    text = node.annotations.get(ANNOTATION_CORDONED_CARDS)
    if text is None:
        return found
    cordoned = placement_policy.parse_names(text)
    unknown = sorted(cordoned - {card.uuid for card in found.cards})
    if unknown:
        raise RecordError(
            f"annotation {ANNOTATION_CORDONED_CARDS} names {unknown[0][:63]!r}, which is no GPU "
            "of the node: write UUIDs of its GPUs, separated by commas"
        )
    cards = tuple(replace(card, is_cordoned=card.uuid in cordoned) for card in found.cards)
    return replace(found, cards=cards)


def cordon_reasons(node: Node) -> dict[str, str]:
    """Return the reasons for cordons by UUID, for people; empty if they cannot be read."""
    text = node.annotations.get(ANNOTATION_CORDON_REASONS)
    try:
        return msgspec.json.decode(text, type=dict[str, str]) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
