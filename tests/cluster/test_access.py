"""The programs have exactly the rights that they need."""

import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.errors import CommandError
from localcluster.gpushare import COMPONENTS, Gpushare
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import ASSIGNED, CARDS, RUNNING_ON
from tests.cluster.pod_status import CLAIM, change_status, open_fields

pytestmark = pytest.mark.cluster

REFUSED = {403, 422}  # the policy answers with either
OWN = "gpushare.aliyun.com/CardUsable"
INVENTORY = "gpushare.aliyun.com/inventory"
CORDONED = "gpushare.aliyun.com/cordoned-cards"
EVICTING = "gpushare.aliyun.com/evicting"
ANNOTATE = json.dumps({"metadata": {"annotations": {"probe": "x"}}})


@pytest.fixture
def plugin(gpushare: Gpushare) -> Path:
    """Give the identity of n1's plugin."""
    return gpushare.plugin_kubeconfig("n1")


@pytest.fixture
def extender(gpushare: Gpushare) -> Path:
    return gpushare.cluster.service_account_kubeconfig("gpushare-system", "gpushare-extender")


@pytest.fixture(params=["preemption"])
def component(gpushare: Gpushare, request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the extender the rights of a component.

    It is restarted at the end: for a minute it believes that it still may patch pods.
    """
    described = f"--filename={COMPONENTS / request.param / 'access.yaml'}"
    gpushare.cluster.kubectl("apply", described)
    yield
    gpushare.cluster.kubectl("delete", described)
    gpushare.restart_extender()


@pytest.fixture
def second_scheduler(gpushare: Gpushare) -> Iterator[None]:
    """Give the extender's account the rights that it has in second-scheduler mode."""
    described = f"--filename={COMPONENTS.parent / 'overlays' / 'second-scheduler' / 'access.yaml'}"
    gpushare.cluster.kubectl("apply", described)
    yield
    gpushare.cluster.kubectl("delete", described)


def patch(
    gpushare: Gpushare,
    kubeconfig: Path,
    path: str,
    content: str = ANNOTATE,
    kind: str = "application/merge-patch+json",
) -> tuple[int, str]:
    """Send only a patch; kubectl would read first, which the program may not."""
    cluster = gpushare.cluster
    context = ssl.create_default_context(cafile=str(cluster.state.pki / "ca.crt"))
    headers = {
        "Authorization": f"Bearer {kubeconfig.with_suffix('.token').read_text()}",
        "Content-Type": kind,
    }
    request = urllib.request.Request(  # noqa: S310 - the cluster's own address
        f"{cluster.server}{path}", content.encode(), headers, method="PATCH"
    )
    try:
        with urllib.request.urlopen(request, context=context, timeout=patient(10)) as answer:  # noqa: S310
            return answer.status, ""
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())["message"]


def is_refused(answer: tuple[int, str], text: str) -> bool:
    """Return whether a policy has rejected a patch with this text."""
    status, why = answer
    return status in REFUSED and text in why


def status_of(node: str) -> str:
    return f"/api/v1/nodes/{node}/status"


def path_of(pod: str) -> str:
    return f"/api/v1/namespaces/default/pods/{pod}"


def test_a_plugin_writes_its_own_node_and_no_other(gpushare: Gpushare, plugin: Path):
    assert patch(gpushare, plugin, status_of("n1")) == (200, "")
    assert is_refused(patch(gpushare, plugin, status_of("n2")), "only its own node")


def test_a_plugin_writes_only_its_nodes_pods(gpushare: Gpushare, pods: Workloads, plugin: Path):
    pods.run(pod("mine", 100, node="n1"), pod("other", 100, node="n2"))
    pods.create(pod("unbound", 100, schedulerName="nobody"))
    assert patch(gpushare, plugin, path_of("mine")) == (200, "")
    for name in ("other", "unbound"):
        assert is_refused(patch(gpushare, plugin, path_of(name)), "the pods on it")


def set_condition(
    gpushare: Gpushare, kubeconfig: Path, name: str, kind: str = OWN, **status: object
) -> tuple[int, str]:
    """Set a condition and other parts of a pod's status, as the plugin does."""
    condition = {"type": kind, "status": "False", "reason": "Probe", "message": "a probe"}
    content = json.dumps({"status": {"conditions": [condition], **status}})
    strategic = "application/strategic-merge-patch+json"
    return patch(gpushare, kubeconfig, path_of(name) + "/status", content, strategic)


def conditions(pods: Workloads, name: str) -> dict[str, str]:
    return {each["type"]: each["status"] for each in pods.get(name)["status"]["conditions"]}


def test_a_plugin_adds_its_condition_to_pods(gpushare: Gpushare, pods: Workloads, plugin: Path):
    pods.run(pod("mine", 100, node="n1"), pod("other", 100, node="n2"))
    before = conditions(pods, "mine")
    assert set_condition(gpushare, plugin, "mine") == (200, "")
    # The real plugin sees that the pod runs, and resets the condition.
    assert conditions(pods, "mine").keys() == {*before, OWN}
    assert is_refused(set_condition(gpushare, plugin, "other"), "the pods on it")


def test_a_plugin_changes_no_other_pod_status(gpushare: Gpushare, pods: Workloads, plugin: Path):
    pods.run(pod("mine", 100, node="n1"))
    asked: list[dict[str, object]] = [
        {"kind": "Ready"},
        {"kind": "gpushare.aliyun.com/Another"},
        {"phase": "Failed"},
        {"startTime": "2026-01-01T00:00:00Z"},
        {"nominatedNodeName": "n2"},
        {"reason": "Evicted"},
        {"containerStatuses": [{"name": "main", "ready": False, "restartCount": 7}]},
    ]
    for words in asked:
        answer = set_condition(gpushare, plugin, "mine", **words)  # type: ignore[arg-type]
        assert is_refused(answer, "its own condition"), words
    assert open_fields(gpushare.cluster, plugin, "mine") == set()
    relabel = json.dumps({"metadata": {"labels": {"probe": "x"}}})
    answer = patch(gpushare, plugin, path_of("mine") + "/status", relabel)
    assert is_refused(answer, "only annotations and status")


def test_a_plugin_writes_reports_not_decisions(gpushare: Gpushare, pods: Workloads, plugin: Path):
    pods.run(pod("mine", 100, node="n1"))

    def annotate(path: str, *keys: str) -> tuple[int, str]:
        content = json.dumps({"metadata": {"annotations": dict.fromkeys(keys, "{}")}})
        return patch(gpushare, plugin, f"{path}?dryRun=All", content)

    for key, right in ((CARDS, "only gpushare-extender"), (CORDONED, "the operator's")):
        assert is_refused(
            annotate(path_of("mine") if key == CARDS else status_of("n1"), key), right
        )
    assert annotate(path_of("mine"), RUNNING_ON, ASSIGNED) == (200, "")
    assert annotate(status_of("n1"), INVENTORY) == (200, "")


def create_event(gpushare: Gpushare, kubeconfig: Path, **words: object) -> str:
    """Create an Event with these fields; return why it is refused."""
    group = "apis/events.k8s.io" if "regarding" in words else "api"
    meta = {"name": f"probe.{uuid.uuid4().hex}", "namespace": "default"}
    event = {"kind": "Event", "metadata": meta, "reason": "Probe", "type": "Normal", **words}
    event["apiVersion"] = f"{group}/v1".removeprefix("apis/").removeprefix("api/")
    raw = f"--raw=/{group}/v1/namespaces/default/events"
    try:
        gpushare.cluster.kubectl(
            f"--kubeconfig={kubeconfig}", "create", raw, "-f", "-", stdin=json.dumps(event)
        )
    except CommandError as err:
        return str(err)
    return ""


def legacy(writer: str, kind: str = "Pod", name: str = "any") -> dict[str, object]:
    """Return the fields of an Event as both programs write it."""
    about = {"kind": kind, "name": name} | ({} if kind == "Node" else {"namespace": "default"})
    return {"involvedObject": about, "source": {"component": writer}}


def test_a_program_writes_no_events_in_the_name_of_another(
    gpushare: Gpushare, plugin: Path, extender: Path
):
    for kubeconfig, own in ((plugin, "gpushare-deviceplugin"), (extender, "gpushare-extender")):
        assert create_event(gpushare, kubeconfig, **legacy(own)) == ""
        for other in ("kubelet", "", "gpushare"):
            why = create_event(gpushare, kubeconfig, **legacy(other))
            assert "must name its own program" in why, (own, other)
        both = {**legacy(own), "reportingComponent": "kubelet"}
        assert "must name its own program" in create_event(gpushare, kubeconfig, **both)
    mine = "gpushare-deviceplugin"
    assert create_event(gpushare, plugin, **legacy(mine, "Node", "n1")) == ""
    for about in (("Node", "n2"), ("Secret", "any")):
        why = create_event(gpushare, plugin, **legacy(mine, *about))
        assert "only about pods and its own node" in why, about


@pytest.mark.usefixtures("second_scheduler")
def test_kube_scheduler_with_the_extenders_account_writes_its_own_events(
    gpushare: Gpushare, extender: Path
):
    def answer(writer: str) -> str:
        about = {"kind": "Pod", "name": "any", "namespace": "default"}
        by = {"reportingController": writer, "reportingInstance": "x", "action": "Probe"}
        time = {"eventTime": "2026-01-01T00:00:00.000000Z"}
        return create_event(gpushare, extender, regarding=about, **by, **time)

    wait_until("its rights", lambda: answer("gpushare-scheduler") or None, seconds=15)
    assert "must name its own program" in answer("kubelet")


def test_the_extender_may_evict(gpushare: Gpushare, pods: Workloads, extender: Path):
    pods.run(pod("evicted", 100, node="n1"))
    meta = {"name": "evicted", "namespace": "default"}
    eviction = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    words = (f"--kubeconfig={extender}", "create", f"--raw={path_of('evicted')}/eviction")
    gpushare.cluster.kubectl(*words, "-f", "-", stdin=eviction)
    pods.wait_gone("evicted")


def test_a_token_that_names_no_node_writes_nothing(gpushare: Gpushare):
    unbound = gpushare.cluster.service_account_kubeconfig(
        "gpushare-system", "gpushare-deviceplugin"
    )
    assert is_refused(patch(gpushare, unbound, status_of("n1")), "names no node")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("plugin", ("delete", "pod", "x")),
        ("plugin", ("create", f"--raw={path_of('x')}/binding", "-f", "/dev/null")),
        ("plugin", ("get", "secrets")),
        ("plugin", ("patch", "node", "n1", "--type=merge", "-p", ANNOTATE)),
        ("plugin", ("get", "--raw=/api/v1/nodes/n1/proxy/pods")),
        ("extender", ("delete", "pod", "x")),
        ("extender", ("get", "secrets")),
        ("extender", ("annotate", "node", "n1", "probe=x")),
        ("extender", ("patch", "pod", "x", "--type=merge", "-p", ANNOTATE)),
    ],
)
def test_a_program_cannot_do_more(
    pods: Workloads, request: pytest.FixtureRequest, program: str, words: tuple[str, ...]
):
    kubeconfig = request.getfixturevalue(program)
    pods.create(pod("x", 100, schedulerName="nobody"))
    with pytest.raises(CommandError, match=r"[Ff]orbidden"):
        pods.cluster.kubectl(f"--kubeconfig={kubeconfig}", *words)


@pytest.mark.usefixtures("component")
def test_for_preemption_the_extender_reads_budgets_and_writes_only_its_own_annotations(
    gpushare: Gpushare, pods: Workloads, extender: Path
):
    pods.create(pod("x", 100, schedulerName="nobody"))

    def annotate(key: str, part: str = "") -> tuple[int, str]:
        content = json.dumps({"metadata": {"annotations": {key: "0a1b2c3d"}}})
        return patch(gpushare, extender, path_of("x") + part, content)

    def missing() -> str | None:
        answer = annotate(EVICTING)
        return None if answer == (200, "") else str(answer)

    wait_until("the right to patch pods", missing, seconds=15)
    for key in ("probe", CARDS, RUNNING_ON):
        assert is_refused(annotate(key), "only its own annotations"), key
    assert is_refused(annotate(EVICTING, "/status"), "cannot patch resource")
    gpushare.cluster.kubectl(f"--kubeconfig={extender}", "get", "poddisruptionbudgets")


@pytest.mark.parametrize("component", ["gates"], indirect=True)
@pytest.mark.usefixtures("component")
def test_to_release_pods_the_extender_writes_only_the_nominated_node_in_a_status(
    gpushare: Gpushare, pods: Workloads, extender: Path
):
    claims = [{"name": CLAIM, "resourceClaimTemplateName": "none"}]
    pods.create(pod("x", 100, schedulerName="nobody", resourceClaims=claims))

    def missing() -> str | None:
        _, said = change_status(gpushare.cluster, extender, "x", nominatedNodeName="n1")
        return said or None

    wait_until("the right to patch the status of pods", missing, seconds=15)
    assert open_fields(gpushare.cluster, extender, "x") == {"nominatedNodeName"}
    conditions = [{"type": "PodScheduled", "status": "False"}]
    _, said = change_status(gpushare.cluster, extender, "x", conditions=conditions)
    assert "only this in the status of a pod: nominatedNodeName" in said
