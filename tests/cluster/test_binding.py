"""Room that is there once is given once; what is killed meanwhile changes nothing in the end."""

import json
import signal
import threading

import pytest

from localcluster.gpushare import CARD_MIB, Gpushare, plugin_of
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import LONG, env_is_card_on_record, sums_are_right, wait_api_server
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

BIND = "/gpushare-scheduler/bind"
NODE = "n3"


def used(gpushare: Gpushare, node: str) -> list[tuple[int, int]]:
    [found] = gpushare.inspect(node)
    return [(card["usedGPU"], card["reserved"]) for card in found["devs"]]


def test_of_two_pods_for_the_last_units_one_stays_pending(gpushare: Gpushare, pods: Workloads):
    pods.run(pod("full", CARD_MIB, node=NODE), pod("most", CARD_MIB - 8000, node=NODE))
    pods.create(*(pod(f"last-{letter}", 5000, node=NODE) for letter in "ab"))

    def one_runs() -> str | None:
        phases = sorted(pods.get(f"last-{letter}")["status"]["phase"] for letter in "ab")
        return None if phases == ["Pending", "Running"] else str(phases)

    wait_until("one of two to run", one_runs, seconds=60)
    sums_are_right(gpushare, pods)
    pods.delete("most", grace=1)
    pods.wait_running("last-a", "last-b", seconds=60)
    env_is_card_on_record(pods, "last-a", "last-b")
    sums_are_right(gpushare, pods)


def bind_at_once(gpushare: Gpushare, bodies: list[dict[str, str]]) -> list[tuple[int, str]]:
    """Send bind requests at the same moment; return status and error of each, in order."""
    ready = threading.Barrier(len(bodies))
    answers: list[tuple[int, str]] = [(0, "")] * len(bodies)

    def send(place: int) -> None:
        ready.wait()
        status, answer = gpushare.call("POST", BIND, bodies[place])
        answers[place] = (status, answer["Error"])

    threads = [threading.Thread(target=send, args=(place,)) for place in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def binding(pods: Workloads, name: str, node: str = NODE) -> dict[str, str]:
    uid = pods.get(name)["metadata"]["uid"]
    return {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}


def test_equal_bind_requests_are_one_binding(gpushare: Gpushare, pods: Workloads, history: History):
    pods.create(pod("twice", 1000, schedulerName="nobody"))
    body = binding(pods, "twice")
    assert bind_at_once(gpushare, [body, body]) == [(200, ""), (200, "")]
    assert gpushare.call("POST", BIND, body) == (200, {"Error": ""})
    pods.wait_running("twice")
    times = {
        change.annotations.get("ALIYUN_COM_GPU_MEM_ASSUME_TIME")
        for change in history.of("twice")
        if change.node
    }
    assert len(times) == 1
    status, answer = gpushare.call("POST", BIND, body | {"Node": "n2"})
    assert (status, answer["Error"]) == (200, "pod default/twice is already bound to node n3")


def test_two_bind_requests_for_the_last_room_are_one_binding(gpushare: Gpushare, pods: Workloads):
    pods.run(pod("full", CARD_MIB, node=NODE))
    names = ["left", "right"]
    pods.create(*(pod(name, CARD_MIB - 100, schedulerName="nobody") for name in names))
    answers = bind_at_once(gpushare, [binding(pods, name) for name in names])
    errors = sorted(error for _, error in answers)
    assert errors[0] == ""
    assert "does not fit on node n3" in errors[1]
    bound = [name for name in names if pods.get(name)["spec"].get("nodeName")]
    assert len(bound) == 1
    pods.wait_running(*bound)
    sums_are_right(gpushare, pods)


# What is killed on a node while its pods start is in test_restarts.py too, two things at a time.
VICTIMS = ["extender", "kube-apiserver"]
VICTIMS += [plugin_of(NODE), f"kubelet-{NODE}", f"containerd-{NODE}"] if LONG else []


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_deployment_runs_despite_killed_programs(
    gpushare: Gpushare, pods: Workloads, victim: str
):
    replicas, units = 10 if LONG else 6, 3000
    labels = {"app": "many"}
    template = pod("", units, node=NODE, metadata={"labels": labels})
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "many"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }
    gpushare.cluster.kubectl("create", "-f", "-", stdin=json.dumps(deployment))

    def bound() -> int:
        return sum(bool(each["spec"].get("nodeName")) for each in pods.all("app=many"))

    wait_until("some of many to be bound", lambda: None if bound() > 1 else "none", seconds=60)
    gpushare.cluster.kill(victim)
    wait_api_server(pods)
    gpushare.cluster.kubectl("rollout", "status", "deployment/many", seconds=120)
    gpushare.wait_ready()
    names = [
        each["metadata"]["name"]
        for each in pods.all("app=many")
        if each["status"]["phase"] == "Running"
    ]
    assert len(names) == replicas
    env_is_card_on_record(pods, *names)
    sums_are_right(gpushare, pods)
    assert [reserved for _, reserved in used(gpushare, NODE)] == [0, 0]


def test_units_stay_reserved_while_an_outcome_is_unknown(gpushare: Gpushare, pods: Workloads):
    cluster = gpushare.cluster
    pods.run(pod("full", CARD_MIB, node=NODE))
    pods.create(*(pod(name, 10_000, schedulerName="nobody") for name in ("unknown", "next")))
    unknown, next_one = binding(pods, "unknown"), binding(pods, "next")
    cluster.kill("kube-apiserver", signal.SIGSTOP)
    try:
        _, answer = gpushare.call("POST", BIND, unknown)
        assert "not known yet" in answer["Error"]
        assert used(gpushare, NODE)[1] == (0, 10_000)
        _, answer = gpushare.call("POST", BIND, next_one)
        assert "does not fit" in answer["Error"]
    finally:
        cluster.kill("kube-apiserver", signal.SIGCONT)

    def unsettled() -> str | None:
        bound = bool(pods.get("unknown")["spec"].get("nodeName"))
        wanted = (10_000, 0) if bound else (0, 0)
        found = used(gpushare, NODE)[1]
        return None if found == wanted else f"bound: {bound}, used and reserved: {found}"

    wait_until("the outcome to be known", unsettled, seconds=60)
    _, answer = gpushare.call("POST", BIND, unknown)
    assert answer == {"Error": ""}
    pods.wait_running("unknown")
    env_is_card_on_record(pods, "unknown")
    sums_are_right(gpushare, pods)
