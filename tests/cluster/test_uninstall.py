"""``gpushare uninstall`` removes exactly what an installation has added."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.gpushare import NAMESPACE, Gpushare, gpu_node
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.bringup import of_image
from tests.cluster.expect import LONG

pytestmark = pytest.mark.cluster

NODE = "n1"
# Kinds whose objects change by themselves, and objects that a running cluster makes.
RESTLESS = {"events", "events.events.k8s.io", "componentstatuses", "pods", "podmetrics"}
OTHERS = ("ServiceAccount kube-system ", "Lease kube-node-lease ", "RuntimeClass ")
FOLDERS = ("kubelet/device-plugins", "run/cdi", "cdi", "gpushare")
KUBELETS = {"kubelet.sock", "kubelet_internal_checkpoint"}


@pytest.fixture(scope="module")
def bare(image: Path) -> Iterator[Cluster]:
    """Bring up a GPU node and a control-plane node with only gpushare's image."""
    with of_image(image, gpu_node(NODE, 2), name="gpushare-uninstall") as made:
        yield made.cluster


def uninstall(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpusharectl", "uninstall", "--yes", *words]
    command.append(f"--kubeconfig={cluster.kubeconfig}")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def objects(cluster: Cluster) -> set[str]:
    """Return all objects of the API server by kind, namespace and name.

    Without the ServiceAccounts of controllers, the Leases of kubelets and NVIDIA's RuntimeClass.
    """
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    wanted = ",".join(kind for kind in kinds if kind not in RESTLESS)
    columns = "KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    words = ("get", wanted, "-A", "--no-headers", "--ignore-not-found", "-o")
    found = cluster.kubectl(*words, f"custom-columns={columns}").splitlines()
    lines = {" ".join(line.split()) for line in found}
    return {line for line in lines if not line.startswith(OTHERS)}


def node(cluster: Cluster) -> dict[str, object]:
    """Return a node's metadata and its resources."""
    found = json.loads(cluster.kubectl("get", "node", NODE, "-o", "json"))
    return {
        "labels": found["metadata"]["labels"],
        "annotations": found["metadata"]["annotations"],
        "capacity": set(found["status"]["capacity"]),
        "allocatable": set(found["status"]["allocatable"]),
    }


def files(cluster: Cluster) -> set[Path]:
    """Return the files in the plugin's folders, without the kubelet's."""
    top = cluster.node_folder(NODE)
    found = {path for folder in FOLDERS for path in (top / folder).rglob("*")}
    found |= {top / folder for folder in FOLDERS if (top / folder).is_dir()}
    return {path.relative_to(top) for path in found if path.name not in KUBELETS}


def budget(cluster: Cluster, name: str) -> None:
    """Let no pod with the label be evicted."""
    described = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(described))

    def unseen() -> str | None:
        words = ("get", "pdb", name, "-o", "jsonpath={.status.observedGeneration}")
        return None if cluster.kubectl(*words) else "not looked at yet"

    wait_until("the budget to be known", unseen, seconds=60)


def check_not_installed(cluster: Cluster) -> None:
    """Check that gpushare's commands say that it is not there."""
    for words in ((), ("--dry-run",)):
        done = uninstall(cluster, *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("gpushare is not installed here: no namespace")
    command = [sys.executable, "-m", "gpusharectl", "doctor", f"--kubeconfig={cluster.kubeconfig}"]
    doctor = subprocess.run(command, capture_output=True, text=True, check=False)
    assert doctor.returncode == 1
    first, *rest = doctor.stdout.splitlines()
    assert first == (
        "  ✗ problem  gpushare is not installed here: no namespace gpushare-system, 1 node "
        "labelled gpushare=true"
    )
    assert "docs/install.md" in "".join(rest)
    assert "PolicyMissing" not in doctor.stdout


def test_after_it_the_cluster_is_as_it_was_before_gpushare_came(bare: Cluster) -> None:
    before = objects(bare), node(bare), files(bare)
    check_not_installed(bare)
    Gpushare(bare).install()
    assert node(bare) != before[1]
    assert files(bare) != before[2]
    pods = Workloads(bare)
    pods.run(pod("goes", 100), pod("stays", 100, metadata={"labels": {"app": "stays"}}))
    pods.create(pod("waits", 10**6))
    there = objects(bare)

    refused = uninstall(bare)
    assert refused.returncode == 1
    assert "2 pods with shares: default/goes, default/stays" in refused.stderr
    assert "DaemonSet gpushare-deviceplugin" in refused.stdout
    planned = uninstall(bare, "--drain", "--dry-run")
    assert planned.returncode == 0
    assert "pod default/goes on " in planned.stdout
    assert objects(bare) == there

    budget(bare, "stays")
    kept = uninstall(bare, "--drain", "--drain-seconds=2")
    assert kept.returncode == 1
    assert "default/stays: " in kept.stderr
    assert "disruption budget" in kept.stderr
    pods.wait_gone("goes")
    bare.kubectl("delete", "pdb", "stays")
    assert objects(bare) == there

    words = () if LONG else ("--no-wait",)
    quota = ("resourcequota", "no-more-pods", f"--namespace={NAMESPACE}")
    bare.kubectl("create", *quota, "--hard=pods=0")
    broken = uninstall(bare, "--drain", "--clean-seconds=2", *words)
    assert broken.returncode == 1
    assert "for the nodes to be clean: 0 of " in broken.stderr
    assert "Run this again" in broken.stderr
    bare.kubectl("delete", *quota)
    done = uninstall(bare, *words)
    assert done.returncode == 0, done.stderr
    assert "gpushare is removed" in done.stdout
    assert "1 Pending pod: default/waits" in done.stderr
    pods.delete("waits")
    found = node(bare)
    if not LONG:
        for name in ("capacity", "allocatable"):
            found[name] = found[name] - {"aliyun.com/gpu-mem"}
    now = objects(bare)
    assert now - before[0] == set()
    assert before[0] - now == set()
    assert found == before[1]
    assert files(bare) == before[2]

    again = uninstall(bare, *words)
    assert again.returncode == 0, again.stderr
