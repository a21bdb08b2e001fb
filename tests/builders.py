"""Kubernetes objects for tests, as the API server would send them."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from gpushare.annotations import inventory
from gpushare.cards.model import Card, Health, Inventory
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.objects.model import (
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)

T = TypeVar("T", Node, Pod)


def container(name: str, units: str | int | None, *, sidecar: bool = False) -> Container:
    limits = {} if units is None else {RESOURCE_MEMORY: units}
    return Container(name, Resources(limits, limits), "Always" if sidecar else None)


def pod(
    name: str = "p",
    units: str | int | None = 1,
    *,
    uid: str = "",
    node: str = "",
    phase: str = "Pending",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    containers: Sequence[Container] | None = None,
    inits: Sequence[Container] = (),
) -> Pod:
    meta = ObjectMeta(
        name=name,
        namespace="default",
        uid=uid or f"uid-{name}",
        annotations=dict(annotations or {}),
        labels=dict(labels or {}),
    )
    apps = tuple(containers) if containers is not None else (container("main", units),)
    return Pod(meta, PodSpec(node or None, apps, tuple(inits)), PodStatus(phase=phase))


def cards(*units: int, unhealthy: Sequence[int] = (), prefix: str = "GPU") -> tuple[Card, ...]:
    return tuple(
        Card(
            index=index,
            uuid=f"{prefix}-{index}",
            units=amount,
            health=Health.UNHEALTHY if index in unhealthy else Health.HEALTHY,
            tag=f"a{index}",
            minor=index,
        )
        for index, amount in enumerate(units)
    )


def stock(*units: int, unhealthy: Sequence[int] = (), unit_mib: int = 1) -> Inventory:
    return Inventory(unit_mib, cards(*units, unhealthy=unhealthy), plugin="0.1.0", binding="late")


def node(name: str, *units: int, unhealthy: Sequence[int] = (), unit_mib: int = 1) -> Node:
    """A node of our plugin."""
    found = stock(*units, unhealthy=unhealthy, unit_mib=unit_mib)
    totals = {RESOURCE_MEMORY: str(sum(units)), RESOURCE_COUNT: str(len(units))}
    annotations = {ANNOTATION_INVENTORY: inventory.encode(found)}
    status = NodeStatus(totals, {**totals, "pods": "110"})
    return Node(ObjectMeta(name=name, annotations=annotations), status)


def legacy_node(name: str, total: str | int, count: str | int) -> Node:
    """A node of the ecosystem's older plugin: totals and nothing else."""
    totals = {RESOURCE_MEMORY: total, RESOURCE_COUNT: count}
    return Node(ObjectMeta(name=name), NodeStatus(totals, totals))


def annotated(found: T, annotations: Mapping[str, str], **metadata: object) -> T:
    """The object with these annotations, too, and other ``metadata``."""
    whole = {**found.annotations, **annotations}
    meta = msgspec.structs.replace(found.metadata, annotations=whole, **metadata)
    return msgspec.structs.replace(found, metadata=meta)


def enforcing(found: Node, what: str, why_not_more: str = "") -> Node:
    """The node with cards on which this keeps containers to their share."""
    stated = inventory.decode(found.annotations[ANNOTATION_INVENTORY])
    cards = tuple(replace(card, enforces=what, why_not_more=why_not_more) for card in stated.cards)
    written = inventory.encode(replace(stated, cards=cards))
    return annotated(found, {ANNOTATION_INVENTORY: written})


def run_to_end(steps: Iterable[None]) -> None:
    """Run work that is done in steps."""
    deque(steps, maxlen=0)
