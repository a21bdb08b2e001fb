"""Apply what the instructions apply to a real API server: chart, kustomizations, migration."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.run import run
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import container, pod
from tests import markdown
from tests.cluster.bringup import fresh
from tests.cluster.gated import served_version

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / "daemonset/chart"
KINDS = (
    "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,clusterroles,"
    "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "networkpolicies,poddisruptionbudgets,mutatingadmissionpolicies,mutatingwebhookconfigurations,"
    "services,resourcequotas"
)
POLICY = "secondScheduler.setSchedulerName=policy"  # automatic from Kubernetes 1.36 on
LABEL = "kubectl label node gpu-1 gpu-2 gpushare=true"
INSTALL, MIGRATE, EKS = "docs/install.md", "docs/migrate.md", "docs/platforms/eks.md"
OPTIONS, UPGRADE = "docs/installation-options.md", "docs/upgrade.md"
OLDER = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: gpushare-schd-extender, namespace: kube-system}
spec:
  selector: {matchLabels: {app: gpushare}}
  template:
    metadata: {labels: {app: gpushare}}
    spec: {containers: [{name: main, image: none}]}
---
apiVersion: v1
kind: Service
metadata: {name: gpushare-schd-extender, namespace: kube-system}
spec: {type: NodePort, selector: {app: gpushare}, ports: [{port: 12345, nodePort: 32766}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: gpushare-device-plugin-ds, namespace: kube-system}
spec:
  selector: {matchLabels: {name: gpushare-device-plugin-ds}}
  template:
    metadata: {labels: {name: gpushare-device-plugin-ds}}
    spec:
      nodeSelector: {gpushare: "true"}
      terminationGracePeriodSeconds: 0  # no kubelet here reports its end
      containers: [{name: main, image: none}]
"""
END_PODS = ("delete", "pods", "--all", "--force", "--grace-period=0")
# Without it every pod of the plugin is rejected, and its DaemonSet tries ever more rarely.
RUNTIME_CLASS = """
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
"""


def block(language: str, start: str, document: str = INSTALL) -> str:
    """Return the only block of a document with a line that begins so."""
    text = (ROOT / document).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (one,) = [each for each in found if re.search(f"^{start}", each, re.MULTILINE)]
    return one


@pytest.fixture(scope="module")
def control_plane() -> Iterator[Cluster]:
    """Bring up a cluster whose nodes run nothing, with MutatingAdmissionPolicies."""
    nodes = [PaperNode("gpu-1"), PaperNode("gpu-2")]
    flags = (
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    )
    name = "gpushare-chart"
    with fresh((), nodes, name=name, scheduler_config=None, api_server_flags=flags) as made:
        made.kubectl("apply", "-f", "-", stdin=RUNTIME_CLASS)
        yield made


@pytest.fixture
def follow(control_plane: Cluster, helm: Path, tmp_path: Path) -> "Iterator[Follow]":
    yield Follow(control_plane, helm, tmp_path)
    # helm uninstall keeps them.
    names = ("gpushare-extender-tls", "gpushare-scheduler-tls")
    control_plane.kubectl("-n", "gpushare-system", "delete", "secret", "--ignore-not-found", *names)


class Follow:
    """A folder with what the instructions use of a checkout, and the tools that they use."""

    def __init__(self, cluster: Cluster, helm: Path, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        (folder / "daemonset").symlink_to(ROOT / "daemonset")
        tools = folder / "bin"
        tools.mkdir()
        (tools / "kubectl").symlink_to(cluster.binaries / "kubectl")
        (tools / "helm").symlink_to(helm)
        (tools / "gpushare").symlink_to(Path(sys.executable).parent / "gpushare")

    def write(self, name: str, content: str) -> None:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def run(self, commands: str) -> str:
        """Run documented commands; raise CommandError with the message of one that fails."""
        env = {
            **os.environ,
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(self._cluster.kubeconfig),
        }
        shell = ["bash", "-o", "pipefail", "-ec", commands]
        return run(shell, cwd=self._folder, env=env, seconds=120)


def there(cluster: Cluster) -> set[str]:
    """Return every object whose name begins with gpushare."""
    lines = cluster.kubectl("get", KINDS, "--all-namespaces", "--output=name").split()
    return {each for each in lines if "/gpushare" in each}


def test_helm_installs_upgrades_and_uninstalls_everything(control_plane: Cluster, follow: Follow):
    install = block("sh", "helm install")
    assert "gpushare scheduler-config" in follow.run(install)
    follow.run(LABEL)
    assert {
        "daemonset.apps/gpushare-deviceplugin",
        "daemonset.apps/gpushare-extender",
        "validatingadmissionpolicy.admissionregistration.k8s.io/gpushare-decisions",
    } <= there(control_plane)

    upgrade = "helm upgrade gpushare daemonset/chart --namespace gpushare-system"
    second = f"--set scheduler=second,networkPolicy=true,{POLICY}"
    notes = follow.run(f"{upgrade} {second}")
    assert "get schedulerName: gpushare-scheduler by a MutatingAdmissionPolicy" in notes
    changed = there(control_plane)
    assert "deployment.apps/gpushare-scheduler" in changed
    assert "daemonset.apps/gpushare-extender" not in changed
    assert "networkpolicy.networking.k8s.io/gpushare-scheduler" in changed
    await_plugins(control_plane)

    follow.run("helm uninstall gpushare --namespace gpushare-system")
    assert there(control_plane) == set()
    kept = control_plane.kubectl("-n", "gpushare-system", "get", "secrets", "--output=name")
    assert kept.split() == ["secret/gpushare-extender-tls", "secret/gpushare-scheduler-tls"]
    with pytest.raises(CommandError, match="are of the release gpushare, so the release other"):
        follow.run(install.replace("helm install gpushare", "helm install other"))
    assert there(control_plane) == set()


GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_a_mutating_policy_sets_the_scheduler_and_tolerations_of_pods_with_gpu_memory(
    control_plane: Cluster, follow: Follow
):
    words = "gpushare daemonset/chart --namespace gpushare-system --create-namespace"
    follow.run(f"helm upgrade --install {words} --set scheduler=second,{POLICY}")
    without = pod("without")
    without["spec"]["containers"][0].pop("resources", None)
    initial = pod("initial")
    initial["spec"]["initContainers"] = [container("first", 1)]
    tolerant, named = pod("tolerant", 1), pod("named", 1)
    tolerant["spec"]["tolerations"] = [{"operator": "Exists"}]
    named["spec"]["schedulerName"] = "gpushare-scheduler"
    for described, scheduler, tolerations in (
        (pod("asks", 1), "gpushare-scheduler", [GPU_TAINT]),
        (initial, "gpushare-scheduler", [GPU_TAINT]),
        (named, "gpushare-scheduler", [GPU_TAINT]),
        (tolerant, "gpushare-scheduler", [{"operator": "Exists"}]),
        (without, "default-scheduler", []),
    ):
        follow.write("pod.json", json.dumps(described))
        wanted = (scheduler, tolerations)

        def other(wanted: object = wanted) -> str | None:
            """Return what the pod gets or the refusal, unless as wanted: policies take time."""
            try:
                text = follow.run("kubectl create --dry-run=server -f pod.json -o json")
            except CommandError as err:
                return str(err)
            spec = json.loads(text)["spec"]
            tolerated = [
                each
                for each in spec.get("tolerations", ())
                if not each.get("key", "").startswith("node.kubernetes.io/")
            ]
            found = (spec["schedulerName"], tolerated)
            return None if found == wanted else str(found)

        wait_until(f"what {described['metadata']['name']} gets", other, seconds=60)
    follow.run("helm uninstall gpushare --namespace gpushare-system")


@pytest.mark.parametrize("platform", ["talos", "k0s", "microk8s"])
def test_the_api_server_accepts_the_values_of_a_platform(
    control_plane: Cluster, follow: Follow, platform: str
):
    control_plane.kubectl("apply", "-f", str(ROOT / "daemonset/base/access/namespace.yaml"))
    values = f"--values daemonset/chart/values/{platform}.yaml"
    words = "gpushare daemonset/chart --namespace gpushare-system"
    made = follow.run(
        f"helm template {words} {values} --kube-version 1.34.4 | "
        "kubectl apply --dry-run=server --validate=strict -f - -o name"
    )
    assert "daemonset.apps/gpushare-deviceplugin" in made


def test_helm_takes_the_namespace_over_with_its_annotations_and_keeps_it(
    control_plane: Cluster, follow: Follow
):
    words = "gpushare daemonset/chart --namespace gpushare-system --create-namespace"
    annotations = {"example.com/node-selector": "gpu=yes"}
    own = {"namespace": {"create": True, "annotations": annotations}}
    follow.write("own.yaml", yaml.safe_dump(own))
    follow.run(f"helm upgrade --install {words} --take-ownership --values own.yaml")
    follow.run("helm uninstall gpushare --namespace gpushare-system")
    shown = control_plane.kubectl("get", "namespace", "gpushare-system", "--output=json")
    metadata = json.loads(shown)["metadata"]
    assert annotations.items() <= metadata["annotations"].items()
    assert metadata["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_what_the_cluster_lacks_is_named_before_anything_is_created(
    control_plane: Cluster, follow: Follow
):
    before = there(control_plane)
    install = "helm install gpushare daemonset/chart --namespace gpushare-system --set"
    for values, said in (
        ("certificates.source=cert-manager", "this cluster has no cert-manager.io/v1"),
        ("monitoring.podMonitor.enabled=true", "this cluster has no monitoring.coreos.com/v1"),
        ("certificates.source=existing", "gpushare certificates | kubectl apply -f -"),
    ):
        with pytest.raises(CommandError, match=re.escape(said)):
            follow.run(f"{install} {values}")
    assert there(control_plane) == before


@pytest.mark.parametrize(
    "values", sorted((CHART / "values").glob("*.yaml")), ids=lambda at: at.stem
)
def test_the_api_server_takes_what_the_values_of_a_platform_render(follow: Follow, values: Path):
    follow.run(block("sh", "gpushare certificates", OPTIONS).splitlines()[0])
    words = f"gpushare daemonset/chart --namespace gpushare-system --values {values}"
    version = "--kube-version $(kubectl version -o json | grep -o 'v[0-9][0-9.]*' | tail -n1)"
    follow.run(f"helm template {words} {version} --skip-tests > all.yaml")
    follow.run("kubectl apply -f all.yaml --dry-run=server --validate=strict")


def test_the_documented_commands_install_and_upgrade_it(control_plane: Cluster, follow: Follow):
    page = commands(block("sh", "helm install", EKS))
    (install,) = [each for each in page if each.startswith("helm install")]
    follow.run(f"{install} --create-namespace\n{LABEL}")
    installed = there(control_plane)
    assert "deployment.apps/gpushare-scheduler" in installed
    await_plugins(control_plane)
    assert "REVISION: 2" in follow.run(block("sh", "helm upgrade", UPGRADE))
    assert there(control_plane) == installed
    follow.run("helm uninstall gpushare --namespace gpushare-system")


def test_a_secret_that_helm_did_not_make_is_used_and_stays(control_plane: Cluster, follow: Follow):
    namespace, certificates, _ = block("sh", "gpushare certificates", OPTIONS).splitlines()
    follow.run(f"{namespace}\n{certificates}")
    read = "kubectl --namespace gpushare-system get secret gpushare-extender-tls -o json"
    before = follow.run(read)
    words = "gpushare daemonset/chart --namespace gpushare-system"
    # Without pods: those that begin while their owner goes would hold up the next installation.
    nowhere = "--set plugin.nodeSelector.no=where,extender.nodeSelector.no=where"
    follow.run(f"helm install {words} {nowhere}")
    follow.run("helm uninstall gpushare --namespace gpushare-system")
    assert follow.run(read) == before


def pods_by_node(cluster: Cluster, namespace: str, label: str) -> dict[str, str]:
    """Return the name of each node's pod with a label, without pods that are being deleted."""
    found = json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-l", label, "-o", "json"))
    return {
        each["spec"]["nodeName"]: each["metadata"]["name"]
        for each in found["items"]
        if "nodeName" in each["spec"] and "deletionTimestamp" not in each["metadata"]
    }


def await_plugins(cluster: Cluster) -> None:
    """Wait until both nodes have a plugin's pod."""
    label = "app.kubernetes.io/name=gpushare-deviceplugin"

    def missing() -> str | None:
        found = pods_by_node(cluster, "gpushare-system", label)
        return None if found.keys() == {"gpu-1", "gpu-2"} else str(found)

    wait_until("the plugin's pods", missing, seconds=60)


def our_plugin(cluster: Cluster) -> dict[str, Any]:
    words = ("-n", "gpushare-system", "get", "daemonset", "gpushare-deviceplugin", "-o", "json")
    spec: dict[str, Any] = json.loads(cluster.kubectl(*words))["spec"]["template"]["spec"]
    return spec


def test_the_documented_steps_of_a_migration_work(control_plane: Cluster, follow: Follow):
    older = ("kube-system", "name=gpushare-device-plugin-ds")
    ours = ("gpushare-system", "app.kubernetes.io/name=gpushare-deviceplugin")
    nodes = {"gpu-1", "gpu-2"}

    def wait_for(which: tuple[str, str], wanted: set[str]) -> None:
        def others() -> str | None:
            found = pods_by_node(control_plane, *which)
            return None if found.keys() == wanted else str(found)

        wait_until(f"pods {which} on {wanted}", others, seconds=60)

    # No kubelet here ends the pods of other tests, and the DaemonSet controller does not notice the
    # label of a node that has a pod with the same labels.
    control_plane.kubectl("-n", "gpushare-system", *END_PODS)
    follow.run(LABEL)
    control_plane.kubectl("apply", "-f", "-", stdin=OLDER)
    wait_for(older, nodes)

    follow.run(block("sh", "kubectl -n kube-system get deployment", MIGRATE))
    left = control_plane.kubectl("-n", "kube-system", "get", "deployments,services", "-o", "name")
    assert "schd-extender" not in left
    whole = yaml.safe_load(block("yaml", "kind: Kustomization", OPTIONS))
    base = yaml.safe_load(block("yaml", "resources: .*migrating", MIGRATE))
    follow.write("my-cluster/kustomization.yaml", yaml.safe_dump({**whole, **base}))
    follow.run(block("sh", "kubectl apply -k", OPTIONS))
    before = there(control_plane)
    assert "daemonset.apps/gpushare-extender" in before
    assert [each for each in before if each.startswith("validating")] == []
    assert "--reserved=none" in our_plugin(control_plane)["containers"][0]["args"]

    follow.run(block("sh", "kubectl -n kube-system patch", MIGRATE))
    wait_for(older, nodes)
    none, gone, new, ready, check = commands(block("sh", "until kubectl", MIGRATE))
    assert "gpushare migrate" in check

    def migrate(node: str, left: set[str]) -> None:
        for each in (none, gone):
            follow.run(each.replace("NODE", node))
        assert pods_by_node(control_plane, *older).keys() == left
        assert pods_by_node(control_plane, *ours).keys() == nodes - left - {node}
        follow.run(new.replace("NODE", node))
        wait_for(ours, nodes - left)
        say_ready(control_plane, pods_by_node(control_plane, *ours)[node])
        follow.run(ready.replace("NODE", node))

    migrate("gpu-1", {"gpu-2"})
    roll_back(control_plane, follow, "gpu-1")
    wait_for(older, nodes)
    assert pods_by_node(control_plane, *ours) == {}
    migrate("gpu-1", {"gpu-2"})
    migrate("gpu-2", set())

    last = yaml.safe_load(block("yaml", "resources: .*base", MIGRATE))
    follow.write("my-cluster/kustomization.yaml", yaml.safe_dump({**whole, **last}))
    follow.run(block("sh", "kubectl apply -k my-cluster", MIGRATE))
    assert len([each for each in there(control_plane) if each.startswith("validating")]) == 20
    assert "--reserved=none" in our_plugin(control_plane)["containers"][0]["args"]
    assert our_plugin(control_plane)["nodeSelector"] == {"gpushare": "true"}
    follow.run(block("sh", "kubectl -n kube-system delete daemonset", MIGRATE))
    wait_for(older, set())
    assert control_plane.kubectl("get", "nodes", "-l", "gpushare.aliyun.com/plugin") == ""


def roll_back(cluster: Cluster, follow: Follow, node: str) -> None:
    """Follow the instructions; a pod ends after the first command."""
    away, *others = commands(block("sh", "kubectl annotate pods", MIGRATE))
    follow.run(away.replace("NODE", node))
    cluster.kubectl("-n", "gpushare-system", *END_PODS)
    for each in others:
        follow.run(each.replace("NODE", node))


def commands(text: str) -> list[str]:
    """Return the commands of a block."""
    return [each.text for each in markdown.commands(markdown.Block(MIGRATE, 0, "sh", text))]


def say_ready(cluster: Cluster, name: str) -> None:
    """Set a pod's Ready condition, since a paper node has no kubelet."""
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    words = ("--subresource=status", "--type=strategic", "-p", json.dumps({"status": status}))
    cluster.kubectl("-n", "gpushare-system", "patch", "pod", name, *words)


def test_the_quotas_in_the_instructions_hold(control_plane: Cluster, follow: Follow):
    follow.run(block("sh", "gpushare certificates", OPTIONS).splitlines()[0])
    follow.write("quota.yaml", block("yaml", "  hard: {requests", OPTIONS))
    follow.run("kubectl apply -f quota.yaml -f daemonset/platforms/gke/quota.yaml")
    follow.write("pod.json", json.dumps(pod("large", 25)))

    def refused() -> str | None:
        """Return the message unless the quota counts: before that it is another one."""
        try:
            return follow.run("kubectl create --dry-run=server -f pod.json")
        except CommandError as err:
            exceeded = "exceeded quota: gpu-memory, requested: requests.aliyun.com/gpu-mem=25"
            return None if exceeded in str(err) else str(err)

    wait_until("the quota to count", refused, seconds=60)


def test_the_api_server_knows_all_fields_of_all_components(control_plane: Cluster, follow: Follow):
    follow.run(block("sh", "gpushare certificates", OPTIONS).splitlines()[0])
    folders = [
        str(each.relative_to(ROOT))
        for kind in ("overlays", "platforms")
        for each in ROOT.glob(f"daemonset/{kind}/*")
    ]
    own = yaml.safe_load(block("yaml", "kind: Kustomization", OPTIONS))
    for component in ROOT.glob("daemonset/components/*"):
        own["components"] = [f"../{component.relative_to(ROOT)}"]
        folders.append(f"with-{component.name}")
        follow.write(f"{folders[-1]}/kustomization.yaml", yaml.safe_dump(own))
    # Most objects are the same in all of them, and a server takes its time for each.
    found, served = set(), served_version(control_plane)
    for folder in folders:
        for each in yaml.safe_load_all(follow.run(f"kubectl kustomize {folder}")):
            if each["kind"].startswith("MutatingAdmissionPolicy"):
                each["apiVersion"] = served
            found.add(json.dumps(each))
    follow.write("all.yaml", yaml.safe_dump_all(map(json.loads, found)))
    follow.run("kubectl apply -f all.yaml --dry-run=server --validate=strict")
