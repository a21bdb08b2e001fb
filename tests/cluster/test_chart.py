"""The chart, with helm itself against a real API server: installed, changed, taken away."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.run import run
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import pod
from tests.cluster.bringup import fresh

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / "daemonset/chart"
KINDS = (
    "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,clusterroles,"
    "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "networkpolicies"
)


STEPS = (ROOT / "docs/install.md").read_text()


def block(language: str, start: str) -> str:
    """The one block of the instructions that has this at the beginning of a line."""
    found = re.findall(rf"^```{language}\n(.*?)^```", STEPS, re.MULTILINE | re.DOTALL)
    (one,) = [each for each in found if re.search(f"^{start}", each, re.MULTILINE)]
    return one


@pytest.fixture(scope="module")
def control_plane() -> Iterator[Cluster]:
    """A cluster whose nodes run nothing."""
    nodes = [PaperNode("gpu-1"), PaperNode("gpu-2")]
    with fresh((), nodes, name="gpushare-chart", scheduler_config=None) as made:
        yield made


@pytest.fixture
def follow(control_plane: Cluster, helm: Path, tmp_path: Path) -> "Follow":
    return Follow(control_plane, helm, tmp_path)


class Follow:
    """A folder as the instructions have it, and the tools that they use."""

    def __init__(self, cluster: Cluster, helm: Path, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        (folder / "gpushare").symlink_to(ROOT)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "kubectl").symlink_to(cluster.binaries / "kubectl")
        (tools / "helm").symlink_to(helm)
        # What is run of the image, without one: its flags and its name are three words.
        docker = f'cd {shlex.quote(str(ROOT))}; shift 3; shift; exec {sys.executable} "$@"'
        (tools / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tools / "docker").chmod(0o755)

    def write(self, name: str, content: str) -> None:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def run(self, commands: str) -> str:
        """Run them as they stand there; CommandError with the words of the one that failed."""
        env = {
            **os.environ,
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(self._cluster.kubeconfig),
        }
        shell = ["bash", "-o", "pipefail", "-ec", commands]
        return run(shell, cwd=self._folder, env=env, seconds=120)


def there(cluster: Cluster) -> set[str]:
    """Every object with our name, wherever it is."""
    lines = cluster.kubectl("get", KINDS, "--all-namespaces", "--output=name").split()
    return {each for each in lines if "/gpushare" in each}


def test_helm_installs_changes_and_takes_away_and_leaves_nothing(
    control_plane: Cluster, follow: Follow
):
    label, namespace, certificates = block("sh", "kubectl label").splitlines()
    follow.run(f"{label}\n{namespace}")
    follow.write("values.yaml", block("yaml", "image:"))
    install = block("sh", "helm install")
    with pytest.raises(CommandError, match="the Secret gpushare-extender-tls is missing"):
        follow.run(install)
    follow.run(certificates)

    assert "gpushare scheduler-config" in follow.run(install)
    assert {
        "daemonset.apps/gpushare-deviceplugin",
        "daemonset.apps/gpushare-extender",
        "validatingadmissionpolicy.admissionregistration.k8s.io/gpushare-decisions",
    } <= there(control_plane)

    second = "--set scheduler=second,networkPolicy=true"
    notes = follow.run(f"{install.strip().replace('install', 'upgrade')} {second}")
    assert "schedulerName: gpushare-scheduler" in notes
    changed = there(control_plane)
    assert "deployment.apps/gpushare-scheduler" in changed
    assert "daemonset.apps/gpushare-extender" not in changed
    assert "networkpolicy.networking.k8s.io/gpushare-scheduler" in changed

    follow.run("helm uninstall gpushare --namespace gpushare-system")
    assert there(control_plane) == set()
    follow.run("kubectl --namespace gpushare-system get secret gpushare-extender-tls")


def test_the_kustomization_in_the_instructions_is_applied(control_plane: Cluster, follow: Follow):
    follow.write("my-cluster/kustomization.yaml", block("yaml", "kind: Kustomization"))
    follow.run(block("sh", "kubectl label"))
    follow.run(block("sh", "kubectl apply -k"))
    assert "daemonset.apps/gpushare-extender" in there(control_plane)


def test_the_quotas_in_the_instructions_hold(control_plane: Cluster, follow: Follow):
    follow.run(block("sh", "kubectl label").splitlines()[1])
    for quota in ("  hard: {pods", "  hard: {requests"):
        follow.write("quota.yaml", block("yaml", quota))
        follow.run("kubectl apply -f quota.yaml")
    follow.write("pod.json", json.dumps(pod("large", 25)))

    def refused() -> str | None:
        """A quota that its controller has not looked at yet refuses in other words."""
        try:
            return follow.run("kubectl create --dry-run=server -f pod.json")
        except CommandError as err:
            exceeded = "exceeded quota: gpu-memory, requested: requests.aliyun.com/gpu-mem=25"
            return None if exceeded in str(err) else str(err)

    wait_until("the quota to count", refused, seconds=15)


def test_the_api_server_knows_every_field_of_every_component(control_plane: Cluster):
    for folder in ("base", "overlays/second-scheduler"):
        folder_words = ("apply", "-k", str(ROOT / "daemonset" / folder))
        control_plane.kubectl(*folder_words, "--dry-run=server", "--validate=strict")
    policy = str(ROOT / "daemonset/components/network-policy/policy.yaml")
    control_plane.kubectl("apply", "-f", policy, "--dry-run=server", "--validate=strict")
