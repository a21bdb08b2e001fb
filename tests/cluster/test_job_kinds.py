"""Samples of gangs are accepted, and the pods that their controllers create start as gangs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.scenario import build
from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare, gpu_node
from localcluster.kueue.controllers import JOBSET, LWS
from localcluster.wait import wait_until
from localcluster.workloads import is_running
from tests.cluster.bringup import fresh, own_network
from tests.cluster.job_kinds import (
    created,
    define,
    for_cluster,
    sample,
    start_mpi_operator,
    start_trainer,
)

pytestmark = pytest.mark.cluster

SAMPLES: Final = [
    "job", "trainer", "jobset", "pytorchjob", "trainjob", "raycluster", "leaderworkerset", "mpijob",
]  # fmt: skip
SECONDS: Final = 60


@pytest.fixture(scope="module")
def cluster(kueue: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Bring up gpushare on four GPUs, and each controller that is built here."""
    nodes = [gpu_node(each, 2) for each in ("n1", "n2")]
    with own_network(), fresh(nodes, name="gpushare-jobs") as made:
        Gpushare(made).install()
        define(made)
        start_mpi_operator(made, kueue)
        JOBSET.install(made, print)
        start_trainer(made, kueue, tmp_path_factory.mktemp("trainer"))
        LWS.install(made, print)
        Gpushare(made).wait_ready()
        yield made


def expanded(name: str) -> dict[str, dict[str, str]]:
    """Return the labels by the names of the pods that `simulate` takes a sample for."""
    found = build(read(name, sample(name).read_bytes()))
    return {event.pod.metadata.name: event.pod.labels for event in found.pods}


def differs(created: list[dict[str, Any]], named: dict[str, dict[str, str]]) -> str | None:
    """Return how pods differ in number, name or label; random ends of names do not matter."""
    left = {each["metadata"]["name"]: each["metadata"]["labels"] for each in created}
    for name, labels in named.items():
        same = [each for each in left if re.fullmatch(rf"{re.escape(name)}(-[a-z0-9]{{5}})?", each)]
        if len(same) != 1:
            return f"{len(same)} pods are called {name}: {sorted(left)}"
        own = left.pop(same[0])
        if wrong := {key: own.get(key) for key in labels if own.get(key) != labels[key]}:
            return f"{name} has {wrong}, not {labels}"
    return f"more pods than expected: {sorted(left)}" if left else None


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_accepted_without_a_change(cluster: Cluster, name: str):
    words = ("create", "--dry-run=server", "--validate=strict", "-f", str(sample(name)))
    said = cluster.kubectl(*words)
    assert said.count("created (server dry run)") == len(
        list(yaml.safe_load_all(sample(name).read_text()))
    )


@pytest.mark.parametrize("name", ["jobset", "trainjob", "leaderworkerset", "mpijob"])
def test_the_pods_of_a_controller_are_those_of_simulate_and_run_as_gangs(
    cluster: Cluster, name: str
):
    named = expanded(name)
    (gang,) = {labels["pod-group.scheduling.sigs.k8s.io/name"] for labels in named.values()}
    with created(cluster, for_cluster(name)) as pods:

        def not_running() -> str | None:
            found = pods.all()
            waiting = [each["metadata"]["name"] for each in found if not is_running(each)]
            return differs(found, named) or ", ".join(waiting) or None

        wait_until(f"pods of {name}", not_running, seconds=SECONDS)
        _, listed = Gpushare(cluster).call("GET", "/gpushare-scheduler/gangs")
    found = [each for each in listed["gangs"] if each["name"].startswith(gang)]
    assert sum(each["members"] for each in found) == len(named)
    assert all(each["phase"] == "Placed" for each in found)
    assert all(each["minimum"] == each["members"] for each in found)
