"""A pod gets its card on every container runtime that a node can have.

A cluster of its own without an extender: the decisions are written with the pods.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster.gpushare import Gpushare, gpu_node
from localcluster.specs import Runtime
from localcluster.wait import wait_until
from localcluster.workloads import RESOURCE, Workloads
from tests.cluster.bringup import fresh
from tests.cluster.expect import decided

pytestmark = pytest.mark.cluster

UNITS = 500
OLD, OLD_CDI, CRI_O = "containerd-1", "containerd-1-cdi", "cri-o"
NODES: dict[str, tuple[Runtime, bool]] = {
    OLD: ("containerd-1.7", False),
    OLD_CDI: ("containerd-1.7", True),
    CRI_O: ("cri-o", True),
}
VERSIONS = {OLD: "containerd://1.7.", OLD_CDI: "containerd://1.7.", CRI_O: "cri-o://1."}


@pytest.fixture(scope="module")
def runtimes(node_runtimes: Path) -> Iterator[Gpushare]:
    """Give one node of two cards for each runtime, with gpushare's plugin on it."""
    nodes = [gpu_node(name, 2, cdi=cdi, runtime=kind) for name, (kind, cdi) in NODES.items()]
    with fresh(nodes, name="gpushare-runtimes", scheduler_config=None) as cluster:
        Gpushare(cluster).apply_access()
        found = Gpushare(cluster)
        for name in NODES:
            found.start_plugin(name)

        def unshared() -> str | None:
            shown = {name: status(found, name)["allocatable"] for name in NODES}
            without = [name for name in NODES if shown[name].get(RESOURCE, "0") == "0"]
            return f"no {RESOURCE} on {without}" if without else None

        wait_until("every node's cards", unshared, seconds=60)
        yield found


def status(gpushare: Gpushare, name: str) -> Any:
    with gpushare.cluster.api() as api:
        return api.get(f"/api/v1/nodes/{name}")["status"]


def test_a_container_gets_its_card_on_each_runtime(runtimes: Gpushare) -> None:
    pods = Workloads(runtimes.cluster)
    wanted = {f"{name}-{card}": (name, card) for name in NODES for card in (1, 0)}
    with runtimes.unguarded():
        for name, (on, card) in wanted.items():
            pods.create(decided(name, on, UNITS, cards=f"GPU-{on}-{card}", IDX=str(card)))
    pods.wait_running(*wanted)
    cards = {name: pods.cards(name) for name in wanted}
    assert cards == {name: [f"GPU-{on}-{card}"] for name, (on, card) in wanted.items()}
    for name in NODES:
        version = status(runtimes, name)["nodeInfo"]["containerRuntimeVersion"]
        assert version.startswith(VERSIONS[name])
