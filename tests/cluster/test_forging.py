"""Only the extender decides, and only a node's plugin reports what runs there."""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare.errors import QuotaError
from gpushare.quota.quota import parse
from localcluster.errors import ApiError, CommandError
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, container, pod
from tests.cluster.expect import CARDS, RUNNING_ON, assigned, by_hand, wait_event
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

DECIDED = [
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation",
    "gpushare.aliyun.com/init-allocation",
    CARDS,
]
REPORTED = ["ALIYUN_COM_GPU_MEM_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSIGN_TIME", RUNNING_ON]
INVENTORY = "gpushare.aliyun.com/inventory"
CORDONED = "gpushare.aliyun.com/cordoned-cards"


POD, NODE = "/api/v1/namespaces/default/pods/mine", "/api/v1/nodes/n1"
PODS = "/api/v1/namespaces/default/pods"
DEFAULT, QUOTA = "/api/v1/namespaces/default", "gpushare.aliyun.com/quota"

Ask = Callable[..., str]


@pytest.fixture
def ask(gpushare: Gpushare) -> Iterator[Ask]:
    """Give a function that sends a dry run as administrator and returns its error."""
    with gpushare.cluster.api() as api:

        def asked(method: str, path: str, body: dict[str, Any]) -> str:
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            try:
                api.request(method, f"{path}?dryRun=All", body, content_type=kind)
            except ApiError as err:
                return str(err)
            return ""

        yield asked


def annotated(**values: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": values}}


def test_nobody_else_changes_a_decision_or_a_report_of_a_bound_pod(pods: Workloads, ask: Ask):
    pods.run(pod("mine", 100, node="n1"))
    assigned(pods, "mine")
    for key in DECIDED + REPORTED:
        for path in (POD, f"{POD}/status"):
            for value in ("x", None):
                said = ask("PATCH", path, annotated(**{key: value}))
                assert "only gpushare-" in said, (key, path, value)


def test_other_writes_pass_and_change_no_decision(gpushare: Gpushare, pods: Workloads, ask: Ask):
    pods.run(pod("mine", 100, node="n1"))
    decided = pods.annotations("mine")[CARDS]
    for path in (POD, f"{POD}/status"):
        assert ask("PATCH", path, annotated(probe="x")) == ""
        assert ask("PATCH", path, {"metadata": {"labels": {"probe": "x"}}}) == ""
    with gpushare.cluster.api() as api:
        for name in ("ephemeralcontainers", "resize"):
            with contextlib.suppress(ApiError):
                merge = "application/merge-patch+json"
                body = annotated(**{CARDS: "GPU-n1-1"})
                api.request("PATCH", f"{POD}/{name}", body, content_type=merge)
            assert pods.annotations("mine")[CARDS] == decided
    # The kubelet and the controllers can still end it.
    pods.delete("mine", grace=1)


PRESET = {"ALIYUN_COM_GPU_MEM_IDX": "1", CARDS: "GPU-n1-1", RUNNING_ON: "{}"}


WITH_NODE = "cannot be created with a node: remove spec.nodeName"
COUNT = {**container("main", None), "resources": {"limits": {"aliyun.com/gpu-count": "1"}}}
MANY = [container(f"c{number}", None) for number in range(1000)]


@pytest.mark.parametrize(
    ("described", "is_refused"),
    [
        (pod("made", 1), True),
        (pod("made", containers=[COUNT]), True),
        (pod("made", initContainers=[container("first", 1)]), True),
        (pod("made", containers=[*MANY, container("last", 1)]), True),
        (pod("made", metadata={"annotations": PRESET}), True),
        (pod("made", metadata={"annotations": {RUNNING_ON: "{}"}}), True),
        (pod("made", metadata={"annotations": {"probe": "x"}}), False),
        (pod("made", containers=MANY), False),
    ],
)
def test_no_tenant_creates_a_pod_of_gpushare_on_a_node(
    gpushare: Gpushare, ask: Ask, described: dict[str, Any], *, is_refused: bool
):
    """Not even an administrator does; without a node, and by the kubelet, it is taken."""
    placed = copy.deepcopy(described)
    placed["spec"]["nodeName"] = "n1"
    said = ask("POST", PODS, placed)
    assert WITH_NODE in said if is_refused else said == ""
    assert ask("POST", PODS, described) == ""


def test_a_kubelet_and_named_accounts_create_pods_on_a_node(gpushare: Gpushare):
    cluster = gpushare.cluster
    mirror = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "controller": True}
    with cluster.api() as api:
        owner["uid"] = api.get("/api/v1/nodes/n1")["metadata"]["uid"]
    metadata = {"annotations": {**mirror, **PRESET}, "ownerReferences": [owner]}
    of_kubelet = pod("static", 1, nodeName="n1", metadata=metadata)

    def created(described: dict[str, Any], *words: str) -> str:
        more = ("create", f"--raw={PODS}?dryRun=All", "-f", "-")
        try:
            cluster.kubectl(*words, *more, stdin=json.dumps(described))
        except CommandError as err:
            return str(err)
        return ""

    groups = ("--as-group=system:nodes", "--as-group=system:authenticated")
    assert created(of_kubelet, "--as=system:node:n1", *groups) == ""
    restored = pod("restored", 1, nodeName="n1", metadata={"annotations": PRESET})
    account = "system:serviceaccount:backup:restore"
    as_account = (f"--as={account}", "--as-group=system:masters")
    assert WITH_NODE in created(restored, *as_account)
    kind, name = "validatingadmissionpolicy", "gpushare-created-with-node"
    change = [{"op": "replace", "path": "/spec/variables/0/expression", "value": None}]
    for accounts in (f'["{account}"]', "[]"):
        change[0]["value"] = accounts
        cluster.kubectl("patch", kind, name, "--type=json", "-p", json.dumps(change))
        is_named = accounts != "[]"

        def undone(wanted: bool = is_named) -> str | None:
            said = created(restored, *as_account)
            return None if (said == "") == wanted else said or "it is taken"

        wait_until("the policy's list to be in force", undone, seconds=15)
        assert WITH_NODE in created(restored, "--as=tenant", "--as-group=system:masters")


def test_a_copied_manifest_without_a_node_is_taken(ask: Ask, pods: Workloads, history: History):
    history.allow_stranger("copied")
    pods.create(pod("copied", 100, metadata={"annotations": PRESET}, schedulerName="nobody"))
    assert ask("PATCH", f"{PODS}/copied", annotated(**{CARDS: "GPU-n1-0"})) == ""


@pytest.mark.usefixtures("unguarded")
def test_an_extender_ignores_forgeries(gpushare: Gpushare, pods: Workloads, history: History):
    history.allow_stranger("by-hand")
    pods.create(pod("by-hand", 2000, metadata={"annotations": PRESET}, schedulerName="nobody"))
    pods.run(pod("changed", 3000, node="n1"))
    assigned(pods, "changed")
    assert gpushare.card_of("changed") == ("n1", 0)  # so the extender has seen the other pod too
    merge = "application/merge-patch+json"
    with gpushare.cluster.api() as api:
        api.request("POST", f"{PODS}/by-hand/binding", by_hand("by-hand", "n1"))
        forged = annotated(**{CARDS: "GPU-n1-1", RUNNING_ON: '{"main":{"GPU-n1-1":1}}'})
        api.request("PATCH", f"{PODS}/changed", forged, content_type=merge)

    for name in ("by-hand", "changed"):
        wait_event(pods, name, "changed the GPU decision")
    [node] = gpushare.inspect("n1")
    assert [each["name"] for each in node["unplaced"]] == ["by-hand"]
    assert [[held["name"] for held in card["pods"]] for card in node["devs"]] == [["changed"], []]


def test_only_the_extender_binds_with_a_decision(gpushare: Gpushare, pods: Workloads, ask: Ask):
    pods.create(pod("mine", 100, schedulerName="nobody"))
    binding = by_hand("mine", "n1", annotations=PRESET)
    paths = [f"{POD}/binding", "/api/v1/namespaces/default/bindings"]
    for path in paths:
        assert "only gpushare-extender may bind" in ask("POST", path, binding)
    account = gpushare.cluster.service_account_kubeconfig("gpushare-system", "gpushare-extender")
    words = (f"--kubeconfig={account}", "create", f"--raw={paths[0]}?dryRun=All", "-f", "-")
    gpushare.cluster.kubectl(*words, stdin=json.dumps(binding))
    # Other schedulers may bind their own pods; such a pod with GPU memory counts as unplaced.
    for other in (by_hand("mine", "n1"), by_hand("mine", "n1", annotations={"probe": "x"})):
        for path in paths:
            assert ask("POST", path, other) == ""


def test_aliyuns_plugin_may_report(gpushare: Gpushare, pods: Workloads, ask: Ask, history: History):
    """Its account is unknown to us, and it never writes which card a pod has."""
    history.allow_stranger("older")
    pods.create(pod("older", 100, schedulerName="nobody"))
    with gpushare.cluster.api() as api:
        api.request("POST", f"{PODS}/older/binding", by_hand("older", "n1"))
    runs = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5"}
    assert ask("PATCH", f"{PODS}/older", annotated(**runs)) == ""
    for key in ("ALIYUN_COM_GPU_MEM_IDX", CARDS, RUNNING_ON):
        said = ask("PATCH", f"{PODS}/older", annotated(**runs, **{key: "0"}))
        assert "only gpushare-" in said


def test_the_api_server_finds_nothing_odd_in_the_policies(gpushare: Gpushare):
    def doubted() -> str | None:
        said = gpushare.cluster.kubectl("get", "validatingadmissionpolicies", "-o", "json")
        found = [each.get("status", {}).get("typeChecking") for each in json.loads(said)["items"]]
        return None if found == [{}] * len(found) else str(found)

    wait_until("types of every expression to be checked", doubted, seconds=60)


def test_only_a_nodes_plugin_says_which_cards_it_has(ask: Ask):
    for path in (NODE, f"{NODE}/status"):
        for value in ("{}", None):
            said = ask("PATCH", path, annotated(**{INVENTORY: value}))
            assert "only the gpushare-deviceplugin of a node" in said
        assert ask("PATCH", path, annotated(**{CORDONED: "GPU-n1-0"})) == ""
        assert ask("PATCH", path, annotated(probe="x")) == ""


@pytest.mark.parametrize("quota", ["0", " 64 ", "64,Tesla T4=16", "a=b = 1 , c=2", "2147483647"])
def test_a_quota_that_can_be_read_is_taken(ask: Ask, quota: str):
    parse(quota)
    assert ask("PATCH", DEFAULT, annotated(**{QUOTA: quota})) == ""


@pytest.mark.parametrize(
    ("quota", "why"),
    [
        *((each, "cannot be read") for each in ("", "64,", "-1", "1.5", "64Gi", "2147483648")),
        *((each, "cannot be read") for each in ("T4=", "=16", "64, =16", "T4", "9" * 30, "\u0661")),
        ("64,32", "twice"),
        ("T4=1, T4 =2", "names a model twice"),
        (",".join(f"m{number}=1" for number in range(65)), "more than 64 models"),
        ("m" * 8192 + "=1", "more than 8192 characters"),
    ],
)
def test_a_quota_that_cannot_be_read_is_not_taken(ask: Ask, quota: str, why: str):
    with pytest.raises(QuotaError):
        parse(quota)
    for path in (DEFAULT, f"{DEFAULT}/status"):
        said = ask("PATCH", path, annotated(**{QUOTA: quota}))
        assert why in said
    made = {"apiVersion": "v1", "kind": "Namespace"}
    named = {"metadata": {"name": "made", "annotations": {QUOTA: quota}}}
    assert why in ask("POST", "/api/v1/namespaces", made | named)
