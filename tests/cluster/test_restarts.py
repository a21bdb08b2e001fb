"""After any restart on a node no card is wrong, no share is lost, and pods run again."""

from collections.abc import Callable, Iterator

import pytest

from localcluster.gpushare import CARD_MIB, Gpushare, plugin_of
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, container, is_running, pod
from tests.cluster.expect import (
    ASSIGNED,
    LONG,
    env_is_card_on_record,
    start_kubelet,
    sums_are_right,
    wait_bound,
    wait_event,
    wait_plugin,
)

pytestmark = pytest.mark.cluster

LATE, EARLY = "n1", "n4"
MANY = 10 if LONG else 6


@pytest.fixture(params=[LATE, EARLY], ids=["late", "early"])
def node(request: pytest.FixtureRequest, gpushare: Gpushare) -> Iterator[str]:
    """Give a node that binds late or early; start all its programs afterwards."""
    name: str = request.param
    yield name
    for each in (f"kubelet-{name}", f"containerd-{name}", plugin_of(name), "kube-apiserver"):
        gpushare.cluster.start(each)
    gpushare.wait_ready()


def rolled_out(pods: Workloads, name: str, replicas: int) -> list[str]:
    """Return the names of a deployment's pods once all of them run."""
    running: list[str] = []

    def missing() -> str | None:
        running[:] = [
            each["metadata"]["name"] for each in pods.all(f"app={name}") if is_running(each)
        ]
        return None if len(running) == replicas else f"{len(running)} run"

    wait_until(f"{replicas} pods of {name}", missing, seconds=90)
    return running


def restarts(pods: Workloads, name: str) -> int:
    return sum(
        each["restartCount"] for each in pods.get(name)["status"].get("containerStatuses", [])
    )


def wait_restarted(pods: Workloads, *names: str) -> None:
    """Return once every container of these pods runs for the second time."""

    def waiting() -> str | None:
        for name in names:
            found = pods.get(name)
            states = found["status"].get("containerStatuses", [])
            if not is_running(found) or not all(each["restartCount"] for each in states):
                return f"{name}: {found['status']}"
        return None

    wait_until("every container to run again", waiting, seconds=60)


def calls(gpushare: Gpushare, node: str, call: str) -> float:
    """Read how often the kubelet has made a call since the plugin's start."""
    wanted = f'gpushare_deviceplugin_calls_total{{call="{call}"'
    lines = gpushare.plugin_metrics(node).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


def before_the_outage(pods: Workloads, node: str) -> list[str]:
    """Run two bare pods of one container, one of several, and a deployment of two."""
    pods.run(
        *(pod(f"bare-{letter}", CARD_MIB // 2 + 1, node=node) for letter in "ab"),
        pod("several", node=node, containers=[container("a", 300), container("b", 500)]),
    )
    pods.deploy("owned", replicas=2, units=1000, node=node)
    return ["bare-a", "bare-b", "several", *rolled_out(pods, "owned", 2)]


def test_pods_keep_their_cards_after_a_power_loss(gpushare: Gpushare, pods: Workloads, node: str):
    names = before_the_outage(pods, node)
    before = env_is_card_on_record(pods, *names)
    cluster = gpushare.cluster
    cluster.restart_node(node, without=[f"kubelet-{node}"])
    wait_plugin(gpushare, node)
    start_kubelet(gpushare, node)
    wait_restarted(pods, *names)
    assert env_is_card_on_record(pods, *names) == before
    assert calls(gpushare, node, "Allocate") == 0, "the kubelet's checkpoint has all answers"
    sums_are_right(gpushare, pods)


# What the kubelet does without a plugin or checkpoint does not depend on the binding.
ONE = [LATE, EARLY] if LONG else [EARLY]


@pytest.mark.parametrize("node", ONE, indirect=True)
def test_pods_failed_without_the_plugin_run_again(gpushare: Gpushare, pods: Workloads, node: str):
    names = before_the_outage(pods, node)
    bare = names[:3]
    gpushare.cluster.restart_node(node, without=[plugin_of(node)])

    def undecided() -> str | None:
        phases = {name: pods.get(name)["status"]["phase"] for name in bare}
        return None if set(phases.values()) == {"Failed"} else str(phases)

    wait_until("the kubelet to give the pods up", undecided, seconds=60)
    for name in bare:
        status = pods.get(name)["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "no healthy devices present" in status["message"]
    gpushare.cluster.start(plugin_of(node))
    gpushare.wait_ready()
    pods.run(*(pod(f"again-{letter}", CARD_MIB // 2 + 1, node=node) for letter in "ab"), seconds=60)
    names = ["again-a", "again-b", *rolled_out(pods, "owned", 2)]
    env_is_card_on_record(pods, *names)
    sums_are_right(gpushare, pods)


# Each pair on a node of one binding; soak tries all pairs on both.
PAIRS = [
    (LATE, ("kubelet", "containerd")),
    (EARLY, ("containerd", "deviceplugin")),
    (LATE, ("node", "deviceplugin")),
    (EARLY, ("node", "kubelet")),
]
if LONG:
    MORE = [("deviceplugin", "kubelet"), ("kubelet", "deviceplugin")]
    PAIRS = [
        (node, pair) for node in (LATE, EARLY) for pair in [*MORE, *(pair for _, pair in PAIRS)]
    ]


def kill(gpushare: Gpushare, what: str, node: str) -> None:
    if what == "node":
        gpushare.cluster.restart_node(node)
    else:
        gpushare.cluster.kill(f"{what}-{node}")


@pytest.mark.parametrize(
    ("node", "pair"),
    PAIRS,
    ids=["-".join([node, *pair]) for node, pair in PAIRS],
    indirect=["node"],
)
def test_pods_that_start_while_two_things_restart_run_on_their_records_card(
    gpushare: Gpushare,
    pods: Workloads,
    node: str,
    pair: tuple[str, str],
    figures: Callable[[str], None],
):
    names = ["bare-a", "bare-b", "several"]
    pods.run(
        *(pod(name, CARD_MIB // 2 + 1, node=node) for name in names[:2]),
        pod("several", node=node, containers=[container("a", 300), container("b", 500)]),
    )
    before = env_is_card_on_record(pods, *names)
    pods.deploy("many", replicas=MANY, units=600, node=node)

    def bound() -> int:
        return sum(bool(each["spec"].get("nodeName")) for each in pods.all("app=many"))

    wait_until("some of many to be bound", lambda: None if bound() > 1 else "none", seconds=60)
    for what in pair:
        kill(gpushare, what, node)
    if "node" in pair:
        # Admitted before the plugin was there, a pod is Failed for good: its owner makes another.
        wait_until("the bare pods", lambda: settled(pods, names), seconds=60)
        lost = [name for name in names if pods.get(name)["status"]["phase"] == "Failed"]
        names = [name for name in names if name not in lost]
        figures(f"{len(lost)} of 3 bare pods were given up")
    else:
        pods.wait_running(*names, seconds=60)
        assert not any(restarts(pods, name) for name in names)
    gpushare.wait_ready()
    names += rolled_out(pods, "many", MANY)
    failed = [each for each in pods.all("app=many") if each["status"]["phase"] == "Failed"]
    figures(f"{len(failed)} pods were replaced")
    after = env_is_card_on_record(pods, *names)
    assert {name: card for name, card in after.items() if name in before}.items() <= before.items()
    sums_are_right(gpushare, pods)
    assert not any(card["reserved"] for card in gpushare.inspect(node)[0]["devs"])


def settled(pods: Workloads, names: list[str]) -> str | None:
    """Return which pod neither runs again after its node's start nor has failed."""
    for name in names:
        found = pods.get(name)
        if found["status"]["phase"] != "Failed" and not (
            is_running(found) and restarts(pods, name)
        ):
            return f"{name}: {found['status']}"
    return None


@pytest.mark.parametrize("node", ONE, indirect=True)
def test_pods_outlive_the_kubelets_checkpoint(gpushare: Gpushare, pods: Workloads, node: str):
    names = ["bare-a", "bare-b"]
    pods.run(*(pod(name, CARD_MIB // 2 + 1, node=node) for name in names))
    before = env_is_card_on_record(pods, *names)
    cluster = gpushare.cluster
    cluster.stop(f"kubelet-{node}")
    folder = cluster.node_folder(node) / "kubelet/device-plugins"
    (folder / "kubelet_internal_checkpoint").unlink()
    cluster.start(f"kubelet-{node}")
    wait_until(
        "the kubelet to write a checkpoint again",
        lambda: None if (folder / "kubelet_internal_checkpoint").exists() else "no checkpoint",
        seconds=60,
    )
    gpushare.wait_ready()
    pods.run(pod("new", 1000, node=node))
    env_is_card_on_record(pods, "new")
    assert not any(restarts(pods, name) for name in names)
    assert env_is_card_on_record(pods, *names) == before
    # The kubelet never asks for these again: a container that ends cannot come back.
    pods.kill_container("bare-a")
    wait_event(pods, "bare-a", "no devices found allocated in local cache")
    pods.delete("bare-a", grace=1)
    pods.run(pod("bare-a", CARD_MIB // 2 + 1, node=node))
    assert env_is_card_on_record(pods, *names) == before
    sums_are_right(gpushare, pods)


@pytest.mark.parametrize("node", ONE, indirect=True)
def test_a_pod_started_without_plugin_is_reported(gpushare: Gpushare, pods: Workloads, node: str):
    cluster = gpushare.cluster
    cluster.stop(f"kubelet-{node}")
    pods.create(pod("unasked", 1000, node=node))
    wait_bound(pods, "unasked")
    cluster.stop(plugin_of(node))  # only now: nothing is bound to a node whose plugin has left
    checkpoint = cluster.node_folder(node) / "kubelet/device-plugins/kubelet_internal_checkpoint"
    checkpoint.write_text("{")
    cluster.start(f"kubelet-{node}")
    pods.wait_running("unasked")
    assert "ALIYUN_COM_GPU_MEM_IDX" not in pods.environment("unasked")
    cluster.start(plugin_of(node))
    wait_event(pods, "unasked", "started it without asking the device plugin")
    gpushare.wait_ready()
    assert "gpushare_deviceplugin_never_asked_for_pods 1.0" in gpushare.plugin_metrics(node)
    assert pods.annotations("unasked")[ASSIGNED] == "false", "nobody knows where it runs"
    pods.delete("unasked", grace=1)
    pods.run(pod("again", 1000, node=node))
    env_is_card_on_record(pods, "again")
