"""Read nodes from documents, with the GPUs that their files or other systems state (pure)."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpushare.annotations import inventory
from gpushare.cards.model import Inventory
from gpushare.cards.reserve import NO_RESERVE, Reserve
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import QuantityError, RecordError, RequestError, SettingsError
from gpushare.objects.model import Node
from gpushare.objects.quantity import parse_units
from gpushare.objects.scheduling import LABEL_HOSTNAME
from gpushare.placement.node_resources import free_resources
from gpushare.process.flags import parse_unit
from gpusharectl.manifests import kubernetes_keys
from gpusharectl.manifests.yaml_lines import Document
from gpusharectl.simulate.documents.short_cards import KEYS, key_in, stock
from gpusharectl.simulate.documents.values import check_keys, convert, name_of, time_of
from gpusharectl.simulate.notes import Notes
from gpusharectl.simulate.other_systems import node_gpus
from gpusharectl.simulate.other_systems.node_gpus import NodeGpus
from gpusharectl.simulate.simulated_cluster import why_no_room

_MOST_GIB: Final = 1024  # of one GPU
_CARDS_ONLY: Final = frozenset({"apiVersion", "kind", "metadata", *KEYS, "unit", "at"})


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """The node from ``at`` (seconds) on; ``gpus`` if it does not share them by memory yet."""

    at: int
    node: Node
    gpus: NodeGpus | None = None


@dataclass(slots=True)
class _Documents:
    """Of one node at one time: its own, and one that only states its GPUs, in any order."""

    node: Document | None = None
    cards: Document | None = None


class NodeDocuments:
    """The nodes by name and time. ``unit_mib`` is the cluster's unit.

    Nodes that do not share their GPUs yet will keep ``reserve`` of each unshared.
    """

    def __init__(self, unit_mib: int, reserve: Reserve) -> None:
        self._unit_mib = unit_mib
        self._reserve = reserve
        self._found: dict[tuple[str, int], _Documents] = {}

    def add(self, doc: Document) -> None:
        """Add a document; SettingsError if it says again what another one says."""
        check_keys(doc, kubernetes_keys.NODE)
        at, name = time_of(doc, "at") or 0, name_of(doc)
        entry = self._found.setdefault((name, at), _Documents())
        if _has_only_cards(doc):
            before, entry.cards = entry.cards, doc
        else:
            before, entry.node = entry.node, doc
        if before is not None:
            raise _twice(doc, name, at)

    def events(self, unknown: Notes) -> Iterator[NodeEvent]:
        """Yield all nodes with their GPUs, and note what is not understood of them.

        Raises SettingsError with file and line if a document is invalid.
        """
        for (name, at), entry in self._found.items():
            doc, cards = entry.node or entry.cards, entry.cards
            assert doc is not None, "a document made the entry"  # noqa: S101
            if key_in(doc) and cards is not None and cards is not doc:
                raise _twice(cards, name, at)
            node = _node(doc, name)
            stated: Inventory | None = None
            if key_in(doc) or cards is not None:
                stated, node = self._with_cards(cards or doc, node)
            elif "unit" in doc.value:
                raise doc.wrong(("unit",), "only together with gpus")
            try:
                free_resources(node)
            except RequestError as err:
                raise doc.wrong(("status", "allocatable"), str(err)) from err
            yield self._event(at, node, stated, unknown)

    def _event(self, at: int, node: Node, stated: Inventory | None, unknown: Notes) -> NodeEvent:
        if (others := node_gpus.other_gpus(node)) is not None:
            unknown.add(others.text, node.name, others.fix)
        if stated is not None:
            return NodeEvent(at, node, node_gpus.given(node, stated))
        if ANNOTATION_INVENTORY in node.annotations or _offers_memory(node):
            return NodeEvent(at, node)
        found = node_gpus.read(node, self._unit_mib)
        for note in found.notes:
            unknown.add(note.text, node.name, note.fix)
        if found.gpus is None:
            return NodeEvent(at, node)
        if why := why_no_room(node):
            unknown.add(f"{why}: no room is counted there for more pods", node.name)
        shared = _less(found.gpus.inventory, self._reserve)
        return NodeEvent(at, _with_inventory(node, shared), found.gpus)

    def _with_cards(self, doc: Document, node: Node) -> tuple[Inventory, Node]:
        """Return the stated GPUs, and the node with what its plugin would write on it."""
        if ANNOTATION_INVENTORY in node.annotations:
            raise doc.wrong((key_in(doc),), f"not together with annotation {ANNOTATION_INVENTORY}")
        found = stock(doc, node.name, unit_of(doc) or self._unit_mib)
        return found, _with_inventory(node, found)


def _has_only_cards(doc: Document) -> bool:
    metadata = doc.value.get("metadata")
    names = set(metadata) if isinstance(metadata, dict) else set()
    return key_in(doc) != "" and names == {"name"} and set(doc.value) <= _CARDS_ONLY


def _twice(doc: Document, name: str, at: int) -> SettingsError:
    return doc.wrong(("metadata", "name"), f"node {name} is defined twice at {at}s")


def _node(doc: Document, name: str) -> Node:
    """Return the node with the defaults that the API server and the kubelet set."""
    value = {key: doc.value.get(key) or {} for key in ("metadata", "spec", "status")}
    node = convert(doc, (), value, Node)
    status = node.status
    if status.allocatable is None:
        status = replace(status, allocatable=status.capacity)
    labels = {LABEL_HOSTNAME: name, **node.labels}
    return replace(node, metadata=replace(node.metadata, labels=labels), status=status)


def unit_of(doc: Document) -> int | None:
    """Return a node's unit in MiB, by its inventory or by the file's ``unit``."""
    if doc.value.get("kind") != "Node":
        return None
    if "unit" in doc.value:
        text = doc.value["unit"]
        try:
            return parse_unit(text if isinstance(text, str) else repr(text))
        except SettingsError as err:
            wanted = "write GiB, MiB or for example 256MiB"
            raise doc.wrong(("unit",), f"{text!r:.40}: {wanted}") from err
    metadata = doc.value.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(ANNOTATION_INVENTORY) if isinstance(annotations, dict) else None
    if not isinstance(text, str):
        return None
    try:
        return inventory.decode(text).unit_mib
    except RecordError:
        return None  # shown as the reason why the node takes no pods


def has_large_gpus(doc: Document) -> bool:
    """Return whether a node has more units of each GPU, by its amounts, than any GPU has GiB."""
    status = doc.value.get("status")
    capacity = status.get("capacity") if isinstance(status, dict) else None
    if doc.value.get("kind") != "Node" or not isinstance(capacity, dict):
        return False
    try:
        units, gpus = (
            parse_units(capacity.get(key, 0)) for key in (RESOURCE_MEMORY, RESOURCE_COUNT)
        )
    except (QuantityError, TypeError):
        return False  # told when the node is added
    return gpus > 0 and units > _MOST_GIB * gpus


def _offers_memory(node: Node) -> bool:
    """Return whether the node shares GPUs by memory; the kubelet leaves 0 of a removed plugin."""
    try:
        return parse_units(node.capacity.get(RESOURCE_MEMORY, 0)) > 0
    except QuantityError:
        return True  # shown as the reason why the node takes no pods


def _less(found: Inventory, reserve: Reserve) -> Inventory:
    """Return what is offered of the GPUs if each keeps ``reserve`` of its memory."""
    if reserve is NO_RESERVE:
        return found
    cards = (
        dataclasses.replace(
            card, units=max(0, card.memory_mib - reserve.of(card.memory_mib)) // found.unit_mib
        )
        for card in found.cards
    )
    return dataclasses.replace(found, cards=tuple(cards), reserve=reserve.text)


def _with_inventory(node: Node, found: Inventory) -> Node:
    """Return the node with what its plugin would write on it."""
    healthy = sum(card.units for card in found.cards if card.is_healthy)
    total, count = sum(card.units for card in found.cards), {RESOURCE_COUNT: len(found.cards)}
    capacity = {**node.capacity, RESOURCE_MEMORY: total, **count}
    allocatable = {**node.allocatable, RESOURCE_MEMORY: healthy, **count}
    annotations = {**node.annotations, ANNOTATION_INVENTORY: inventory.encode(found)}
    return replace(
        node,
        metadata=replace(node.metadata, annotations=annotations),
        status=replace(node.status, capacity=capacity, allocatable=allocatable),
    )
