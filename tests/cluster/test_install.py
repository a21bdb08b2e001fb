"""Installing as docs/install.md says: kubeadm, what kube-scheduler takes, the policy."""

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpusharectl.certificates import files as certificates
from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import Gpushare
from localcluster.tools import tool
from localcluster.versions import DEFAULT
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, container, pod
from tests.cluster.expect import CARDS, wait_event

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubeadm")]

ROOT = Path(__file__).parents[2]
SCHEDULER = ROOT / "daemonset/scheduler"
SECOND = ROOT / "daemonset/overlays/second-scheduler"
CONFIG = "/etc/kubernetes/gpushare-scheduler.yaml"
NAME = "gpushare-scheduler-name"
# Takes MOUNT=SOURCE pairs up to --, shows nothing else in /etc, and becomes what follows.
MOUNTED = """
set -e
mount -t tmpfs -o size=1m tmpfs /etc
while [ "$1" != -- ]; do
    mkdir -p "$(dirname "${1%%=*}")"
    : > "${1%%=*}"
    mount --bind -o ro "${1#*=}" "${1%%=*}"
    shift
done
shift
exec "$@"
"""


def scheduler_config(*arguments: str) -> str:
    command = [sys.executable, "-m", "gpusharectl", "scheduler-config", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def static_pod(folder: Path, cluster_configuration: dict[str, Any], **init: Any) -> dict[str, Any]:
    """Return the static pod of kube-scheduler that kubeadm writes."""
    api = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
    documents = [
        {
            **api,
            "kind": "InitConfiguration",
            "localAPIEndpoint": {"advertiseAddress": "10.0.0.1"},
            "nodeRegistration": {
                "name": "control-plane",
                "criSocket": "unix:///run/containerd/containerd.sock",
            },
            **init,
        },
        {
            **api,
            "kind": "ClusterConfiguration",
            "kubernetesVersion": DEFAULT.release,
            **cluster_configuration,
        },
    ]
    folder.mkdir()
    config = folder / "kubeadm.yaml"
    config.write_text(yaml.safe_dump_all(documents))
    subprocess.run(
        [
            tool("kubeadm", print),
            *("init", "phase", "control-plane", "scheduler"),
            *("--config", config, "--dry-run"),
        ],
        env={**os.environ, "KUBEADM_INIT_DRYRUN_DIR": str(folder)},
        check=True,
    )
    return yaml.safe_load((folder / "kube-scheduler.yaml").read_text())


def from_the_configuration(folder: Path) -> dict[str, Any]:
    return static_pod(
        folder / "configuration", yaml.safe_load((SCHEDULER / "kubeadm.yaml").read_text())
    )


def test_kubeadms_patch_says_what_its_configuration_and_the_instructions_say(tmp_path):
    patched = static_pod(
        tmp_path / "patched", {}, patches={"directory": str(SCHEDULER / "patches")}
    )
    for found, wanted in zip(parts(patched), parts(from_the_configuration(tmp_path)), strict=True):
        assert sorted(map(str, found)) == sorted(map(str, wanted))
    (by_hand,) = [
        each
        for each in (ROOT / "docs/install.md").read_text().split("```")
        if each.startswith("yaml\nspec:\n  containers:")
    ]
    for shown, found in zip(
        parts(yaml.safe_load(by_hand.removeprefix("yaml"))), parts(patched), strict=True
    ):
        assert all(each in found for each in shown)


def parts(manifest: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    (scheduler,) = manifest["spec"]["containers"]
    return scheduler["command"], scheduler["volumeMounts"], manifest["spec"]["volumes"]


@pytest.fixture
def by_kubeadm(gpushare: Gpushare, tmp_path: Path) -> Iterator[Cluster]:
    """Run kube-scheduler as kubeadm's static pod would, instead of the cluster's own.

    It has the flags of the static pod, and of /etc the files that are mounted there.
    """
    cluster = gpushare.cluster
    (tmp_path / "gpushare-scheduler.yaml").write_text(scheduler_config())
    on_the_machine = {
        CONFIG: tmp_path / "gpushare-scheduler.yaml",
        "/etc/kubernetes/scheduler.conf": cluster.state.kubeconfigs / "kube-scheduler.kubeconfig",
    }
    (program, *flags), mounts, volumes = parts(from_the_configuration(tmp_path))
    paths = {each["name"]: each["hostPath"]["path"] for each in volumes}
    pairs = [f"{each['mountPath']}={on_the_machine[paths[each['name']]]}" for each in mounts]
    words = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", *pairs, "--"]
    cluster.stop("kube-scheduler")
    try:
        cluster.start_program(
            "kubeadms-scheduler", [*words, str(cluster.binaries / program), *flags]
        )
        yield cluster
    finally:
        cluster.stop("kubeadms-scheduler")
        cluster.start("kube-scheduler")


def test_a_pod_is_placed_by_the_extender_under_kubeadms_kube_scheduler(by_kubeadm: Cluster):
    pods = Workloads(by_kubeadm)
    pods.run(pod("by-kubeadm", 1000), pod("without-gpu"))
    assert pods.annotations("by-kubeadm")[CARDS].startswith("GPU-")
    assert CARDS not in pods.annotations("without-gpu")


def test_kube_scheduler_takes_every_configuration_that_is_printed(cluster: Cluster, tmp_path: Path):
    kubeconfig = cluster.state.kubeconfigs / "kube-scheduler.kubeconfig"
    made = certificates.make((certificates.SCHEDULER,), now=dt.datetime.now(dt.UTC), days=1)
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    name = certificates.SCHEDULER
    tls = [
        f"--authority={tmp_path / 'ca.crt'}",
        f"--certificate={tmp_path / f'{name}.crt'}",
        f"--key={tmp_path / f'{name}.key'}",
    ]
    own = tmp_path / "own.yaml"
    own.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: default-scheduler}, {schedulerName: batch}]\n"
    )
    for number, arguments in enumerate(
        ([], ["--url=https://10.0.0.5:29769", *tls], [f"--merge={own}"])
    ):
        config, written = tmp_path / f"{number}.yaml", tmp_path / f"{number}.written"
        config.write_text(scheduler_config(f"--scheduler-kubeconfig={kubeconfig}", *arguments))
        subprocess.run(
            [
                cluster.binaries / "kube-scheduler",
                f"--config={config}",
                f"--write-config-to={written}",
                "--authentication-skip-lookup",
                "--secure-port=0",
            ],
            check=True,
        )
        given, taken = yaml.safe_load(config.read_text()), yaml.safe_load(written.read_text())
        assert taken["extenders"][0]["urlPrefix"] == given["extenders"][0]["urlPrefix"]
        assert taken["percentageOfNodesToScore"] == 100
        names = [each["schedulerName"] for each in taken["profiles"]]
        assert names == (
            ["default-scheduler", "batch"] if arguments == [f"--merge={own}"] else names
        )


def refusal(cluster: Cluster, described: dict[str, Any]) -> str:
    """Return why the API server rejects a pod; empty if it accepts it."""
    try:
        with cluster.api() as api:
            api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", described)
    except ApiError as err:
        return str(err)
    return ""


@pytest.fixture
def with_policy(cluster: Cluster) -> Iterator[Cluster]:
    """Apply the overlay's policy about scheduler names."""
    rendered = yaml.safe_load_all(cluster.kubectl("kustomize", str(SECOND)))
    policy = yaml.safe_dump_all(each for each in rendered if each["metadata"]["name"] == NAME)
    try:
        cluster.kubectl("apply", "-f", "-", stdin=policy)
        wait_until(
            "the policy to hold",
            lambda: None if refusal(cluster, pod("probe", 1)) else "a pod is taken",
            seconds=60,
        )
        yield cluster
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=policy)
        wait_until(
            "the policy to be gone", lambda: refusal(cluster, pod("probe", 1)) or None, seconds=60
        )


@pytest.fixture
def before(pods: Workloads) -> str:
    """Run a pod with GPU memory before the policy exists."""
    pods.run(pod("before", 100, node="n1"))
    return "before"


def test_the_policy_wants_our_scheduler(before: str, with_policy: Cluster, pods: Workloads):
    said = refusal(with_policy, pod("wrong", 1))
    assert "under the scheduler default-scheduler" in said
    assert "set spec.schedulerName to gpushare-scheduler" in said
    right = {"schedulerName": "gpushare-scheduler"}
    counted = {"resources": {"limits": {"aliyun.com/gpu-count": "1"}}}
    first = [container("first", 1)]
    asking = [
        pod("memory", 1, schedulerName="other"),
        pod("both", metadata={"labels": {"aliyun.com/gpu-count": "2"}}, containers=first),
        pod("init", containers=[container("main", None)], initContainers=first),
        pod("count", containers=[{**container("main", None), **counted}]),
    ]
    for described in asking:
        assert "which does not know single GPUs" in refusal(with_policy, described)
        described["spec"].update(right)
        assert refusal(with_policy, described) == ""
    assert refusal(with_policy, pod("without-gpu")) == ""
    assert refusal(with_policy, pod("elsewhere", schedulerName="other")) == ""
    # No scheduler looks at a pod that has a node. Another policy rejects it.
    assert NAME not in refusal(with_policy, pod("placed", 1, nodeName="n1"))
    # Earlier pods can still be changed and deleted.
    with_policy.kubectl("label", "pod", before, "touched=yes")
    pods.delete(before, grace=1)


def test_a_daemonset_is_told_why_its_pods_are_refused(with_policy: Cluster):
    name = "of-a-daemonset"
    template = {"metadata": {"labels": {"app": name}}, "spec": pod("", 1, node="n1")["spec"]}
    described: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }
    workloads = Workloads(with_policy)

    def applied() -> None:
        with_policy.kubectl("apply", "-f", "-", stdin=json.dumps(described))

    applied()
    try:
        wait_event(workloads, name, "gpushare-scheduler")
        template["spec"]["schedulerName"] = "gpushare-scheduler"
        applied()
        wait_until("its pod", lambda: None if workloads.all(f"app={name}") else "none", seconds=60)
    finally:
        with_policy.kubectl("delete", "daemonset", name)
