"""Pods without GPU leave GPU nodes alone while others have room, and no other pod changes."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import ROOT
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import RESOURCE, Workloads, pod
from tests.cluster.bringup import fresh, own_network
from tests.cluster.expect import wait_bound
from tests.cluster.gated import COMPONENTS, FLAGS, served_version
from tests.markdown import blocks

pytestmark = pytest.mark.cluster

GPU_NODE, OTHER = "n1", "n2"
LABEL = "gpushare.aliyun.com/avoid-gpu-nodes"
OPTED_OUT = {"labels": {LABEL: "false"}}
OPEN = "open"  # a namespace with the label
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
AVOIDS = {
    "matchExpressions": [
        {"key": "gpushare", "operator": "NotIn", "values": ["true"]},
        {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]},
    ]
}
IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
TOLERATES = "--enable-admission-plugins=ExtendedResourceToleration"
APART = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Bring up an empty GPU node, and a smaller node without GPUs that is three quarters full."""
    nodes = [
        PaperNode(GPU_NODE, capacity={"cpu": "64", RESOURCE: "32"}, labels={"gpushare": "true"}),
        PaperNode(OTHER, capacity={"cpu": "16"}),
    ]
    name = "gpushare-avoid-gpu-nodes"
    with (
        own_network(),
        fresh(
            (), nodes, name=name, scheduler_config=None, api_server_flags=(*FLAGS, TOLERATES)
        ) as made,
    ):
        text = (COMPONENTS / "avoid-gpu-nodes" / "policy.yaml").read_text()
        text = text.replace("admissionregistration.k8s.io/v1\n", f"{served_version(made)}\n")
        made.kubectl("apply", "-f", "-", stdin=text)
        labelled = {"kind": "Namespace", "metadata": {"name": OPEN, **OPTED_OUT}}
        made.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", **labelled}))
        wait_until("the policy to change pods", lambda: is_unchanged(made), seconds=60)
        pods = Workloads(made)
        pods.create(requesting("fills", {"cpu": "12"}, node=OTHER))
        wait_bound(pods, "fills")
        yield made


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Workloads]:
    made = Workloads(cluster)
    yield made
    for each in made.all():
        if (name := each["metadata"]["name"]) != "fills":
            made.delete(name, grace=0)


def requesting(name: str, amounts: Mapping[str, str], **fields: Any) -> dict[str, Any]:
    described = pod(name, **fields)
    described["spec"]["containers"][0]["resources"] = {"limits": dict(amounts)}
    return described


def created(
    cluster: Cluster, described: Mapping[str, Any], namespace: str = "default"
) -> dict[str, Any]:
    """Return the pod that the API server would create."""
    with cluster.api() as api:
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        found: dict[str, Any] = api.request("POST", path, dict(described))
    return found


def affinity(
    cluster: Cluster, described: Mapping[str, Any], namespace: str = "default"
) -> dict[str, Any]:
    """Return the affinity that a pod would get."""
    found: dict[str, Any] = created(cluster, described, namespace)["spec"].get("affinity", {})
    return found


def is_unchanged(cluster: Cluster) -> str | None:
    try:
        return None if affinity(cluster, pod("probe")) else "it has no affinity"
    except ApiError as err:
        return str(err)


def node_of(pods: Workloads, described: Mapping[str, Any]) -> str:
    """Create a pod; return its node once it has one."""
    name = described["metadata"]["name"]
    pods.create(described)
    wait_bound(pods, name)
    return str(pods.get(name)["spec"]["nodeName"])


def test_a_pod_without_gpu_prefers_the_fuller_node_without_gpus(pods: Workloads):
    assert node_of(pods, requesting("as-before", {"cpu": "1"}, metadata=OPTED_OUT)) == GPU_NODE
    assert node_of(pods, requesting("web", {"cpu": "1"})) == OTHER
    assert node_of(pods, requesting("gpu", {"cpu": "1", RESOURCE: "8"})) == GPU_NODE


def test_a_pod_without_gpu_that_fits_only_on_a_gpu_node_runs_there(pods: Workloads):
    assert node_of(pods, requesting("large", {"cpu": "10"})) == GPU_NODE


@pytest.mark.parametrize("weights", [(), (1,), (7, 30)])
def test_a_pod_keeps_its_own_affinity(cluster: Cluster, weights: tuple[int, ...]):
    own = [{"weight": weight, "preference": IN_ZONE} for weight in weights]
    node_affinity: dict[str, Any] = {REQUIRED: {"nodeSelectorTerms": [IN_ZONE]}}
    if own:
        node_affinity[PREFERRED] = own
    between = {"podAntiAffinity": {REQUIRED: [APART]}}
    found = affinity(cluster, pod("p", affinity={**between, "nodeAffinity": node_affinity}))
    added = {"weight": max(weights, default=100), "preference": AVOIDS}
    assert found == {**between, "nodeAffinity": {**node_affinity, PREFERRED: [*own, added]}}
    assert affinity(cluster, pod("p", affinity=between)) == {
        **between,
        "nodeAffinity": {PREFERRED: [{"weight": 100, "preference": AVOIDS}]},
    }
    assert affinity(cluster, pod("p", affinity=found)) == found, "once is enough"


OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
LIKES = {
    "weight": 5,
    "preference": {"matchExpressions": [{"key": "gpushare", "operator": "Exists"}]},
}
INITIAL = requesting("initial", {"nvidia.com/mig-1g.5gb": "1"})["spec"]["containers"]
CLAIM = {"name": "gpu", "resourceClaimName": "mine"}


@pytest.mark.parametrize(
    "described",
    [
        pytest.param(requesting("p", {RESOURCE: "8"}), id="GPU memory"),
        pytest.param(requesting("p", {"nvidia.com/gpu": "1"}), id="a whole GPU"),
        pytest.param(requesting("p", {"amd.com/gpu": "1"}), id="a GPU of another vendor"),
        pytest.param(pod("p", initContainers=[{**INITIAL[0], "name": "first"}]), id="at its start"),
        pytest.param(pod("p", resourceClaims=[CLAIM]), id="a claim"),
        pytest.param(pod("p", nodeName=GPU_NODE), id="it has a node"),
        pytest.param(pod("p", metadata={"ownerReferences": [OWNER]}), id="of a DaemonSet"),
        pytest.param(pod("p", metadata=OPTED_OUT), id="opted out"),
        pytest.param(pod("p", affinity={"nodeAffinity": {PREFERRED: [LIKES]}}), id="own choice"),
    ],
)
def test_other_pods_stay_as_they_are(cluster: Cluster, described: dict[str, Any]):
    assert affinity(cluster, described) == described["spec"].get("affinity", {})


@pytest.mark.parametrize("namespace", ["kube-system", OPEN])
def test_namespaces_are_left_out(cluster: Cluster, namespace: str):
    assert affinity(cluster, pod("p"), namespace) == {}


@contextmanager
def tainted(cluster: Cluster, effect: str) -> Iterator[None]:
    """Taint the GPU node as the document says."""
    found = blocks(ROOT / "docs/scheduling.md")
    (command,) = [each.text for each in found if each.text.startswith("kubectl taint")]
    _, *words = command.replace("PreferNoSchedule", effect).split()
    cluster.kubectl(*words)
    try:
        yield
    finally:
        cluster.kubectl(*words[:-1], f"{words[-1]}-")


def test_a_soft_taint_does_the_same_without_the_policy(cluster: Cluster, pods: Workloads):
    with tainted(cluster, "PreferNoSchedule"):
        assert node_of(pods, requesting("web", {"cpu": "1"}, metadata=OPTED_OUT)) == OTHER
        assert node_of(pods, requesting("gpu", {"cpu": "1", RESOURCE: "8"})) == GPU_NODE
        assert node_of(pods, requesting("big", {"cpu": "10"}, metadata=OPTED_OUT)) == GPU_NODE


def test_the_strict_taint_lets_only_pods_with_gpu_memory_pass(cluster: Cluster, pods: Workloads):
    """The admission plugin adds their toleration."""
    with tainted(cluster, "NoSchedule"):
        assert node_of(pods, requesting("gpu", {"cpu": "1", RESOURCE: "8"})) == GPU_NODE
        pods.create(requesting("big", {"cpu": "10"}))

        def not_kept_off() -> str | None:
            found = pods.get("big")["status"].get("conditions", [])
            said = [each.get("message", "") for each in found]
            return None if any("untolerated taint" in each for each in said) else str(said)

        wait_until("kube-scheduler to name the taint", not_kept_off, seconds=60)
