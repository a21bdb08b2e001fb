"""What follows from nodes that share their GPUs, and from the plugins there (pure)."""

from collections.abc import Iterable
from typing import Final

from gpushare.annotations import inventory
from gpushare.cards.model import Inventory
from gpushare.contract import ANNOTATION_INVENTORY, LABEL_NODE, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import QuantityError, RecordError
from gpushare.objects.model import Node
from gpushare.objects.quantity import parse_units
from gpusharectl.doctor.facts.cluster import PLUGIN, Facts
from gpusharectl.doctor.facts.seen import SeenPod

SHARED: Final = f"{LABEL_NODE}=true"


def is_shared(node: Node) -> bool:
    return node.labels.get(LABEL_NODE) == "true"


def shared_nodes(facts: Facts) -> list[Node]:
    return [node for node in facts.nodes if is_shared(node)]


def units_of(state: dict[str, str | int], resource: str = RESOURCE_MEMORY) -> int:
    """Return an amount of a node's status; 0 if it is missing or invalid."""
    try:
        return parse_units(state.get(resource, 0))
    except QuantityError:
        return 0


def is_of_older(node: Node) -> bool:
    """Return true if the node's GPU memory is Aliyun gpushare's.

    What a kubelet leaves of a plugin that ended is not allocatable and has no ``gpu-count``.
    """
    is_there = units_of(node.capacity) > 0 and ANNOTATION_INVENTORY not in node.annotations
    return is_there and bool(units_of(node.allocatable) or units_of(node.capacity, RESOURCE_COUNT))


def cards_of(node: Node) -> Inventory | None:
    """Return a node's inventory; None if it is missing or unreadable."""
    try:
        text = node.annotations.get(ANNOTATION_INVENTORY)
        return None if text is None else inventory.decode(text)
    except RecordError:
        return None


def inventories(nodes: Iterable[Node]) -> dict[str, Inventory]:
    """Return the readable inventories, by node."""
    return {node.name: found for node in nodes if (found := cards_of(node)) is not None}


def plugins_by_node(facts: Facts) -> dict[str, list[SeenPod]]:
    found: dict[str, list[SeenPod]] = {}
    for pod in facts.pods_of(PLUGIN):
        found.setdefault(pod.node, []).append(pod)
    return found
