"""Gangs on a real kube-scheduler: all members or none, with nothing kept for those that wait."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import wait_bound
from tests.trials.stage import paper_gpu_node

pytestmark = [pytest.mark.cluster, pytest.mark.every_version]

NODES, UNITS = ("gang-1", "gang-2"), 16
ON_PAPER = {"localcluster/paper": "true"}


@pytest.fixture
def four_gpus(gpushare: Gpushare) -> Iterator[None]:
    """Add two nodes without kubelets, each with two empty GPUs."""
    gpushare.cluster.add_paper_nodes(*(paper_gpu_node(name, 2, UNITS) for name in NODES))
    yield
    gpushare.cluster.remove_paper_nodes(*NODES)


def member(gang: str, number: int, units: int, minimum: int, **more: Any) -> dict[str, Any]:
    made = pod(f"{gang}-{number}", units, terminationGracePeriodSeconds=0, **more)
    labels = made["metadata"].setdefault("labels", {})
    labels |= {LABEL_GANG: gang, LABEL_GANG_MINIMUM: str(minimum)}
    made["spec"]["nodeSelector"] = ON_PAPER
    return made


def names(gang: str, count: int) -> list[str]:
    return [f"{gang}-{number}" for number in range(count)]


def bound(pods: Workloads) -> Mapping[str, str]:
    found = {each["metadata"]["name"]: each["spec"].get("nodeName") for each in pods.all()}
    return {name: node for name, node in found.items() if node}


@pytest.mark.usefixtures("four_gpus")
def test_of_two_gangs_created_in_turns_one_is_whole_and_the_other_keeps_nothing(
    gpushare: Gpushare, pods: Workloads
):
    for number in range(3):
        for gang in ("x", "y"):
            pods.create(member(gang, number, 12, 3))

    def not_one_whole() -> str | None:
        found = sorted(name.partition("-")[0] for name in bound(pods))
        return None if found in (["x"] * 3, ["y"] * 3) else str(found)

    wait_until("one gang to be whole", not_one_whole, seconds=30)
    (whole,) = {name.partition("-")[0] for name in bound(pods)}
    other = {"x": "y", "y": "x"}[whole]
    single = pod("single", 16)
    single["spec"]["nodeSelector"] = ON_PAPER
    pods.create(single)  # would find no empty GPU if anything were kept for the other gang
    wait_bound(pods, "single")
    for name in names(whole, 3):
        pods.delete(name)
    wait_bound(pods, *names(other, 3))
