"""Pods wait behind our scheduling gate where they should, and only the extender releases them."""

import asyncio
import json
import logging
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from extender.gates.patch import nomination_patch, release_patch
from extender.gates.releaser import Outcome, Release, Releaser
from gpushare.errors import ApiError as KubeError
from gpushare.errors import Replaced
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, CommandError
from localcluster.gpushare import NAMESPACE, Gpushare
from localcluster.specs import PaperNode
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads, container, pod
from tests.cluster.bringup import fresh, own_network
from tests.cluster.expect import LONG
from tests.cluster.gated import (
    FLAGS,
    GATE,
    QUEUE,
    await_gating,
    by_policy,
    by_webhook,
    command_line,
    gated,
    gates_of,
    guard,
    left,
    tried,
)

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)

OTHER = "example.com/quota"
MANY = 500 if LONG else 100
SECONDS = 30.0
SLOT, POKE = "gpushare.aliyun.com/slot", "gpushare.aliyun.com/poke"
EVICTING = "gpushare.aliyun.com/evicting"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Bring up a cluster whose nodes run nothing and offer no GPU memory."""
    nodes = [PaperNode("p1", labels={"zone": "a"}), PaperNode("p2", labels={"zone": "b"})]
    with (
        own_network(),
        fresh(
            (), nodes, name="gpushare-gates", scheduler_config=None, api_server_flags=FLAGS
        ) as made,
    ):
        guard(made)
        made.kubectl("create", "namespace", "plain")
        await_policies(made)
        yield made


@pytest.fixture(params=["policy", "webhook"])
def gating(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with by_policy(cluster) if request.param == "policy" else by_webhook(cluster, tmp_path):
        await_gating(cluster)
        yield request.param
    await_gating(cluster, ends=True)


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[Workloads]:
    made = Workloads(cluster, QUEUE)
    yield made
    empty(cluster)


def empty(cluster: Cluster) -> None:
    """Delete all pods of QUEUE and what would create them again; no kubelet ends them."""
    group, pods = f"/apis/apps/v1/namespaces/{QUEUE}", f"/api/v1/namespaces/{QUEUE}/pods"
    owners = (
        f"{group}/deployments",
        f"{group}/daemonsets",
        f"/apis/batch/v1/namespaces/{QUEUE}/jobs",
    )

    def some() -> str | None:
        try:
            with cluster.api() as api:
                for path in owners:
                    api.request("DELETE", path, {"propagationPolicy": "Background"})
                api.request("DELETE", pods, {"gracePeriodSeconds": 0})
                number = len(api.get(pods)["items"])
        except ApiError as err:
            return str(err)
        return f"{number} pods" if number else None

    wait_until("no pod in the namespace", some, seconds=180)


def await_policies(cluster: Cluster) -> None:
    """Wait until the API server applies the policies of the component."""
    pods = Workloads(cluster, QUEUE)
    wait_until("the namespace's ServiceAccount", lambda: refused(cluster, "probe"), seconds=60)
    pods.create(gated("probe"))

    def allowed() -> str | None:
        said = patch(cluster, "probe", [{"op": "remove", "path": "/spec/schedulingGates/0"}])
        return None if "only gpushare-extender" in said else said or "the gate may be removed"

    wait_until("the policies to hold", allowed, seconds=60)
    pods.delete("probe", grace=0)


def refused(cluster: Cluster, name: str) -> str | None:
    """Return why a pod cannot be created in QUEUE, if it cannot."""
    try:
        tried(cluster, pod(name))
    except ApiError as err:
        return str(err)
    return None


def patch(cluster: Cluster, name: str, body: Any, kind: str = JSON, sub: str = "") -> str:
    """Try a patch of a pod as administrator; return the refusal, or nothing."""
    path = f"/api/v1/namespaces/{QUEUE}/pods/{name}{sub}?dryRun=All"
    try:
        with cluster.api() as api:
            api.request("PATCH", path, body, content_type=kind)
    except ApiError as err:
        return str(err)
    return ""


class Extender:
    """Writes as the extender does, with its account."""

    def __init__(self, cluster: Cluster) -> None:
        account = cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
        self._kubeconfig = str(account)

    def patch(self, name: str, body: dict[str, Any], part: str = "") -> str:
        """Patch a pod in QUEUE, or a subresource of it; return the refusal, or nothing."""

        async def asked() -> str:
            async with Kube.connect(self._kubeconfig) as kube:
                try:
                    await kube.patch_pod(QUEUE, name, body, part=part)
                except KubeError as err:
                    return str(err)
            return ""

        return asyncio.run(asked())

    def release(self, names: list[str], **places: Any) -> tuple[list[Outcome], int, float]:
        """Release pods as the leader does; return outcomes, refusals of wrong uids, and seconds."""

        async def asked() -> tuple[list[Outcome], int, float]:
            async with Kube.connect(self._kubeconfig) as kube:
                pods = [await kube.get_pod(QUEUE, name) for name in names]
                wrong = 0
                for each in pods:
                    other = {**release_patch(each, **places), "metadata": {"uid": "not-its-uid"}}
                    try:
                        await kube.patch_pod(QUEUE, each.metadata.name, other)
                    except Replaced:
                        wrong += 1
                begun = time.monotonic()
                node, cards = places.get("node"), places.get("cards", ())
                releases = [
                    Release(
                        each,
                        release_patch(each, **places),
                        nomination_patch(each, node, cards) if node else None,
                    )
                    for each in pods
                ]
                found = await Releaser(_Unfenced(kube)).release_all(releases)
                return [*found.values()], wrong, time.monotonic() - begun

        return asyncio.run(asked())


class _Unfenced:
    """Writes without a lease: there is one writer only."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def release_pod(self, pod: Pod, patch: Any) -> None:
        await self._kube.patch_pod(pod.metadata.namespace, pod.metadata.name, patch)

    async def nominate_node(self, pod: Pod, patch: Any) -> None:
        await self._kube.patch_pod(pod.metadata.namespace, pod.metadata.name, patch, part="status")


def labelled(name: str, key: str, **spec: Any) -> dict[str, Any]:
    return pod(name, metadata={"labels": {key: "g"}}, **spec)


def test_pods_with_gpu_memory_and_members_of_gangs_are_gated_once_and_no_other_pod(
    cluster: Cluster, gating: str
):
    requests = pod("requests")
    requests["spec"]["containers"][0]["resources"] = {
        kind: {"aliyun.com/gpu-mem": "1"} for kind in ("limits", "requests")
    }
    daemons = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["p1"]}]}
    required = {"nodeSelectorTerms": [node]}
    on_its_node = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    owned = {"ownerReferences": [daemons]}
    controlled = {"ownerReferences": [{**daemons, "controller": True}]}
    other = {"name": OTHER}
    meant = [
        (pod("gpu", 1), [GATE]),
        (requests, [GATE]),
        (pod("init", initContainers=[container("first", 1)]), [GATE]),
        (labelled("labels", "pod-group.scheduling.sigs.k8s.io/name"), [GATE]),
        (labelled("crd", "scheduling.x-k8s.io/pod-group"), [GATE]),
        (labelled("kueue", "kueue.x-k8s.io/pod-group-name"), [GATE]),
        (pod("note", metadata={"annotations": {"kueue.x-k8s.io/pod-group-name": "g"}}), [GATE]),
        (pod("foreign", 1, schedulingGates=[other]), [GATE, OTHER]),
        (pod("owned", 1, metadata=owned, affinity=on_its_node), [GATE]),
        (pod("anywhere", 1, metadata=controlled), [GATE]),
        (gated("own"), [GATE]),
        (gated("both", OTHER), [GATE, OTHER]),
    ]
    others = [
        (pod("cpu"), []),
        (pod("foreign-cpu", schedulingGates=[other]), [OTHER]),
        (labelled("bound", "scheduling.x-k8s.io/pod-group", nodeName="p1"), []),
        (pod("daemon", 1, metadata=controlled, affinity=on_its_node), []),
        (labelled("no-gang", "app"), []),
    ]
    for described, gates in meant + others:
        assert sorted(tried(cluster, described)) == sorted(gates), described["metadata"]["name"]
    assert tried(cluster, pod("elsewhere", 1), "plain") == []
    for system in ("kube-system", NAMESPACE):
        label = ("label", "namespace", system, "--overwrite")
        cluster.kubectl(*label, "gpushare.aliyun.com/queue=true")
        assert tried(cluster, pod("system", 1), system) == []
        cluster.kubectl(*label[:3], "gpushare.aliyun.com/queue-")


def test_pods_of_every_controller_are_gated_but_those_of_daemon_sets(
    queue: Workloads, cluster: Cluster, gating: str
):
    queue.deploy("deployed", replicas=3, units=1)
    template = {
        "metadata": {"labels": {"app": "t"}},
        "spec": {**pod("", 1)["spec"], "restartPolicy": "Never"},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {"parallelism": 3, "completions": 3, "template": template},
    }
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "daemons"},
        "spec": {
            "selector": {"matchLabels": {"app": "t"}},
            "template": {**template, "spec": pod("", 1)["spec"]},
        },
    }
    plain_job = {**job, "metadata": {"name": "plain-job"}}
    for described, namespace in ((job, QUEUE), (daemon_set, QUEUE), (plain_job, "plain")):
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(described))

    def missing() -> str | None:
        found = [*queue.all(), *Workloads(cluster, "plain").all()]
        owners = [each["metadata"]["ownerReferences"][0]["kind"] for each in found]
        counted = {kind: owners.count(kind) for kind in ("ReplicaSet", "Job", "DaemonSet")}
        wanted = {"ReplicaSet": 3, "Job": 6, "DaemonSet": 2}
        return None if counted == wanted else str(counted)

    wait_until("the pods of all controllers", missing, seconds=60)
    for each in queue.all():
        is_daemon = each["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
        assert gates_of(each) == ([] if is_daemon else [GATE])
    assert not any(gates_of(each) for each in Workloads(cluster, "plain").all())
    cluster.kubectl("delete", "job", "plain-job", "-n", "plain")


def test_while_no_extender_answers_the_webhook_pods_are_created_without_a_gate(
    cluster: Cluster, queue: Workloads, tmp_path: Path
):
    with by_webhook(cluster, tmp_path):
        await_gating(cluster)
        cluster.stop("extender")
        begun = time.monotonic()
        queue.create(*(pod(f"p{number}", 1) for number in range(20)))
        assert time.monotonic() - begun < 50  # to wait for an answer takes 5 s a pod
        assert left(cluster) == 0
        cluster.start("extender")
        await_gating(cluster)


def test_nobody_but_the_extender_removes_the_gate_and_nobody_adds_it_later(
    cluster: Cluster, queue: Workloads
):
    queue.create(gated("waits", OTHER), pod("free", 1))
    for body, kind in (
        ([{"op": "remove", "path": "/spec/schedulingGates/0"}], JSON),
        ([{"op": "remove", "path": "/spec/schedulingGates"}], JSON),
        ({"spec": {"schedulingGates": [{"name": OTHER}]}}, MERGE),
        ({"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}, STRATEGIC),
    ):
        said = patch(cluster, "waits", body, kind)
        assert f"only gpushare-extender may remove the scheduling gate {GATE}" in said
    with cluster.api() as api:
        path = f"/api/v1/namespaces/{QUEUE}/pods/waits"
        whole = {**queue.get("waits")}
        whole["spec"] = {**whole["spec"], "schedulingGates": [{"name": OTHER}]}
        with pytest.raises(ApiError, match="only gpushare-extender may remove"):
            api.request("PUT", path, whole)
        api.request("PUT", f"{path}/status", whole)
    assert gates_of(queue.get("waits")) == [GATE, OTHER]
    # Gates of others and everything else of a gated pod are not ours to guard.
    remove_other = [{"op": "remove", "path": "/spec/schedulingGates/1"}]
    assert patch(cluster, "waits", remove_other) == ""
    assert patch(cluster, "waits", {"metadata": {"labels": {"a": "b"}}}, MERGE) == ""
    assert "only deletion is allowed" in patch(
        cluster, "free", [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
    )
    queue.delete("waits", grace=0)


def test_one_patch_of_the_extender_releases_a_pod_and_says_where_it_may_go(
    cluster: Cluster, queue: Workloads
):
    names = [f"p{number}" for number in range(100)]
    queue.create(*(gated(name, *[OTHER] * (number % 2)) for number, name in enumerate(names)))
    places = {"node": "p1", "cards": ["GPU-1"], "zone": ("zone", "a")}
    outcomes, wrong, seconds = Extender(cluster).release(names, **places)
    log.info("100 releases in %.2f s", seconds)
    assert wrong == 100
    assert outcomes == [Outcome.RELEASED] * 100
    for number, name in enumerate(names):
        made = queue.get(name)
        assert gates_of(made) == [OTHER] * (number % 2)
        assert made["spec"]["nodeSelector"] == {"zone": "a"}
        if number % 2:  # kube-scheduler has tried the others, which fit nowhere
            assert made["status"]["nominatedNodeName"] == "p1"
        assert json.loads(made["metadata"]["annotations"][SLOT])["node"] == "p1"


def test_a_patch_that_a_pod_contradicts_changes_nothing_of_it(cluster: Cluster, queue: Workloads):
    queue.create(gated("elsewhere", nodeSelector={"zone": "b"}))
    outcomes, _, _ = Extender(cluster).release(["elsewhere"], zone=("zone", "a"))
    assert outcomes == [Outcome.CONFLICT]
    made = queue.get("elsewhere")
    assert (gates_of(made), made["spec"]["nodeSelector"]) == ([GATE], {"zone": "b"})


def test_a_pod_with_node_affinity_of_its_own_is_released_and_keeps_it(
    cluster: Cluster, queue: Workloads
):
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in ("a", "b")
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    queue.create(gated("choosy", affinity=affinity))
    outcomes, _, _ = Extender(cluster).release(["choosy"], zone=("zone", "a"))
    assert outcomes == [Outcome.RELEASED]
    assert queue.get("choosy")["spec"]["affinity"] == affinity


def test_the_extender_changes_nothing_else_of_any_pod(cluster: Cluster, queue: Workloads):
    queue.create(
        gated("waits", OTHER, metadata={"annotations": {"own": "1"}}, tolerations=[]),
        pod("free", metadata={"labels": {"app": "a"}}),
    )
    extender = Extender(cluster)
    image = {"containers": [{"name": "main", "image": "other"}]}
    toleration = {"key": "a", "operator": "Exists"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["p1"]}]}
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    for body in (
        {"metadata": {"labels": {"app": "b"}}},
        {"metadata": {"annotations": {"own": "2"}}},
        {"metadata": {"annotations": {"own": None}}},
        {"metadata": {"annotations": {"gpushare.aliyun.com/cards": "GPU-1"}}},
        {"metadata": {"finalizers": ["example.com/f"]}},
        {"metadata": {"ownerReferences": [owner]}},
        {"spec": image},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"tolerations": [toleration]}},
        {"spec": {"schedulingGates": [{"name": OTHER, "$patch": "delete"}]}},
        {"spec": {"affinity": {"nodeAffinity": {preferred: [term]}}}},
        {"spec": {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [only]}}}}},
    ):
        for name in ("waits", "free"):
            before = queue.get(name)
            said = extender.patch(name, body)
            is_void = name == "free" and ("own" in str(body) or "schedulingGates" in str(body))
            assert ("gpushare-extender may" in said or "may not change fields" in said) or is_void
            if is_void:
                assert queue.get(name)["spec"] == before["spec"]
    own = {"metadata": {"annotations": {SLOT: "{}", POKE: "1", EVICTING: "0a1b2c3d"}}}
    assert [extender.patch(name, own) for name in ("waits", "free")] == ["", ""]
    assert extender.patch("waits", {"spec": {"nodeSelector": {"zone": "a"}}}) == ""
    for wrong in (
        {"status": {"phase": "Succeeded"}},
        {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"metadata": {"labels": {"app": "b"}}, "status": {"nominatedNodeName": "p1"}},
    ):
        assert "gpushare-extender may" in extender.patch("free", wrong, "status")
    nominates = own | {"status": {"nominatedNodeName": "p1"}}
    assert extender.patch("free", nominates, "status") == ""
    assert queue.get("free")["status"]["nominatedNodeName"] == "p1"


def create_many(cluster: Cluster) -> None:
    """Create MANY gated pods, some without GPU memory, some with a gate of others."""

    def create(part: int) -> None:
        described = [gated(f"p{part}-{number}") for number in range(MANY // 10 - 2)]
        described.append(gated(f"p{part}-foreign", OTHER))
        without = gated(f"p{part}-without")
        without["spec"]["containers"] = [container("main", None)]
        Workloads(cluster, QUEUE).create(*described, without)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(create, range(10)))
    assert left(cluster) == MANY


def seconds_until_none_is_left(cluster: Cluster, begun: float) -> float:
    def some() -> str | None:
        number = left(cluster)
        return f"{number} pods are gated" if number else None

    wait_until("all pods to be released", some, seconds=2 * SECONDS)
    return time.monotonic() - begun


def test_with_gates_off_the_extender_releases_every_gated_pod(cluster: Cluster, queue: Workloads):
    create_many(cluster)
    begun = time.monotonic()
    Gpushare(cluster).start_extender(gates=False)
    try:
        seconds = seconds_until_none_is_left(cluster, begun)
        log.info("gates off: %d pods in %.1f s", MANY, seconds)
        assert seconds <= patient(SECONDS)
        assert sum(gates_of(each) == [OTHER] for each in queue.all()) == 10
        queue.create(gated("later"))
        assert seconds_until_none_is_left(cluster, time.monotonic()) <= patient(SECONDS)
    finally:
        cluster.stop("extender")


def test_uninstall_releases_every_gated_pod(cluster: Cluster, queue: Workloads):
    """It is the last test: it removes the policies."""
    with by_policy(cluster):
        await_gating(cluster)
        create_many(cluster)
        shown = run(cluster, "uninstall", "--dry-run")
        assert f"from pods: the scheduling gate {GATE}: {QUEUE}/p0-0" in shown
        begun = time.monotonic()
        run(cluster, "uninstall", "--yes", "--no-wait")
        seconds = seconds_until_none_is_left(cluster, begun)
        log.info("uninstall: %d pods in %.1f s", MANY, seconds)
        assert seconds <= patient(SECONDS)
        assert sum(gates_of(each) == [OTHER] for each in queue.all()) == 10
        assert "not installed" in run(cluster, "uninstall", "--dry-run")
    left_over = cluster.kubectl(
        "get", "validatingadmissionpolicies,clusterroles,clusterrolebindings", "-o", "name"
    )
    assert "gpushare" not in left_over


def run(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        command_line(cluster, *words),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandError(done.stderr)
    return done.stdout
