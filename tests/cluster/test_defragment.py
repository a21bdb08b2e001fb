"""gpushare defragment restarts pods of Deployments elsewhere, and no others."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, is_running, pod
from tests.cluster.command_line import CommandLine, reader
from tests.cluster.expect import CARDS, sums_are_right

pytestmark = pytest.mark.cluster

STAYS, BLOCKS, MOVES = 6000, 8000, 5000


@pytest.fixture
def line(cluster: Cluster, tmp_path: Path) -> Iterator[CommandLine]:
    """Give a command line with the rights that the document lists."""
    with reader(cluster, tmp_path, "gpushare-reads", "gpushare-defragments") as made:
        yield made


def deploy(cluster: Cluster, name: str, **labels: str) -> None:
    """Create a Deployment of one pod on n1."""
    described = pod("", MOVES, node="n1", terminationGracePeriodSeconds=1)
    template = {"metadata": {"labels": {"app": name, **labels}}, "spec": described["spec"]}
    selector = {"matchLabels": {"app": name}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": selector, "template": template},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(manifest))


def running_on(pods: Workloads, name: str) -> str:
    """Return the card of the Deployment's one pod once that runs."""
    found: list[str] = []

    def waits() -> str | None:
        here = [each for each in pods.all(f"app={name}") if is_running(each)]
        found[:] = [each["metadata"]["annotations"][CARDS] for each in here]
        return None if len(found) == 1 else str(found)

    wait_until(f"a pod of {name}", waits, seconds=60)
    return found[0]


def split(cluster: Cluster, pods: Workloads, **labels: str) -> None:
    """Leave a bare pod on the first GPU of n1, and a pod of a Deployment on the second."""
    pods.run(pod("stays", STAYS, node="n1"))
    pods.run(pod("blocks", BLOCKS, node="n1"))
    deploy(cluster, "model", **labels)
    assert running_on(pods, "model") == "GPU-n1-1"
    pods.delete("blocks", grace=1)


def cordoned(cluster: Cluster) -> str:
    with cluster.api() as api:
        annotations = api.get("/api/v1/nodes/n1")["metadata"]["annotations"]
    return annotations.get("gpushare.aliyun.com/cordoned-cards", "")


def test_a_whole_gpu_becomes_free_with_one_move(
    cluster: Cluster, gpushare: Gpushare, pods: Workloads, line: CommandLine
):
    split(cluster, pods, **{"gpushare.aliyun.com/movable": "true"})
    before = {each["metadata"]["uid"] for each in pods.all()}
    plan = line.tells("defragment", "--free-gpus", "1", "--dry-run")
    assert plan["enough"]
    assert [(each["from"]["uuids"], each["to"]["uuids"]) for each in plan["moves"]] == [
        (["GPU-n1-1"], ["GPU-n1-0"])
    ]
    assert {each["metadata"]["uid"] for each in pods.all()} == before
    said = line.says("defragment", "--free-gpus", "1", "--yes")
    assert "1 of 1: default/model-" in said
    assert "runs on n1, GPU 0" in said
    assert running_on(pods, "model") == "GPU-n1-0"
    assert not cordoned(cluster)
    sums_are_right(gpushare, pods)


def test_a_pending_pod_gets_the_gpu_that_a_move_frees(
    cluster: Cluster, gpushare: Gpushare, pods: Workloads, line: CommandLine
):
    split(cluster, pods, **{"gpushare.aliyun.com/movable": "true"})
    pods.create(pod("whole", CARD_MIB, node="n1"))
    said = line.says("defragment", "--for", "whole", "-n", "default", "--yes")
    assert "pod default/whole would fit after 1 move" in said
    pods.wait_running("whole")
    assert pods.annotations("whole")[CARDS] == "GPU-n1-1"
    assert not cordoned(cluster)
    sums_are_right(gpushare, pods)


def test_no_pod_moves_without_a_label_and_no_bare_pod_at_all(
    cluster: Cluster, pods: Workloads, line: CommandLine
):
    split(cluster, pods)
    before = {each["metadata"]["uid"] for each in pods.all()}
    said = line.says("defragment", "--free-gpus", "1", "--yes", code=1)
    assert "0 pods may move" in said
    assert "no controller would replace them" in said
    assert "no label gpushare.aliyun.com/movable=true" in said
    assert {each["metadata"]["uid"] for each in pods.all()} == before
    assert line.tells("defragment", "--free-gpus", "1", "--below-priority", "1")["enough"]
