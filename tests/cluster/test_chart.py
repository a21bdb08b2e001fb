"""The chart, with helm itself against a real API server: installed, changed, taken away."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.run import run
from localcluster.tools import tool

# The first one may have to build helm.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "daemonset/chart"
NAMESPACE = "gpushare-system"
KINDS = (
    "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,clusterroles,"
    "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "networkpolicies"
)


@pytest.fixture(scope="module")
def control_plane() -> Iterator[Cluster]:
    """A cluster without nodes, and the namespace on it."""
    made = Cluster.up([], name="gpushare-chart", progress=print)
    try:
        made.kubectl("apply", "-f", str(ROOT / "daemonset/base/access/namespace.yaml"))
        yield made
    finally:
        made.down()


def helm(cluster: Cluster, *arguments: str) -> str:
    words = [tool("helm", print), *arguments, f"--kubeconfig={cluster.kubeconfig}"]
    return run([*words, f"--namespace={NAMESPACE}"], seconds=60)


def there(cluster: Cluster) -> set[str]:
    """Every object with our name, wherever it is."""
    lines = cluster.kubectl("get", KINDS, "--all-namespaces", "--output=name").split()
    return {each for each in lines if "/gpushare" in each}


def test_helm_installs_changes_and_takes_away_and_leaves_nothing(control_plane: Cluster):
    with pytest.raises(CommandError, match="the Secret gpushare-extender-tls is missing"):
        helm(control_plane, "install", "gpushare", str(CHART))
    made = [sys.executable, "-m", "extender.certificates"]
    secrets = subprocess.run(made, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    control_plane.kubectl("apply", "-f", "-", stdin=secrets)

    notes = helm(control_plane, "install", "gpushare", str(CHART))
    assert "gpushare scheduler-config" in notes
    assert {
        "daemonset.apps/gpushare-deviceplugin",
        "daemonset.apps/gpushare-extender",
        "validatingadmissionpolicy.admissionregistration.k8s.io/gpushare-decisions",
    } <= there(control_plane)

    notes = helm(
        control_plane,
        "upgrade",
        "gpushare",
        str(CHART),
        "--set=scheduler=second,networkPolicy=true",
    )
    assert "schedulerName: gpushare-scheduler" in notes
    second = there(control_plane)
    assert "deployment.apps/gpushare-scheduler" in second
    assert "daemonset.apps/gpushare-extender" not in second
    assert "networkpolicy.networking.k8s.io/gpushare-scheduler" in second

    helm(control_plane, "uninstall", "gpushare")
    assert there(control_plane) == set()
    control_plane.kubectl("-n", NAMESPACE, "get", "secret", "gpushare-extender-tls")


def test_the_api_server_knows_every_field_of_every_component(control_plane: Cluster):
    for folder in ("base", "overlays/second-scheduler"):
        folder_words = ("apply", "-k", str(ROOT / "daemonset" / folder))
        control_plane.kubectl(*folder_words, "--dry-run=server", "--validate=strict")
    policy = str(ROOT / "daemonset/components/network-policy/policy.yaml")
    control_plane.kubectl("apply", "-f", policy, "--dry-run=server", "--validate=strict")
