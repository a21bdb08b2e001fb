"""One pod from its creation to its container, on the nodes of Aliyun gpushare's own figures."""

import pytest

from localcluster.demo import HALF, QUARTER, THREE_QUARTERS, Demo
from localcluster.gpushare import CARD_MIB, ROOT, Gpushare
from localcluster.workloads import Workloads, container, pod
from tests.cluster.expect import CARDS, env_is_card_on_record, sums_are_right, wait_event
from tests.cluster.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.every_version]

EXTENDER = "/gpushare-scheduler"


def test_a_pod_runs_on_the_node_that_has_a_card_with_room(gpushare: Gpushare, pods: Workloads):
    Demo(gpushare.cluster, gpushare, pods).filtering()
    asks = pod("asks-half", HALF)
    _, answer = gpushare.call("POST", f"{EXTENDER}/filter", {"Pod": asks, "NodeNames": ["n2"]})
    assert answer["FailedAndUnresolvableNodes"] == {
        "n2": "no single GPU has enough free aliyun.com/gpu-mem"
    }
    assert gpushare.card_of("asks-half") == gpushare.card_of("n3-half")
    pods.create(pod("asks-half-of-n1", HALF, node="n1"))
    env_is_card_on_record(pods, "asks-half", "n1-16276", "n2-a", "n2-b", "n3-full")
    sums_are_right(gpushare, pods)
    wait_event(pods, "asks-half-of-n1", "Insufficient aliyun.com/gpu-mem")


def test_the_card_that_is_filled_best_is_chosen(gpushare: Gpushare, pods: Workloads):
    Demo(gpushare.cluster, gpushare, pods).best_fit()
    [node] = gpushare.inspect("n4")
    assert [card["free"] for card in node["devs"]] == [THREE_QUARTERS, 0, QUARTER, CARD_MIB]
    assert gpushare.card_of("asks-half") == ("n4", 1)
    env_is_card_on_record(pods, "asks-half")


def test_replicas_of_a_deployment_share_one_card(gpushare: Gpushare, pods: Workloads):
    gpushare.cluster.kubectl("apply", "-f", str(ROOT / "daemonset/samples/local.yaml"))
    gpushare.cluster.kubectl("rollout", "status", "deployment/gpushare-sample", seconds=50)
    names = [each["metadata"]["name"] for each in pods.all("app=gpushare-sample")]
    assert len(names) == 3
    found = env_is_card_on_record(pods, *names)
    assert set(found.values()) == {"GPU-n1-0"}
    sums_are_right(gpushare, pods)


def test_a_pod_larger_than_any_card_waits_and_says_why(gpushare: Gpushare, pods: Workloads):
    pods.create(pod("asks-20000", 20000, node="n1"))
    wait_event(pods, "asks-20000", "no GPU of the node is large enough")
    found = pods.get("asks-20000")
    assert found["status"]["phase"] == "Pending"
    assert "nodeName" not in found["spec"]
    assert not [key for key in found["metadata"].get("annotations", {}) if "gpu" in key.lower()]
    pods.delete("asks-20000")
    [node] = gpushare.inspect("n1")
    assert [(card["usedGPU"], card["reserved"]) for card in node["devs"]] == [(0, 0), (0, 0)]


def test_a_pending_pod_is_bound_after_another_has_ended(pods: Workloads, history: History):
    slow = {"WORKLOAD_STOP_SECONDS": "2"}
    pods.run(*(pod(f"full-{i}", CARD_MIB, node="n1", env=slow) for i in range(2)))
    pods.create(pod("waits", CARD_MIB, node="n1"))
    wait_event(pods, "waits", "")
    pods.delete("full-0", seconds=60)
    pods.wait_running("waits", seconds=60)
    ended = min(history.place(change) for change in history.of("full-0") if change.has_ended)
    bound = min(history.place(change) for change in history.of("waits") if change.node)
    assert ended < bound
    env_is_card_on_record(pods, "waits")


def test_all_containers_of_a_pod_get_the_same_card(gpushare: Gpushare, pods: Workloads):
    pods.run(
        pod(
            "many",
            node="n1",
            containers=[
                container("a", 100),
                container("b", 200),
                container("no-gpu", None, {"NVIDIA_VISIBLE_DEVICES": "void"}),
            ],
            initContainers=[container("prepare", 300, {"WORKLOAD_RUN_SECONDS": "0.1"})],
        )
    )
    env_is_card_on_record(pods, "many")
    environment = pods.environment("many", "b")
    assert environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "200"
    assert environment["ALIYUN_COM_GPU_MEM_POD"] == "300"
    sums_are_right(gpushare, pods)
    assert pods.environment("many", "no-gpu")["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "GPUSHARE_CARD_UUID" not in pods.environment("many", "no-gpu")


def test_a_pod_spread_over_two_cards_sees_both(gpushare: Gpushare, pods: Workloads):
    labels = {"labels": {"aliyun.com/gpu-count": "2"}}
    pods.run(pod("both", 2 * HALF, node="n1", metadata=labels))
    env_is_card_on_record(pods, "both")
    assert pods.annotations("both")[CARDS] == "GPU-n1-0,GPU-n1-1"
    assert pods.environment("both")["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
    sums_are_right(gpushare, pods)
