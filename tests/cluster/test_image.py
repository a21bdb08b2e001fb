"""gpushare as it is shipped: its image, applied from ``daemonset/``, with the manifests' rights.

It has its own cluster, with a control-plane node that runs the extender and kube-scheduler.
"""

import json
import os
import re
import signal
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from gpushare.text.amounts import free_gib, used_gib
from localcluster import cgroups
from localcluster.gpushare import CARD_MIB, CONTROL_PLANE, Gpushare, gpu_node
from localcluster.imagebuild import ROOT, image_name
from localcluster.shipped import DAEMONSET, EXTENDER, NAMESPACE, PLUGIN, Shipped
from localcluster.versions import Version
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads
from localcluster.workloads import pod as described
from tests.cluster.arrivals import Arrivals, now
from tests.cluster.bringup import of_image
from tests.cluster.command_line import ENDS_BY_SIGINT, PROGRAM, CommandLine, reader
from tests.cluster.documented import READING, problems
from tests.cluster.expect import env_is_card_on_record, wait_event
from tests.cluster.plugin_faults import PluginFaults

pytestmark = pytest.mark.cluster

HALF = CARD_MIB // 2
SECOND = "gpushare-scheduler"
FILES = {EXTENDER: "extender", PLUGIN: "deviceplugin"}
RECURSIVE = Version(31)  # the first whose API server keeps recursiveReadOnly
CARDS_OF_THE_STAND_IN = {
    "target": {"kind": "DaemonSet", "name": PLUGIN},
    "patch": """\
- op: add
  path: /spec/template/spec/containers/0/volumeMounts/-
  value: {name: cards, mountPath: /run/nvml-standin, readOnly: true}
- op: add
  path: /spec/template/spec/volumes/-
  value: {name: cards, hostPath: {path: /run/nvml-standin, type: Directory}}
# The nodes' runtime is in mode legacy, which a plugin without it cannot see.
- op: add
  path: /spec/template/spec/containers/0/args/-
  value: --inject=runtime
""",
}


def pod(*words: Any, **spec: Any) -> dict[str, Any]:
    """Describe a pod under NVIDIA's runtime, as the manifests want it."""
    return described(*words, runtimeClassName="nvidia", **spec)


@pytest.fixture(scope="module")
def shipped(image: Path) -> Iterator[Gpushare]:
    """Two GPU nodes of two cards each, and a control-plane node."""
    nodes = gpu_node("n1", 2), gpu_node("n2", 2)
    with of_image(image, *nodes, name="gpushare-image") as made:
        made.install()
        yield made


@pytest.fixture
def workloads(shipped: Gpushare) -> Iterator[Workloads]:
    found = Workloads(shipped.cluster)
    yield found
    found.delete_all()


def kubectl(gpushare: Gpushare, *words: str) -> str:
    return gpushare.cluster.kubectl("-n", NAMESPACE, *words)


def pods_of(gpushare: Gpushare, name: str) -> list[dict]:
    label = f"app.kubernetes.io/name={name}"
    return json.loads(kubectl(gpushare, "get", "pods", "-l", label, "-o", "json"))["items"]


def kill(gpushare: Gpushare, name: str, node: str) -> None:
    """Kill a program's pod on a node at once; return once another one is ready in its place."""
    (found,) = [p for p in pods_of(gpushare, name) if p["spec"]["nodeName"] == node]
    kubectl(gpushare, "delete", "pod", found["metadata"]["name"], "--force", "--grace-period=0")

    def same() -> str | None:
        there = [p for p in pods_of(gpushare, name) if p["spec"].get("nodeName") == node]
        uids = {each["metadata"]["uid"] for each in there}
        return None if uids - {found["metadata"]["uid"]} else f"its uids are {uids}"

    wait_until("another pod in its place", same, seconds=60)
    Shipped(gpushare.cluster).await_rollout()
    gpushare.wait_ready()


def kernel_says(gpushare: Gpushare, pod_name: str) -> dict[str, str]:
    """Return what the kernel says of the first process of a pod's first container."""
    text = kubectl(gpushare, "exec", pod_name, "--", "cat", "/proc/1/status")
    return {
        key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
    }


def test_both_halves_run_with_the_privileges_of_their_manifests(shipped: Gpushare):
    users = {EXTENDER: "65532", PLUGIN: "0"}
    for name, user in users.items():
        asked = yaml.safe_load((DAEMONSET / "base" / f"{FILES[name]}.yaml").read_text())
        wanted = asked["spec"]["template"]["spec"]
        for found in pods_of(shipped, name):
            assert found["spec"]["securityContext"] == wanted["securityContext"]
            given = found["spec"]["containers"][0]["securityContext"]
            assert given == wanted["containers"][0]["securityContext"]
            status = kernel_says(shipped, found["metadata"]["name"])
            assert status["Uid"].split()[0] == user
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_the_plugin_sees_the_cgroups_of_pods_and_can_change_none(shipped: Gpushare):
    for found in pods_of(shipped, PLUGIN):
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        look = ["find", "/sys/fs/cgroup", "-type", "d", "-name", f"pod{uid}"]
        assert kubectl(shipped, "exec", name, "--", *look).split()
        if shipped.cluster.version < RECURSIVE:
            continue
        mounts = kubectl(shipped, "exec", name, "--", "cat", "/proc/1/mountinfo").splitlines()
        options = {words[4]: words[5].split(",") for words in map(str.split, mounts)}
        below = {place for place in options if place.startswith("/sys/fs/cgroup")}
        assert below
        assert [place for place in below if "ro" not in options[place]] == []


def test_the_image_has_the_commands_and_nothing_that_builds_or_installs(shipped: Gpushare):
    name = pods_of(shipped, EXTENDER)[0]["metadata"]["name"]
    version = image_name().partition(":")[2]
    commands = ("gpushare", "kubectl-gpushare", "gpushare-extender", "gpushare-deviceplugin")
    script = "; ".join(f"{each} --version" for each in commands)
    told = kubectl(shipped, "exec", name, "--", "sh", "-ec", script).splitlines()
    assert [version in line for line in told] == [True] * len(commands)
    there = kubectl(shipped, "exec", name, "--", "sh", "-c", "command -v cc gcc pip uv; true")
    assert there.split() == []


def test_version_asks_every_program(shipped: Gpushare, tmp_path: Path):
    told = CommandLine(shipped.cluster.kubeconfig, tmp_path).tells("version")
    for kind, program in (("extenders", EXTENDER), ("plugins", PLUGIN)):
        names = [each["metadata"]["name"] for each in pods_of(shipped, program)]
        assert [each["name"] for each in told[kind]] == sorted(names)
        assert {each["version"] for each in told[kind]} == {told["client"]}


def test_the_images_packages_are_those_of_the_lock_at_its_versions(shipped: Gpushare):
    name = pods_of(shipped, EXTENDER)[0]["metadata"]["name"]
    script = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
    told = kubectl(shipped, "exec", name, "--", "python3", "-c", script).splitlines()
    found = {canonicalize_name(line.split()[0]): line.split()[1] for line in told}
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {(each["name"], each["version"]) for each in lock}
    assert set(found.items()) - locked == set()
    assert {"aiohttp", "cryptography", "grpcio", "nvidia-ml-py", "rich"} <= set(found)
    assert {"pip", "pytest", "ruff", "uv"} & set(found) == set()


@pytest.mark.usefixtures("workloads")
def test_no_pod_fails_while_the_plugin_is_updated_or_told_to_end(shipped: Gpushare):
    """The short form of `python -m tests.trials.updates`."""
    faults = PluginFaults(shipped, "n1")
    with Arrivals(shipped, "n1", period=0.5) as arrivals:
        for fault in (faults.roll, faults.terminate):
            fault()
            arrivals.wait_bound(8, since=now())
            shipped.wait_ready()
        arrivals.wait_settled()
    failed = [(each.name, each.bound, each.failed) for each in arrivals.all if each.failed]
    assert not failed, failed


def test_two_pods_share_a_card_and_a_third_waits(shipped: Gpushare, workloads: Workloads):
    workloads.run(pod("first", HALF, node="n1"))
    workloads.run(pod("second", HALF, node="n1"))
    found = env_is_card_on_record(workloads, "first", "second")
    assert found["first"] == found["second"]
    assert shipped.card_of("first") == shipped.card_of("second") == ("n1", 0)
    workloads.create(pod("too-large", CARD_MIB + 1, node="n2"))
    wait_event(workloads, "too-large", "no GPU of the node is large enough")


def test_shares_survive_a_kill_of_each_program(shipped: Gpushare, workloads: Workloads):
    workloads.run(pod("stays", HALF, node="n2"))
    before = env_is_card_on_record(workloads, "stays")
    kill(shipped, PLUGIN, "n2")
    kill(shipped, EXTENDER, CONTROL_PLANE)
    assert shipped.card_of("stays") == ("n2", 0)
    workloads.run(pod("after", HALF, node="n2"))
    assert env_is_card_on_record(workloads, "after", "stays") == {
        "after": before["stays"],
        **before,
    }


def test_the_kubelet_restarts_an_extender_that_hangs(
    shipped: Gpushare, figures: Callable[[str], None]
):
    def restarts() -> int:
        (found,) = pods_of(shipped, EXTENDER)
        return found["status"]["containerStatuses"][0]["restartCount"]

    (found,) = pods_of(shipped, EXTENDER)
    before, began = restarts(), time.monotonic()
    address = f"GPUSHARE_ADDRESS={found['status']['podIP']}"
    first = cgroups.running(shipped.cluster.state.cgroup, "gpushare-extender", address)[0]
    os.kill(first, signal.SIGSTOP)
    wait_until(
        "the kubelet to start it again",
        lambda: None if restarts() > before else "it has not been",
        seconds=25,  # 15, and what the kubelet takes to kill it and to tell
    )
    figures(f"an extender that hung was started again after {time.monotonic() - began:.1f} s")
    shipped.wait_ready()


def test_documented_rights_suffice(shipped: Gpushare, workloads: Workloads, tmp_path: Path):
    cluster = shipped.cluster
    workloads.run(pod("here", HALF, node="n1"))
    workloads.create(pod("never", CARD_MIB + 1, node="n1"))
    sample = json.dumps(pod("sample", HALF))
    what_if = ("what-if", "-f", "-")
    forward = f"create pods/portforward in namespace {NAMESPACE}. Your administrator can"
    with reader(cluster, tmp_path) as nobody:
        assert "kubectl auth can-i list nodes" in nobody.says("inspect", code=3)
        assert "can-i get pods -n default" in nobody.says("explain", "here", code=3)
        refusal = nobody.says(*what_if, code=3, stdin=sample)
        assert "list nodes and list pods in all namespaces. Create the pod" in refusal
    with reader(cluster, tmp_path, "gpushare-reads") as lists:
        by_lists = lists.says("inspect")
        assert f"n1  {used_gib(HALF, 2 * CARD_MIB)} of {free_gib(2 * CARD_MIB)} used" in by_lists
        assert f"list pods in namespace {NAMESPACE}" not in by_lists
        assert forward in by_lists
        shown = lists.says("explain", "never", code=1)
        assert "larger than any GPU" in shown.splitlines()[0]
        assert forward in shown
        assert "it fits\n  n1, GPU 0\n" in lists.says(*what_if, stdin=sample)
    with reader(cluster, tmp_path, "gpushare-reads", "gpushare-asks-extender") as asks:
        assert asks.tells("inspect")["notShown"] == []
        told = asks.tells("explain", "never", code=1)
        assert (told["fromExtender"], told["notShown"]) == (True, [])
        assert told["pod"]["state"] == "waiting"
        answer = asks.tells(*what_if, stdin=sample)
        assert [(each["node"], each["cards"]) for each in answer["places"]] == [("n1", [0])]


def test_the_live_page_is_reached_in_both_ways(shipped: Gpushare, tmp_path: Path):
    cluster = shipped.cluster
    with reader(cluster, tmp_path, "gpushare-reads", "gpushare-asks-extender") as asks:
        assert cluster.kubectl("create", "token", "-n", "default", "reads").count(".") == 2
        assert shown_by([*PROGRAM, "page", "--port=0"], asks.env) == ["n1", "n2"]
    kubectl = [str(cluster.binaries / "kubectl"), f"--kubeconfig={cluster.kubeconfig}"]
    forward = ["-n", NAMESPACE, "port-forward", f"daemonset/{EXTENDER}", ":29766"]
    assert shown_by([*kubectl, *forward], dict(os.environ)) == ["n1", "n2"]


def shown_by(command: list[str], env: dict[str, str]) -> list[str]:
    """Return the nodes of the live page that a command makes reachable."""
    started = [*ENDS_BY_SIGINT, *command]
    with subprocess.Popen(started, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:\d+(/[\w-]{43})?", line)
            assert found, line
            url = f"http://{found[0]}/gpushare-scheduler"
            with urllib.request.urlopen(f"{url}/page", timeout=patient(10)) as page:  # noqa: S310 - ours
                assert b"<title>gpushare</title>" in page.read()
            names: list[str] = []
            with urllib.request.urlopen(f"{url}/changes", timeout=patient(10)) as stream:  # noqa: S310
                while (told := stream.readline()) != b"event: whole\n":
                    data = json.loads(told[6:]) if told.startswith(b"data: ") else {}
                    names += [node["name"] for node in data.get("nodes", ())]
            return sorted(names)
        finally:
            process.send_signal(signal.SIGINT)


def test_documented_commands_work(shipped: Gpushare, workloads: Workloads, tmp_path: Path):
    workloads.run(pod("runs", HALF, metadata={"labels": {"app": "gpushare-sample"}}))
    workloads.create(pod("waits", CARD_MIB + 1))
    assert problems(shipped, READING, tmp_path) == []


def test_driver_root_needs_no_nvidia_runtime(shipped: Gpushare, workloads: Workloads):
    """The stand-in's cards are in a file, which takes one more folder than a real driver."""
    manifests = Shipped(shipped.cluster)
    manifests.apply(components=["driver-root"], patches=[CARDS_OF_THE_STAND_IN])
    shipped.wait_ready()
    workloads.run(pod("rooted", HALF, node="n1"))
    env_is_card_on_record(workloads, "rooted")


def test_second_scheduler_mode_works(shipped: Gpushare, workloads: Workloads, tmp_path: Path):
    kubectl(shipped, "delete", "daemonset", EXTENDER)
    Shipped(shipped.cluster).apply("overlays/second-scheduler")
    workloads.run(
        pod("one", HALF, node="n1", schedulerName=SECOND),
        pod("two", HALF, node="n1", schedulerName=SECOND),
    )
    found = env_is_card_on_record(workloads, "one", "two")
    assert found["one"] == found["two"]
    either = [each for each in READING if SECOND in each]
    assert either
    assert problems(shipped, either, tmp_path) == []
    # Its extender listens on the pod's own loopback.
    command_line = CommandLine(shipped.cluster.kubeconfig, tmp_path)
    assert command_line.tells("inspect")["notShown"] == []
