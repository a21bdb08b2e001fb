"""However GPUs come into containers on a node, each gets its card and no other, or does not run.

The quick part of `python -m tests.trials.nodes`: late binding on containerd 2.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.toolkit import Setup
from localcluster.wait import wait_until
from localcluster.workloads import container, pod
from tests.trials.cells import Cell, Kind
from tests.trials.matrix import Matrix, matrix_cluster, setup_node, table, wrong

pytestmark = pytest.mark.cluster

PARTS = 4
RUNNING = (Kind.CUDA, Kind.PLAIN, Kind.OWN, Kind.INIT, Kind.HIDDEN)


@pytest.fixture(scope="module")
def matrix(image: Path) -> Iterator[Matrix]:
    nodes = [setup_node(setup) for setup in Setup]
    with matrix_cluster(image, nodes, name="gpushare-setups") as made:
        made.start_plugins("late")
        yield made


def test_every_container_gets_its_own_card_or_does_not_run(matrix: Matrix):
    classes = {
        Setup.LEGACY: ("", "nvidia"),
        Setup.AUTO: ("", "nvidia"),
        Setup.AUTO_1_17: ("", "nvidia"),
        Setup.AUTO_CDI: ("", "nvidia"),
        Setup.OPERATOR: ("nvidia", "nvidia-cdi", "nvidia-legacy"),
        Setup.CDI: ("",),
    }
    by_setup = {spec.setup: node for node, spec in matrix.nodes.items()}
    must_run = {
        Cell(by_setup[setup], kind, name)
        for setup, names in classes.items()
        for kind in RUNNING
        for name in names
    }
    cells = matrix.cells("late")
    # In parts: a hundred pods at once starve the clusters of the other processes.
    parts = [cells[part::PARTS] for part in range(PARTS)]
    endings = {cell: end for part in parts for cell, end in matrix.play(part, must_run).items()}
    assert wrong(endings) == [], table(endings)


def test_a_card_that_the_driver_does_not_know_keeps_a_container_from_running(matrix: Matrix):
    unknown = {"NVIDIA_VISIBLE_DEVICES": "GPU-ffffffff-0000-4000-8000-000000000000"}
    kinds = {Setup.LEGACY, Setup.AUTO}
    nodes = [node for node, spec in matrix.nodes.items() if spec.setup in kinds]
    pods = matrix.workloads
    pods.create(
        *(pod(f"unknown-{n}", node=n, containers=[container("main", None, unknown)]) for n in nodes)
    )

    def untold(name: str) -> str | None:
        [status] = pods.get(name)["status"].get("containerStatuses", [{}])
        told = str([status.get("state"), status.get("lastState")])
        return None if "StartError" in told or "RunContainerError" in told else told

    for node in nodes:
        wait_until(f"{node} to refuse it", lambda node=node: untold(f"unknown-{node}"), seconds=40)
    pods.delete_all()
