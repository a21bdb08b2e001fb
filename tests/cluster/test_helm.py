"""One helm install on a cluster without gpushare; after it, only the nodes are labelled."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from gpusharectl.app import cli
from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.gpushare import CARD_MIB, control_plane_node
from localcluster.nvml import CardSpec
from localcluster.run import run
from localcluster.shipped import NAMESPACE, Shipped
from localcluster.specs import NodeSpec
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads, is_running, pod
from tests.cluster.bringup import fresh
from tests.cluster.command_line import CommandLine
from tests.cluster.expect import create_again, env_is_card_on_record, refusal
from tests.cluster.gated import GATE, QUEUE, await_gating, gates_of
from tests.cluster.pod_status import change_status, open_fields
from tests.rights import documented, writes

pytestmark = pytest.mark.cluster

CHART = Path(__file__).parents[2] / "daemonset/chart"
SCHEDULER = "gpushare-scheduler"
# NVIDIA's runtime is the default on these nodes, as on EKS.
VALUES = "scheduler=second,plugin.runtimeClassName="
CARDS = tuple(CardSpec(f"GPU-n1-{place}", mem_mib=CARD_MIB) for place in range(2))
UNITS = 8  # GiB


@pytest.fixture(scope="module")
def cluster(image: Path) -> Iterator[Cluster]:
    """A GPU node without label, and a kube-scheduler that knows no extender."""
    nodes = [NodeSpec("n1", cards=CARDS), control_plane_node()]
    with fresh(nodes, name="gpushare-helm", scheduler_config=None, archives=[image]) as made:
        yield made


class Helm:
    def __init__(self, program: Path, cluster: Cluster) -> None:
        self._program, self._cluster = program, cluster

    def __call__(self, *words: str) -> str:
        env = {**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)}
        whole = [str(self._program), *words, "--namespace", NAMESPACE]
        return run(whole, env=env, seconds=180)


@pytest.fixture(scope="module")
def helm(cluster: Cluster, helm: Path) -> Helm:
    return Helm(helm, cluster)


@pytest.fixture(scope="module")
def installed(cluster: Cluster, helm: Helm) -> Workloads:
    """Install the chart and label the node; return once the node offers GPU memory."""
    helm("install", "gpushare", str(CHART), "--create-namespace", "--set", VALUES)
    cluster.kubectl("label", "node", "n1", "gpushare=true")
    Shipped(cluster).await_rollout()

    def missing() -> str | None:
        with cluster.api() as api:
            status = api.get("/api/v1/nodes/n1")["status"]
        return None if int(status["allocatable"].get("aliyun.com/gpu-mem", "0")) else str(status)

    wait_until("GPU memory on the node", missing, seconds=60)
    return Workloads(cluster)


def secrets(cluster: Cluster) -> dict[str, dict[str, str]]:
    found = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "secrets", "-o", "json"))["items"]
    return {each["metadata"]["name"]: each["data"] for each in found if "tls.crt" in each["data"]}


def test_a_pod_that_names_no_scheduler_gets_its_share(cluster: Cluster, installed: Workloads):
    create_again(installed, pod("one", UNITS))
    installed.create(pod("two", UNITS // 2))
    installed.wait_running("one", "two")
    env_is_card_on_record(installed, "one", "two")
    assert {installed.get(name)["spec"]["schedulerName"] for name in ("one", "two")} == {SCHEDULER}
    installed.run(pod("without"))
    assert installed.get("without")["spec"]["schedulerName"] == "default-scheduler"
    assert "set spec.schedulerName to gpushare-scheduler" in refusal(
        installed, pod("elsewhere", 1, schedulerName="mine")
    )
    wanted = cluster.kubectl("get", "--raw", "/version")
    words = ("get", "deployment", SCHEDULER, "-o", "jsonpath={..image}")
    images = cluster.kubectl("-n", NAMESPACE, *words).split()
    assert f"registry.k8s.io/kube-scheduler:{json.loads(wanted)['gitVersion']}" in images


@pytest.mark.usefixtures("installed")
def test_helm_test_runs_a_pod_with_gpu_memory(helm: Helm):
    assert "Succeeded" in helm("test", "gpushare", f"--timeout={patient(60):.0f}s")


@pytest.fixture(params=["plain", "autoscaling"])
def access(
    cluster: Cluster, installed: Workloads, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Give kube-scheduler's account, also with the policy of the component autoscaling."""
    account = cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
    if request.param == "plain":
        yield account
        return
    described = f"--filename={CHART / 'files/components/autoscaling/access.yaml'}"
    cluster.kubectl("apply", described)
    installed.create(pod("probe", schedulerName="nobody"))

    def idle() -> str | None:
        words = (f"--kubeconfig={account}", "delete", "pod", "probe", "--dry-run=server")
        try:
            return cluster.kubectl(*words)
        except CommandError as err:
            return None if "only placeholders" in str(err) else str(err)

    wait_until("the policy to hold", idle, seconds=60)
    yield account
    cluster.kubectl("delete", described)


def test_kube_scheduler_says_why_a_pod_waits_and_evicts_others_for_a_more_important_one(
    cluster: Cluster, installed: Workloads, priorities: None, access: Path
):
    installed.delete_all()
    with cluster.api() as api:
        whole = int(api.get("/api/v1/nodes/n1")["status"]["allocatable"]["aliyun.com/gpu-mem"])
    half = whole // len(CARDS)
    victims = ("one", "two")  # a GPU each
    create_again(installed, pod(victims[0], half, priorityClassName="low"))
    installed.create(pod(victims[1], half, priorityClassName="low"))
    installed.wait_running(*victims)
    installed.create(pod("waits", half, priorityClassName="lowest"))

    def said() -> dict[str, str]:
        conditions = installed.get("waits")["status"].get("conditions", [])
        return next((each for each in conditions if each["type"] == "PodScheduled"), {})

    def unsaid() -> str | None:
        return None if "nodes are available" in said().get("message", "") else str(said())

    wait_until("kube-scheduler's message", unsaid, seconds=60)
    assert (said()["status"], said()["reason"]) == ("False", "Unschedulable")
    written = {
        "nominatedNodeName",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
    }
    assert {"nominatedNodeName"} <= open_fields(cluster, access, "waits") <= written
    _, refused = change_status(
        cluster, access, "waits", conditions=[{"type": "Ready", "status": "True"}]
    )
    assert "only this in the status of a pod: nominatedNodeName, PodScheduled" in refused

    installed.create(pod("important", half, priorityClassName="high"))
    installed.wait_running("important")
    (evicted,) = set(victims) - {each["metadata"]["name"] for each in installed.all()}
    assert any("Preempted by" in each for each in installed.events(evicted))
    installed.delete_all()


def test_the_documents_have_the_rights_of_kube_schedulers_roles(
    cluster: Cluster, installed: Workloads
):
    rules = []
    for name in ("system:kube-scheduler", "system:volume-scheduler"):
        rules += json.loads(cluster.kubectl("get", "clusterrole", name, "-o", "json"))["rules"]
    listed = documented("gpushare-extender", "`second-scheduler`")
    for resource, verbs in writes(rules).items():
        assert verbs <= listed[resource], resource


def test_with_gates_pods_wait_for_room_behind_the_webhooks_gate_and_then_run(
    cluster: Cluster, installed: Workloads, helm: Helm
):
    installed.delete_all()
    upgrade = ("upgrade", "gpushare", str(CHART), "--set")
    helm(*upgrade, f"{VALUES},gates.enabled=true")
    Shipped(cluster).await_rollout()
    cluster.kubectl("create", "namespace", QUEUE)
    cluster.kubectl("label", "namespace", QUEUE, "gpushare.aliyun.com/queue=true")
    await_gating(cluster)
    pods = Workloads(cluster, QUEUE)
    names = ("first", "second", "third")
    pods.create(*(pod(name, UNITS) for name in names))  # each GPU has room for one

    def running() -> list[str]:
        found = {each["metadata"]["name"]: each for each in pods.all()}
        return [name for name in names if is_running(found.get(name))]

    wait_until("two pods to run", lambda: None if len(running()) == 2 else "less", seconds=60)
    (waits,) = set(names) - set(running())
    assert gates_of(pods.get(waits)) == [GATE]
    ended = running()[0]
    pods.delete(ended, grace=1)
    pods.wait_running(waits)
    env_is_card_on_record(pods, waits)
    assert all("gpushare.aliyun.com/slot" in pods.annotations(name) for name in running())
    cluster.kubectl("delete", "namespace", QUEUE)
    helm(*upgrade, VALUES)
    Shipped(cluster).await_rollout()


def test_an_upgrade_keeps_the_certificates_until_their_end_is_near_or_one_is_missing(
    cluster: Cluster, installed: Workloads, helm: Helm
):
    before = secrets(cluster)
    assert before.keys() == {"gpushare-extender-tls", "gpushare-scheduler-tls"}
    upgrade = ("upgrade", "gpushare", str(CHART), "--set", VALUES)
    helm(*upgrade, "--set", "reading.enabled=true")
    assert secrets(cluster) == before
    service = cluster.kubectl("-n", NAMESPACE, "get", "service", "gpushare-extender", "-o", "json")
    ports = {each["name"] for each in json.loads(service)["spec"]["ports"]}
    assert ports == {"admission", "reading"}

    near_the_end = "gpushare.aliyun.com/renew-after=2020-01-01"
    for change in (
        ("annotate", "secret", "gpushare-extender-tls", near_the_end, "--overwrite"),
        ("delete", "secret", "gpushare-scheduler-tls"),
    ):
        cluster.kubectl("-n", NAMESPACE, *change)
        helm(*upgrade, "--force-conflicts")  # the annotation is kubectl's now
        after = secrets(cluster)
        authority = authority_of(after)
        assert after.keys() == before.keys()
        # Until the replicas have read their new files, the API server accepts the old ones.
        assert trusted(cluster) == [authority, authority_of(before)]
        before = after
    Shipped(cluster).await_rollout()
    create_again(installed, pod("renewed", 1))
    assert installed.get("renewed")["spec"]["schedulerName"] == SCHEDULER
    installed.wait_running("renewed")


@pytest.mark.usefixtures("installed")
def test_doctor_tells_that_the_webhook_does_not_trust_new_certificates_until_an_upgrade(
    cluster: Cluster, helm: Helm, tmp_path: Path
):
    program = CommandLine(cluster.kubeconfig, tmp_path)

    def trust() -> str:
        checks = json.loads(program.run("doctor", "-o", "json").stdout)["checks"]
        title = "the webhooks trust the extenders"
        return next(str(each["outcome"]) for each in checks if each["check"] == title)

    assert trust() == "ok"
    Shipped(cluster).make_certificates()
    assert trust() == "problem"
    helm("upgrade", "gpushare", str(CHART), "--set", VALUES)
    assert trust() == "ok"


def authority_of(found: dict[str, dict[str, str]]) -> x509.Certificate:
    """Return the authority that has signed every certificate of the Secrets."""
    (encoded,) = {each["ca.crt"] for each in found.values()}
    authority = x509.load_pem_x509_certificate(base64.b64decode(encoded))
    for each in found.values():
        own = x509.load_pem_x509_certificate(base64.b64decode(each["tls.crt"]))
        own.verify_directly_issued_by(authority)
    return authority


def trusted(cluster: Cluster) -> list[x509.Certificate]:
    """Return the authorities that the API server accepts at the webhook."""
    words = ("get", "mutatingwebhookconfiguration", "gpushare-scheduler-name", "-o", "json")
    (webhook,) = json.loads(cluster.kubectl(*words))["webhooks"]
    return x509.load_pem_x509_certificates(base64.b64decode(webhook["clientConfig"]["caBundle"]))


def test_while_no_extender_runs_pods_with_gpu_memory_are_rejected_and_others_are_not(
    cluster: Cluster, installed: Workloads
):
    def scale(replicas: int) -> None:
        words = ("scale", "deployment", SCHEDULER, f"--replicas={replicas}")
        cluster.kubectl("-n", NAMESPACE, *words)

    def others() -> str | None:
        words = ("get", "pods", "-l", f"app.kubernetes.io/name={SCHEDULER}", "-o", "name")
        return cluster.kubectl("-n", NAMESPACE, *words) or None

    scale(0)
    wait_until("no replica", others, seconds=60)
    assert "set spec.schedulerName to gpushare-scheduler" in refusal(installed, pod("early", 1))
    assert refusal(installed, pod("unrelated")) == ""
    scale(2)
    Shipped(cluster).await_rollout()
    create_again(installed, pod("later", 1))
    installed.wait_running("later")


def test_an_upgrade_keeps_certificates_that_replace_lost_ones_of_the_chart(
    cluster: Cluster, installed: Workloads, helm: Helm
):
    cluster.kubectl("-n", NAMESPACE, "delete", "secret", *secrets(cluster))
    made = CliRunner().invoke(cli, ["certificates"]).stdout
    cluster.kubectl("apply", "-f", "-", stdin=made)
    before = secrets(cluster)
    helm("upgrade", "gpushare", str(CHART), "--set", VALUES)
    assert secrets(cluster) == before
    assert trusted(cluster) == [authority_of(before)]


def test_only_the_certificates_are_left_after_it(
    cluster: Cluster, installed: Workloads, helm: Helm
):
    kept = secrets(cluster)
    assert kept
    installed.delete_all()
    helm("uninstall", "gpushare")
    kinds = (
        "mutatingwebhookconfigurations,validatingadmissionpolicies,clusterroles,clusterrolebindings"
    )
    left = cluster.kubectl("get", kinds, "-o", "name").split()
    assert [each for each in left if "gpushare" in each] == []
    assert secrets(cluster) == kept
