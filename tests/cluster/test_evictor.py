"""The extender evicts pods of lower priority for pods and gangs that kube-scheduler cannot help."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.contract import ANNOTATION_EVICTING, GATE_ADMISSION
from localcluster.cluster import Cluster
from localcluster.gpushare import CARD_MIB, EXTENDER, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.command_line import CommandLine
from tests.cluster.expect import env_is_card_on_record, sums_are_right, wait_event
from tests.cluster.gangs import in_gang, names
from tests.cluster.gated import COMPONENTS
from tests.cluster.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.every_version, pytest.mark.usefixtures("priorities")]

NODE: Final = "n1"  # with two GPUs
LARGE: Final = CARD_MIB * 10 // 16  # one on each GPU: no GPU has room for another, their sum has
SMALL: Final = CARD_MIB * 7 // 16  # fits on no GPU beside LARGE
SLOW_SECONDS: Final = 4  # that some pods take to end
LONG_SECONDS: Final = 600  # the same of pods that are ended before
VICTIMS: Final = ("a", "b")
ATTEMPTS: Final = 3


@pytest.fixture(scope="module")
def evicting(cluster: Cluster) -> Iterator[None]:
    """Let the extender evict, as the component for preemption and its setting do."""
    described = f"--filename={COMPONENTS / 'preemption' / 'access.yaml'}"
    gpushare = Gpushare(cluster)
    cluster.kubectl("apply", described)
    gpushare.restart_extender(preemption={"enabled": True})
    yield
    cluster.kubectl("delete", described)
    gpushare.restart_extender()


def running(name: str, *, priority: str = "low", grace: int = 1, **more: Any) -> dict[str, Any]:
    """Describe a pod of NODE that is to run when others come, and uses its whole ``grace``."""
    env = {"WORKLOAD_STOP_SECONDS": str(10 * grace)} if grace > 1 else None
    units = more.pop("units", LARGE)
    spec = {"terminationGracePeriodSeconds": grace, "priorityClassName": priority}
    return pod(name, units, node=NODE, env=env, **spec, **more)


def waiting(name: str, units: int = LARGE, priority: str = "high", **more: Any) -> dict[str, Any]:
    spec = {"terminationGracePeriodSeconds": 1, "priorityClassName": priority}
    return pod(name, units, node=NODE, **spec, **more)


def fill(pods: Workloads, **more: Any) -> None:
    pods.run(*(running(name, **more) for name in VICTIMS))


def evicted(history: History, candidates: Collection[str] = VICTIMS) -> dict[str, str]:
    """Return which of these pods were evicted, with the reasons of their conditions."""
    return {
        name: each["reason"]
        for name in candidates
        for each in history.of(name)[-1].pod["status"].get("conditions", ())
        if each["type"] == "DisruptionTarget"
    }


def told(pods: Workloads, name: str) -> list[tuple[str, str]]:
    """Return reasons and messages of a pod's Events."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    with pods.cluster.api() as api:
        return [(each["reason"], each["message"]) for each in api.get(path)["items"]]


def counted(gpushare: Gpushare, metric: str) -> float:
    """Return the value of a metric of the extender, which is named with its labels."""
    _, text = gpushare.call("GET", "/metrics")
    (found,) = (line for line in text.splitlines() if line.startswith(f"{metric} "))
    return float(found.rpartition(" ")[2])


def wait_searched(gpushare: Gpushare, times: int = 2) -> None:
    """Wait until the extender has looked for victims in vain."""
    metric = 'gpushare_extender_preemption_plans_total{outcome="no_victims"}'
    before = counted(gpushare, metric)

    def few() -> str | None:
        more = counted(gpushare, metric) - before
        return None if more >= times else f"{more:.0f} searches"

    def change() -> str | None:
        # Nothing is searched again until something has changed.
        gpushare.cluster.kubectl("annotate", "--overwrite", "node", NODE, f"n={time.monotonic()}")
        return few()

    wait_until("searches for victims", change, seconds=30, interval=0.5)


def try_again(gpushare: Gpushare, pods: Workloads, name: str) -> None:
    """Make kube-scheduler try a pod again; return once it has."""
    metric = "gpushare_extender_requests_total"

    def filters() -> float:
        _, text = gpushare.call("GET", "/metrics")
        lines = (line for line in text.splitlines() if line.startswith(metric))
        return sum(float(each.rpartition(" ")[2]) for each in lines if 'verb="filter"' in each)

    before = filters()
    pods.cluster.kubectl("annotate", "--overwrite", "pod", name, f"n={time.monotonic()}")
    wait_until(
        "kube-scheduler to try again",
        lambda: None if filters() > before else "no call of filter",
        seconds=40,
    )


@contextmanager
def budget(pods: Workloads, labels: dict[str, str], at_least: int) -> Iterator[None]:
    """Make a PodDisruptionBudget that lets no pod go; remove it at the end."""
    described = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keeps"},
        "spec": {"minAvailable": at_least, "selector": {"matchLabels": labels}},
    }
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    with pods.cluster.api() as api:
        api.request("POST", path, described)

        def unknown() -> str | None:
            status = api.get(f"{path}/keeps").get("status", {})
            is_known = status.get("currentHealthy", 0) >= at_least
            return None if is_known and status["disruptionsAllowed"] == 0 else json.dumps(status)

        wait_until("the budget to know its pods", unknown, seconds=30)
        try:
            yield
        finally:
            api.request("DELETE", f"{path}/keeps")


def test_without_the_setting_a_pod_waits_although_the_sum_of_its_node_has_room(
    gpushare: Gpushare, pods: Workloads, history: History
):
    fill(pods)
    pods.create(waiting("high"))
    wait_event(pods, "high", "no single GPU has enough free")
    for _ in range(ATTEMPTS):
        try_again(gpushare, pods, "high")
    assert evicted(history) == {}
    assert all(pods.exists(name) for name in VICTIMS)
    assert "nominatedNodeName" not in pods.get("high")["status"]


@pytest.mark.usefixtures("evicting")
def test_exactly_one_pod_is_evicted_where_sums_have_room_and_no_gpu_has(
    gpushare: Gpushare,
    pods: Workloads,
    history: History,
    figures: Callable[[str], None],
    tmp_path: Path,
):
    # A container that ends before the kubelet has seen the eviction must not start again.
    fill(pods, grace=LONG_SECONDS, restartPolicy="Never")
    cards = {gpushare.card_of(name): name for name in VICTIMS}
    assert len(cards) == len(VICTIMS)
    pods.create(waiting("high"))
    command_line = CommandLine(gpushare.cluster.kubeconfig, tmp_path)
    server = f"--server=http://{EXTENDER[0]}:{EXTENDER[1]}"

    def unsaid() -> str | None:
        shown = command_line.says("explain", "pod", "high", server, code=1)
        named = [f"(default/{name})" for name in VICTIMS]
        says = "evicting 1 pod of lower priority for it" in shown.lower()
        return None if says and any(each in shown for each in named) else shown

    wait_until("explain to say who is evicted", unsaid, seconds=30)
    (victim,) = evicted(history)
    pods.kill_container(victim)
    ended = time.monotonic()
    wait_until("high to be bound", lambda: _unbound(pods, "high"), seconds=30)
    bound = time.monotonic()
    figures(f"bound {bound - ended:.1f} s after its victim had ended")
    pods.wait_gone(victim)
    pods.wait_running("high")
    assert evicted(history).keys() == {victim}
    assert cards[gpushare.card_of("high")] == victim
    (other,) = {*VICTIMS} - {victim}
    assert pods.exists(other)
    assert pods.annotations("high")[ANNOTATION_EVICTING]
    env_is_card_on_record(pods, "high")
    sums_are_right(gpushare, pods)

    wait_event(pods, victim, "evicted for")
    assert [text for reason, text in told(pods, victim) if reason == "GpusharePreempted"] == [
        f"evicted for pod default/high of priority 100, which needs its GPU memory on node {NODE}"
    ]
    wait_event(pods, "high", "evicting 1 pod")
    (text,) = (text for reason, text in told(pods, "high") if reason == "GpusharePreempting")
    assert f"default/{victim}" in text


def _unbound(pods: Workloads, name: str) -> str | None:
    return None if pods.get(name)["spec"].get("nodeName") else "it is not"


@pytest.mark.usefixtures("evicting")
def test_pods_are_evicted_for_all_members_of_a_gang_or_for_none(
    gpushare: Gpushare, pods: Workloads, history: History
):
    def gang(name: str) -> list[dict[str, Any]]:
        # A kubelet that does not report its pods admits only different ones at the same time.
        return [in_gang(waiting(each, LARGE + n), name, 2) for n, each in enumerate(names(name, 2))]

    pods.run(running("a"), running("b", priority="high"))
    pods.create(*gang("half"))
    wait_searched(gpushare)
    assert evicted(history) == {}
    pods.delete(*names("half", 2), "b")
    pods.run(running("c"))
    pods.create(*gang("whole"))
    pods.wait_running(*names("whole", 2))
    assert evicted(history, ("a", "c")).keys() == {"a", "c"}
    assert {gpushare.card_of(name) for name in names("whole", 2)} == {(NODE, 0), (NODE, 1)}
    env_is_card_on_record(pods, *names("whole", 2))


@pytest.mark.usefixtures("evicting")
def test_no_pod_that_a_budget_protects_is_evicted(
    gpushare: Gpushare, pods: Workloads, history: History
):
    labels = {"test": "both"}
    for name in VICTIMS:
        pods.run(running(name, metadata={"labels": {**labels, "test-pod": name}}))
    with budget(pods, labels, 2):
        pods.create(waiting("high"))
        wait_searched(gpushare)
        assert evicted(history) == {}
        pods.delete("high")
    with budget(pods, {"test-pod": "a"}, 1):
        pods.create(waiting("higher"))
        pods.wait_running("higher")
    assert evicted(history).keys() == {"b"}
    assert pods.exists("a")


@pytest.mark.usefixtures("evicting")
def test_freed_room_is_kept_from_equal_and_lower_pods(
    gpushare: Gpushare, pods: Workloads, history: History
):
    pods.run(running("a", grace=SLOW_SECONDS), running("b", priority="high"))
    card = gpushare.card_of("a")
    pods.create(waiting("high"))
    wait_until("a to be evicted", lambda: None if evicted(history) else "it is not", seconds=20)
    others = [
        waiting(f"{priority}-{number}", SMALL + number, priority)
        for priority in ("high", "lower")
        for number in range(3)
    ]
    pods.create(*others)
    pods.wait_running("high")
    assert gpushare.card_of("high") == card
    _were_only_tried(pods, others)


@pytest.mark.usefixtures("evicting")
def test_room_that_kube_scheduler_frees_is_kept_from_equal_and_lower_pods(
    gpushare: Gpushare, pods: Workloads, history: History
):
    """Sums leave room for another pod beside the nominated one, and no GPU does."""
    pods.run(
        running("a", grace=SLOW_SECONDS, units=CARD_MIB * 12 // 16), running("b", priority="high")
    )
    card = gpushare.card_of("a")
    pods.create(waiting("high", CARD_MIB * 14 // 16))
    wait_until("a to be evicted", lambda: None if evicted(history) else "it is not", seconds=20)
    others = [
        waiting(f"{priority}-{number}", SMALL + number, priority)
        for priority in ("high", "lower")
        for number in range(3)
    ]
    pods.create(*others)
    pods.wait_running("high")
    assert evicted(history) == {"a": "PreemptionByScheduler"}
    assert ANNOTATION_EVICTING not in pods.annotations("high")
    assert gpushare.card_of("high") == card
    _were_only_tried(pods, others)


def _were_only_tried(pods: Workloads, others: Collection[dict[str, Any]]) -> None:
    for each in others:
        name = each["metadata"]["name"]
        wait_until(f"{name} to be tried", lambda name=name: _untried(pods, name), seconds=30)
        assert not pods.get(name)["spec"].get("nodeName"), name


def _untried(pods: Workloads, name: str) -> str | None:
    conditions = pods.get(name)["status"].get("conditions", ())
    return None if any(each["type"] == "PodScheduled" for each in conditions) else "it was not"


@pytest.mark.usefixtures("evicting", "gates")
def test_a_gated_pod_is_released_into_the_room_that_is_made_for_it(
    gpushare: Gpushare, pods: Workloads, history: History
):
    fill(pods)
    cards = {name: gpushare.card_of(name) for name in VICTIMS}
    pods.create(waiting("gated", schedulingGates=[{"name": GATE_ADMISSION}]))
    pods.wait_running("gated")
    (victim,) = evicted(history)
    assert gpushare.card_of("gated") == cards[victim]
    # kube-scheduler has not seen it before there was room.
    assert not any(
        each.get("reason") == "Unschedulable"
        for change in history.of("gated")
        for each in change.pod["status"].get("conditions", ())
    )


@pytest.mark.usefixtures("evicting")
def test_a_pod_that_a_gang_kept_out_is_bound_when_the_gang_lets_go(
    gpushare: Gpushare, pods: Workloads, figures: Callable[[str], None]
):
    """kube-scheduler places no member, because one has a volume that does not exist."""
    claim = {"claimName": "missing"}
    volumes = [{"name": "data", "persistentVolumeClaim": claim}]
    pods.create(
        in_gang(waiting("gang-0", priority="low"), "gang", 2),
        in_gang(waiting("gang-1", priority="low", volumes=volumes), "gang", 2),
    )

    def free() -> str | None:
        (node,) = gpushare.inspect(NODE)
        found = [card["reserved"] for card in node["devs"]]
        return None if all(found) else str(found)

    wait_until("room to be kept for the gang", free, seconds=20)
    pods.create(waiting("late", priority="low"))
    wait_event(pods, "late", "no single GPU has enough free")
    assert not pods.get("late")["spec"].get("nodeName")
    began = time.monotonic()
    pods.delete("gang-1", grace=0)
    wait_until("late to be bound", lambda: _unbound(pods, "late"), seconds=20)
    figures(f"bound {time.monotonic() - began:.1f} s after the gang could not start any more")
