"""Builds the cluster on which throughput is measured: paper nodes with cards, filled with pods.

Paper nodes are Node objects without a kubelet: pods are bound to them and never start, so that
nothing but scheduling is measured.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.apiserver import PODS, ApiServer
from gpushare.annotations import inventory, pod_annotations
from gpushare.cards.model import Card, ContainerRequest, Inventory, Request
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.kube.client import MERGE_PATCH

CARD_UNITS: Final = 80
HELD: Final = (2, 12)  # units of a pod that was there before
ASKED: Final = (4, 40)
SEED: Final = 5
LABEL: Final = "bench"
_NODES: Final = "/api/v1/nodes"


@dataclass(frozen=True)
class Shape:
    """The size of a cluster; ``pods`` are those on each card before the measurement."""

    nodes: int
    cards: int
    pods: int

    def __str__(self) -> str:
        return f"{self.nodes} nodes x {self.cards} cards x {self.pods} pods"


def node_name(number: int) -> str:
    return f"paper-{number}"


def node(
    name: str,
    cards: int,
    *,
    units: int = CARD_UNITS,
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a Node as the kubelet and the plugin write it."""
    found = Inventory(
        1,
        tuple(
            Card(i, f"GPU-{name}-{i}", units, tag=f"a{i}", minor=i, model="Paper", memory_mib=units)
            for i in range(cards)
        ),
        plugin="0.1.0",
        binding="late",
    )
    capacity = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": str(pods),
        RESOURCE_MEMORY: str(units * cards),
        RESOURCE_COUNT: str(cards),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "gpushare": "true", **(labels or {})},
            "annotations": {ANNOTATION_INVENTORY: inventory.encode(found)},
        },
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Paper"}],
        },
    }


def pod(
    name: str,
    units: int,
    group: str,
    *,
    spec: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    resources = {"limits": {RESOURCE_MEMORY: units}, "requests": {"cpu": "10m", "memory": "16Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: group}, "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "main", "image": "paper", "resources": resources}],
            **(spec or {}),
        },
    }


def waiting(group: str, units: Sequence[int], **spec: Any) -> list[dict[str, Any]]:
    """Return pending pods of one group, in a random order of ``units``."""
    drawn = random.Random(group).sample(units, len(units))  # noqa: S311 - the same again each time
    return [pod(f"{group}-{i}", each, group, spec=spec) for i, each in enumerate(drawn)]


def various(count: int) -> list[int]:
    least, most = ASKED
    return [least + i % (most - least + 1) for i in range(count)]


def filling(shape: Shape) -> Iterator[dict[str, Any]]:
    """Return the pods that are bound before the measurement, with their decisions."""
    draw = random.Random(SEED)  # noqa: S311 - the same each time
    for number in range(shape.nodes):
        name = node_name(number)
        for index in range(shape.cards):
            card = Card(index, f"GPU-{name}-{index}", CARD_UNITS, minor=index)
            for place in range(shape.pods):
                units = draw.randint(*HELD) if shape.pods * HELD[1] > CARD_UNITS else HELD[1]
                units = min(units, CARD_UNITS // shape.pods)
                request = Request((ContainerRequest("main", units),))
                decision = pod_annotations.decision_annotations(
                    request, [card], is_legacy=False, assume_time_ns=1
                )
                yield pod(
                    f"held-{number}-{index}-{place}",
                    units,
                    "filling",
                    spec={"nodeName": name},
                    annotations=decision,
                )


async def add_nodes(api: ApiServer, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Create nodes and remove the taint that admission sets, so that they take pods."""
    await api.each("POST", _NODES, nodes)
    untainted = [
        {"metadata": {"name": n["metadata"]["name"]}, "spec": {"taints": []}} for n in nodes
    ]
    await api.each(
        "PATCH",
        lambda body: f"{_NODES}/{body['metadata']['name']}",
        untainted,
        content_type=MERGE_PATCH,
    )


async def cordon(api: ApiServer, name: str, *, on: bool) -> None:
    body = {"spec": {"unschedulable": on}}
    await api.request("PATCH", f"{_NODES}/{name}", body, content_type=MERGE_PATCH)


async def fill(api: ApiServer, shape: Shape) -> None:
    await add_nodes(api, [node(node_name(i), shape.cards) for i in range(shape.nodes)])
    await api.each("POST", PODS, filling(shape))
