"""Every container gets the card of its pod, in any order of bindings and admissions."""

import json
import re
from collections.abc import Iterator

import pytest

from localcluster.cluster import Cluster
from localcluster.gpushare import CARD_MIB, Binding, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, container, pod
from tests.cluster.expect import (
    ASSIGNED,
    LONG,
    RUNNING_ON,
    bind_by_hand,
    env_is_card_on_record,
    ids_by_card,
    let_kubelet_forget,
    start_kubelet,
    sums_are_right,
    wait_bound,
    wait_event,
)
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

COUNT = "aliyun.com/gpu-count"
GATE = "test/one-by-one"
NODE = "n2"


@pytest.fixture(params=["late", "early"], scope="module")
def binding(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Binding]:
    """Run the node's plugin with one binding, and with its own choice again afterwards."""
    chosen: Binding = request.param
    Gpushare(cluster).restart_plugin(NODE, binding=chosen)
    yield chosen
    Gpushare(cluster).restart_plugin(NODE, binding="auto")


def bind_in_order(pods: Workloads, names: list[str]) -> None:
    """Let one pod after the other be bound, in this order."""
    ungated, merge = {"spec": {"schedulingGates": None}}, "application/merge-patch+json"
    for name in names:
        with pods.cluster.api() as api:
            path = f"/api/v1/namespaces/default/pods/{name}"
            api.request("PATCH", path, ungated, content_type=merge)
        wait_bound(pods, name)


def ids_off_card(gpushare: Gpushare) -> float:
    """Read the plugin's own count, from inside its node."""
    text = gpushare.plugin_metrics(NODE)
    found = re.findall(
        r"^gpushare_deviceplugin_ids_off_card_total(?:\{.*\})? (\S+)$", text, re.MULTILINE
    )
    return sum(map(float, found))


# Two that need a card each, and as many as two cards hold.
MANY = 50 if LONG else 8
EQUAL = [(2, CARD_MIB // 2 + 1), (MANY, CARD_MIB // (MANY // 2) - 1)]
SEVERAL = 30 if LONG else 6


@pytest.mark.parametrize(("count", "units"), EQUAL)
def test_equal_pods_bound_in_another_order_keep_their_cards(
    gpushare: Gpushare, pods: Workloads, binding: Binding, count: int, units: int
):
    names = [f"{binding}-{count}-{place:02}" for place in range(count)]
    let_kubelet_forget(pods, NODE)
    gates = [{"name": GATE}]
    pods.create(*(pod(name, units, node=NODE, schedulingGates=gates) for name in names))
    off_before = ids_off_card(gpushare)
    gpushare.cluster.stop(f"kubelet-{NODE}")
    bind_in_order(pods, names[::-1])
    start_kubelet(gpushare, NODE)
    pods.wait_running(*names, seconds=180)

    on_record = env_is_card_on_record(pods, *names)
    assert sorted(on_record.values()) == sorted([f"GPU-{NODE}-0", f"GPU-{NODE}-1"] * (count // 2))
    sums_are_right(gpushare, pods)
    off = 0
    for name in names:
        by_card = ids_by_card(gpushare, pods, NODE, name)
        off += sum(ids for uuid, ids in by_card.items() if uuid != on_record[name])
    assert ids_off_card(gpushare) - off_before == off
    assert not off, "each card had enough free IDs when a pod of it was admitted"


def test_pods_of_several_containers_differ(gpushare: Gpushare, pods: Workloads, binding: Binding):
    names = [f"several-{place:02}" for place in range(SEVERAL)]
    brief = {"WORKLOAD_RUN_SECONDS": "0.1"}
    pods.run(
        *(
            pod(
                name,
                node=NODE,
                metadata={"labels": {COUNT: "2"}} if place % 3 == 2 else None,
                containers=[container("app", 300), container("other", 200)],
                initContainers=[
                    container("first", 300, brief),
                    container("stays", 200) | {"restartPolicy": "Always"},
                ],
            )
            for place, name in enumerate(names)
        ),
        seconds=120,
    )
    found = env_is_card_on_record(pods, *names)
    assert sum("," in uuids for uuids in found.values()) == SEVERAL // 3
    sums_are_right(gpushare, pods)


def test_a_killed_container_restarts_on_the_same_card(pods: Workloads, binding: Binding):
    pods.run(pod("other", CARD_MIB, node=NODE), pod("restarts", 1000, node=NODE))
    before = env_is_card_on_record(pods, "restarts")
    pods.kill_container("restarts")

    def not_again() -> str | None:
        [status] = pods.get("restarts")["status"]["containerStatuses"]
        if status["restartCount"] and "running" in status["state"]:
            return None
        return str(status["state"])

    wait_until("the container to run again", not_again, seconds=60)
    assert env_is_card_on_record(pods, "restarts") == before


def test_a_pod_without_decision_gets_no_card(pods: Workloads, binding: Binding, history: History):
    history.allow_stranger("stranger")
    bind_by_hand(pods, pod("stranger", 1000), NODE)

    def told() -> str | None:
        found = pods.get("stranger")["status"]
        said = " ".join([str(found), *pods.events("stranger")])
        text = "kube-scheduler is not using the gpushare extender for this pod"
        return None if text in said else said

    wait_until("the error that says so", told, seconds=60)
    states = pods.get("stranger")["status"].get("containerStatuses", [])
    assert not any("running" in each["state"] for each in states)


def test_a_node_binds_late_only_where_its_runtime_resolves_cdi(gpushare: Gpushare, pods: Workloads):
    nodes = ("n1", "n4")
    pods.run(*(pod(f"on-{node}", 500, node=node) for node in nodes))
    with gpushare.cluster.api() as api:
        found = [api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"] for node in nodes]
    inventories = [json.loads(each["gpushare.aliyun.com/inventory"]) for each in found]
    assert [each["binding"] for each in inventories] == ["late", "early"]
    assert env_is_card_on_record(pods, "on-n1", "on-n4")["on-n4"].startswith("GPU-n4-")


def test_early_binding_rejects_pods_that_set_the_variable(pods: Workloads):
    own = {"NVIDIA_VISIBLE_DEVICES": "all"}
    pods.create(pod("own-n1", 500, node="n1", env=own), pod("own-n4", 500, node="n4", env=own))
    pods.wait_running("own-n1")
    assert env_is_card_on_record(pods, "own-n1")["own-n1"].startswith("GPU-n1-")
    wait_event(pods, "own-n4", "sets NVIDIA_VISIBLE_DEVICES itself")
    assert "nodeName" not in pods.get("own-n4")["spec"]


def test_a_container_that_cannot_start_is_not_reported(gpushare: Gpushare, pods: Workloads):
    pods.create(
        pod("broken", node=NODE, containers=[{**container("main", 100), "command": ["/missing"]}])
    )

    def not_refused() -> str | None:
        [status] = pods.get("broken")["status"].get("containerStatuses") or [{}]
        ended = status.get("lastState", {}).get("terminated", {})
        return None if ended.get("reason") == "StartError" else json.dumps(status)

    wait_until("the runtime to refuse the container", not_refused, seconds=60)
    assert 'gpushare_deviceplugin_calls_total{call="PreStartContainer",outcome="ok"}' in (
        gpushare.plugin_metrics(NODE)
    )
    annotations = pods.annotations("broken")
    assert (annotations[ASSIGNED], annotations[RUNNING_ON]) == ("false", "")
    sums_are_right(gpushare, pods)
