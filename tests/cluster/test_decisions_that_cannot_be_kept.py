"""A pod whose card was lost, taken or never decided on gets no other one in silence."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.text.amounts import needed_gib
from localcluster.gpushare import CARD_MIB, Gpushare, plugin_of
from localcluster.nvml import CardSpec, write_state
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, container, describe, is_running, pod
from tests.cluster.expect import (
    CARDS,
    assigned,
    bind_by_hand,
    env_is_card_on_record,
    let_kubelet_forget,
    start_kubelet,
    sums_are_right,
    wait_event,
)
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

NODE = "n2"
KUBELET = f"kubelet-{NODE}"
FIRST, SECOND = f"GPU-{NODE}-0", f"GPU-{NODE}-1"
LOST = 15  # NVML_ERROR_GPU_IS_LOST
EVICT_AFTER = 5
CONDITION = "gpushare.aliyun.com/CardUsable"


@pytest.fixture(scope="module", autouse=True)
def impatient(cluster) -> Iterator[None]:
    """Let a card recover at once, and a pod be evicted after seconds."""
    made = Gpushare(cluster)
    cluster.stop(plugin_of(NODE))
    made.start_plugin(NODE, "--recover-after=1")
    cluster.stop("extender")
    made.start_extender(evictAfterSeconds=EVICT_AFTER)
    made.wait_ready()
    yield
    cluster.stop(plugin_of(NODE))
    made.start_plugin(NODE)
    cluster.stop("extender")
    made.start_extender()
    made.wait_ready()


@pytest.fixture(autouse=True)
def well(gpushare: Gpushare) -> Iterator[None]:
    """Leave the node's kubelet up and its cards well."""
    yield
    gpushare.cluster.start(KUBELET)
    show(gpushare)
    wait_for_health(gpushare, FIRST, "healthy")


def show(gpushare: Gpushare, *lost: str) -> None:
    """Make the driver show the node's cards with these lost."""
    cards = [
        CardSpec(uuid, mem_mib=CARD_MIB, error=LOST if uuid in lost else 0)
        for uuid in (FIRST, SECOND)
    ]
    write_state(gpushare.cluster.node_folder(NODE) / "nvml" / "state", cards)


def wait_for_health(gpushare: Gpushare, uuid: str, health: str) -> None:
    def other() -> str | None:
        [node] = gpushare.inspect(NODE)
        found = {card["uuid"]: card["health"] for card in node["devs"]}
        return None if found[uuid] == health else str(found)

    wait_until(f"{uuid} to be {health}", other, seconds=60)


def condition(pods: Workloads, name: str) -> dict[str, Any]:
    found = pods.get(name)["status"].get("conditions", [])
    return next((each for each in found if each["type"] == CONDITION), {})


def wait_for_condition(pods: Workloads, name: str, status: str, reason: str) -> None:
    def other() -> str | None:
        found = condition(pods, name)
        if (found.get("status"), found.get("reason")) == (status, reason):
            return None
        return f"{found} {describe(pods.get(name))}"

    wait_until(f"{name} to say {status} {reason}", other, seconds=40)


def told(gpushare: Gpushare, name: str, reason: str) -> list[str]:
    """Return the messages of a pod's Events of one reason."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    with gpushare.cluster.api() as api:
        return [each["message"] for each in api.get(path)["items"] if each["reason"] == reason]


def wait_bound(pods: Workloads, selector: str) -> str:
    """Return the name of the only pod of ``selector`` once it is bound."""
    names: list[str] = []

    def unbound() -> str | None:
        found = pods.all(selector)
        names[:] = [each["metadata"]["name"] for each in found if each["spec"].get("nodeName")]
        return None if names else str(len(found))

    wait_until("a pod to be bound", unbound, seconds=60)
    [name] = names
    return name


def lose_the_card_before_the_start(gpushare: Gpushare, pods: Workloads, selector: str) -> str:
    """Bind while the kubelet is away, lose the card that was decided on, let the kubelet come."""
    name = wait_bound(pods, selector)
    assert pods.annotations(name)[CARDS] == FIRST
    show(gpushare, FIRST)
    wait_for_health(gpushare, FIRST, "unhealthy")
    start_kubelet(gpushare, NODE)
    wait_for_condition(pods, name, "False", "CardUnhealthy")
    return name


def test_a_pod_waits_for_its_lost_card(gpushare: Gpushare, pods: Workloads, history: History):
    let_kubelet_forget(pods, NODE)
    gpushare.cluster.stop(KUBELET)
    pods.create(pod("waits", 1000, node=NODE, metadata={"labels": {"app": "waits"}}))
    lose_the_card_before_the_start(gpushare, pods, "app=waits")
    assert pods.get("waits")["status"]["phase"] == "Pending"
    [message] = told(gpushare, "waits", "GpushareCannotStart")
    assert FIRST in message
    kubelets = {each["type"] for each in pods.get("waits")["status"]["conditions"]}
    assert {"PodScheduled", "Initialized", "Ready"} <= kubelets
    show(gpushare)
    pods.wait_running("waits", seconds=60)
    wait_for_condition(pods, "waits", "True", "Started")
    assert env_is_card_on_record(pods, "waits") == {"waits": FIRST}
    assert {change.annotations[CARDS] for change in history.of("waits") if change.node} == {FIRST}


def test_a_pod_of_a_lost_card_is_replaced(gpushare: Gpushare, pods: Workloads, history: History):
    let_kubelet_forget(pods, NODE)
    gpushare.cluster.stop(KUBELET)
    pods.deploy("owned", replicas=1, units=1000, node=NODE)
    first = lose_the_card_before_the_start(gpushare, pods, "app=owned")
    pods.wait_gone(first, seconds=60)
    [message] = told(gpushare, first, "GpushareEvicted")
    assert "CardUnhealthy" in message
    assert not any(
        "running" in each["state"]
        for change in history.of(first)
        for each in change.pod["status"].get("containerStatuses", [])
    )
    second = wait_bound(pods, "app=owned")
    pods.wait_running(second)
    assert env_is_card_on_record(pods, second) == {second: SECOND}
    assert not condition(pods, second)
    sums_are_right(gpushare, pods)


def test_while_a_plugin_is_away_its_node_fails_few_pods(gpushare: Gpushare, pods: Workloads):
    pods.deploy("storm", replicas=0, units=1000, node=NODE)
    gpushare.cluster.stop(plugin_of(NODE))
    with gpushare.cluster.api() as api:
        api.request(
            "PATCH",
            "/apis/apps/v1/namespaces/default/deployments/storm",
            {"spec": {"replicas": 1}},
            content_type="application/merge-patch+json",
        )

        def offered() -> str | None:
            status = api.get(f"/api/v1/nodes/{NODE}")["status"]
            found = status["allocatable"]["aliyun.com/gpu-mem"]
            return None if found == "0" else str(found)

        wait_until("the kubelet to say that nothing is left", offered, seconds=60)
    failed = [each for each in pods.all("app=storm") if each["status"]["phase"] == "Failed"]
    assert len(failed) <= 4, f"{len(failed)} pods have failed"
    gpushare.cluster.start(plugin_of(NODE))
    gpushare.cluster.kubectl("rollout", "status", "deployment/storm", seconds=70)
    sums_are_right(gpushare, pods)


def test_a_pod_bound_by_hand_fails(gpushare: Gpushare, pods: Workloads, history: History):
    history.allow_stranger("by-hand")
    bind_by_hand(pods, pod("by-hand", 1000), NODE)

    def alive() -> str | None:
        found = pods.get("by-hand")
        is_told = told(gpushare, "by-hand", "GpushareCannotStart")
        return None if found["status"]["phase"] == "Failed" and is_told else describe(found)

    wait_until("by-hand to fail, and to say why", alive, seconds=60)
    text = "kube-scheduler is not using the gpushare extender for this pod"
    assert text in pods.get("by-hand")["status"]["message"]
    [message] = told(gpushare, "by-hand", "GpushareCannotStart")
    assert text in message


@pytest.mark.usefixtures("unguarded")
def test_a_pod_of_many_containers_made_with_a_node_fails_and_closes_nothing(
    gpushare: Gpushare, pods: Workloads, history: History
):
    history.allow_stranger("many")
    others = [container(f"other-{number}", None) for number in range(256)]
    pods.create(pod("many", containers=[container("main", 1), *others], nodeName=NODE))

    def alive() -> str | None:
        found = pods.get("many")
        return None if found["status"]["phase"] == "Failed" else describe(found)

    wait_until("the pod of many containers to fail", alive, seconds=60)
    assert "no GPU was chosen for pod" in pods.get("many")["status"]["message"]
    pods.run(pod("ordinary", CARD_MIB, node=NODE))
    [node] = gpushare.inspect(NODE)
    assert (node["usedGPU"], node["unplaced"]) == (CARD_MIB, [])
    sums_are_right(gpushare, pods)


@pytest.mark.usefixtures("unguarded")
def test_a_pod_made_with_a_node_takes_no_card_from_others_and_is_evicted(
    gpushare: Gpushare, pods: Workloads, history: History
):
    """While the kubelet is away, nobody fails the pod."""
    history.allow_stranger("bare")
    let_kubelet_forget(pods, NODE)
    gpushare.cluster.stop(KUBELET)
    pods.create(pod("bare", CARD_MIB, nodeName=NODE))

    def unseen() -> str | None:
        [node] = gpushare.inspect(NODE)
        names = [each["name"] for each in node["unplaced"]]
        return None if names == ["bare"] else str(names)

    wait_until("the pod to count", unseen, seconds=20)
    [node] = gpushare.inspect(NODE)
    assert node["usedGPU"] == CARD_MIB, "it counts once"
    assert [card["free"] for card in node["devs"]] == [CARD_MIB, CARD_MIB]
    pods.create(pod("ordinary", CARD_MIB, node=NODE, metadata={"labels": {"app": "ordinary"}}))
    assert wait_bound(pods, "app=ordinary") == "ordinary"
    wait_event(pods, "bare", "evicted: it was bound to node")
    start_kubelet(gpushare, NODE)
    pods.wait_gone("bare", seconds=60)
    pods.wait_running("ordinary", seconds=60)
    env_is_card_on_record(pods, "ordinary")
    sums_are_right(gpushare, pods)


@pytest.mark.usefixtures("unguarded")
def test_forged_annotations_overfill_no_card(pods: Workloads, history: History):
    history.allow_stranger("forged")
    pods.run(pod("rightful", 12_000, node=NODE))
    assigned(pods, "rightful")
    made_up = {
        **pods.annotations("rightful"),
        "ALIYUN_COM_GPU_MEM_POD": "1",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "gpushare.aliyun.com/running-on": json.dumps({"main": {FIRST: 1}}),
    }
    pods.create(pod("forged", 8000, nodeName=NODE, metadata={"annotations": made_up}))
    wait_for_condition(pods, "forged", "False", "CardTooFull")
    said = condition(pods, "forged")["message"]
    assert f"requests {needed_gib(8000)} on" in said
    assert said.endswith(f"use {needed_gib(12_000)}")
    assert pods.get("forged")["status"]["phase"] == "Pending"
    [status] = pods.get("rightful")["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert "running" in status["state"]
    assert env_is_card_on_record(pods, "rightful") == {"rightful": FIRST}
    pods.delete("rightful", grace=1)

    def stuck() -> str | None:
        found = [each for each in pods.all() if each["metadata"]["name"] == "forged"]
        return describe(found[0]) if found and not is_running(found[0]) else None

    # Where two seconds have passed by now, the extender evicts it as the newest of too many.
    wait_until("the forged pod to run, or to be gone", stuck, seconds=60)
