"""The instructions of docs/kind.md work on a node without a GPU: real kubelet, simulated GPUs."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.imagebuild import ROOT, image_name
from localcluster.run import run
from localcluster.specs import NodeSpec
from localcluster.workloads import Workloads
from tests.cluster.bringup import fresh
from tests.cluster.expect import CARDS
from tests.markdown import blocks, commands

pytestmark = pytest.mark.cluster

Follow = Callable[[list[str]], str]
PAGE = [
    [each.text for each in commands(block)]
    for block in blocks(ROOT / "docs/kind.md")
    if block.language == "sh" and not block.needs
]
INSTALL, APPLY, LOOK, MAKE_ROOM = PAGE


@pytest.fixture(scope="module")
def kind(image: Path) -> Iterator[Cluster]:
    """One node as kind has it: of the control plane, without its taint, driver and toolkit."""
    node = NodeSpec("kind-control-plane", control_plane=True)
    with fresh([node], name="gpushare-kind", scheduler_config=None, archives=[image]) as made:
        made.kubectl("taint", "node", node.name, "node-role.kubernetes.io/control-plane-")
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made: Path = tmp_path_factory.mktemp("kind")
    return made


@pytest.fixture(scope="module")
def follow(kind: Cluster, helm: Path, folder: Path) -> Follow:
    """Run commands in a folder with what they use of a checkout, and install gpushare."""
    (folder / "daemonset").symlink_to(ROOT / "daemonset")
    own = Path(sys.executable).parent
    for name, path in (("kubectl", kind.binaries / "kubectl"), ("helm", helm)):
        (folder / name).symlink_to(path)
    env = {
        **os.environ,
        "PATH": f"{folder}:{own}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(kind.kubeconfig),
    }

    def follow(block: list[str]) -> str:
        shell = ["bash", "-o", "pipefail", "-ec", "\n".join(block)]
        return run(shell, cwd=folder, env=env, seconds=300)

    follow(INSTALL)
    return follow


def test_the_instructions_for_kind_work_on_a_node_without_a_gpu(kind: Cluster, follow: Follow):
    pods = Workloads(kind)
    follow(APPLY)
    used = dict.fromkeys(names(pods, "model"), 16) | dict.fromkeys(names(pods, "notebook"), 2)
    gpus = {name: pods.annotations(name)[CARDS] for name in used}
    by_gpu = Counter[str]()
    for name, units in used.items():
        by_gpu[gpus[name]] += units
    assert sorted(by_gpu.values()) == [16, 20]
    assert any("no single GPU has enough free" in each for each in pods.events("training"))
    seen = "".join(follow([f"{each} || test $? = 1"]) for each in LOOK)  # 1: explain's answer
    assert all(f"default/{name}" in seen for name in used)
    assert any(f"GPUSHARE_CARD_UUID={gpu}" in seen for gpu in by_gpu)
    follow(MAKE_ROOM)
    assert pods.annotations("training")[CARDS] in by_gpu
    for sample in ("kind", "kind-training"):
        follow([f"kubectl delete -f daemonset/samples/{sample}.yaml"])


def names(pods: Workloads, app: str) -> list[str]:
    return [each["metadata"]["name"] for each in pods.all(f"app={app}")]


def test_a_program_reads_its_share_from_the_variables_of_its_container(
    kind: Cluster, follow: Follow
):
    names = [f"ALIYUN_COM_GPU_MEM_{each}" for each in ("ENFORCED", "ALLOCATABLE", "FRACTION")]
    read = f"import os; print(*(os.environ[name] for name in {names}))"
    limits = {"aliyun.com/gpu-mem": 8}
    main = {"name": "main", "image": image_name(), "resources": {"limits": limits}}
    main["command"] = ["python3", "-c", read]
    spec = {"restartPolicy": "Never", "containers": [main]}
    Workloads(kind).create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "train"},
            "spec": {**spec, "schedulerName": "gpushare-scheduler"},
        }
    )
    follow(["kubectl wait --for=jsonpath={.status.phase}=Succeeded pod/train"])
    assert follow(["kubectl logs train"]) == f"nothing 7680 {(8 * 1024 - 512) / (24 * 1024):.4f}\n"
