"""A local cluster leaves nothing behind, and what is killed in it comes back.

These bring up a second cluster beside the one that the other cluster tests share.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import Cluster, LocalClusterError, NodeSpec, teardown
from localcluster.nvml import CardSpec
from localcluster.state import StateFolder, state_root
from localcluster.wait import patient, wait_until

pytestmark = pytest.mark.cluster

NAME = "localcluster-test"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: sample}
spec:
  containers:
  - name: sample
    env: [{name: WORKLOAD_STOP_SECONDS, value: "20"}]
    image: gpushare.local/workload:1
    imagePullPolicy: Never
"""


def traces(state: StateFolder) -> set[str]:
    """Return all traces of this cluster on the machine, found in other ways than `down` does."""
    found: set[str] = set()
    wanted = str(state.path).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name == str(os.getpid()) or not (process / "cmdline").read_bytes():
                continue
            for file in ("cmdline", "environ", "mountinfo"):
                if wanted in (process / file).read_bytes():
                    found.add(f"{file} of process {process.name}")
            if state.cgroup in (process / "cgroup").read_text():
                found.add(f"cgroup of process {process.name}")
    if wanted in Path("/proc/self/mountinfo").read_bytes():
        found.add("mount")
    if state.link_prefix in subprocess.check_output(["ip", "link"], text=True):
        found.add("interface")
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        found.update(f"cgroup {folder}/{name}" for name in names if name == state.cgroup)
    if state.path.exists():
        found.add("state folder")
    return found


def host() -> dict[str, object]:
    """Return what a cluster could change on the machine without a trace of its name.

    Leaves out what has a cluster's name: other clusters may be up.
    """
    folders = ("/etc", "/opt", "/run", "/usr/libexec", "/var/lib", "/var/log")
    settings = (
        "vm/overcommit_memory",
        "kernel/panic",
        "kernel/panic_on_oops",
        "net/ipv4/ip_forward",
    )
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in mounts]
    routes = subprocess.check_output(["ip", "route"], text=True).splitlines()
    return {
        "folders": {each: sorted(Path(each).iterdir()) for each in folders},
        "settings": {each: Path("/proc/sys", each).read_text() for each in settings},
        "mounts": sorted(each for each in places if not each.startswith(str(state_root()))),
        "rules": subprocess.check_output(["nft", "list", "ruleset"], text=True),
        "routes": [each for each in routes if " dev lc" not in each],
    }


@pytest.fixture
def state() -> Iterator[StateFolder]:
    found = StateFolder.of(NAME)
    teardown.down(found)
    yield found
    teardown.down(found)


@pytest.fixture
def before(state: StateFolder) -> dict[str, object]:
    assert traces(state) == set()
    return host()


@pytest.fixture
def own(before: dict[str, object]) -> Cluster:
    return Cluster.up([NodeSpec("n1", {"a": "b"}, (CardSpec("GPU-one"),))], name=NAME)


def run_pod(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=POD)
    limit = f"--timeout={patient(60):.0f}s"
    cluster.kubectl("wait", "pod/sample", "--for=condition=Ready", limit, seconds=70)


def pid_of(cluster: Cluster, name: str) -> int | None:
    return next(each.pid for each in cluster.processes() if each.name == name)


def test_a_cluster_runs_pods_and_leaves_nothing(
    own: Cluster, state: StateFolder, before: dict[str, object]
) -> None:
    run_pod(own)
    assert "ready\n" in own.kubectl("logs", "sample")
    kubeconfig = own.service_account_kubeconfig("default", "default", node="n1")
    user = json.loads(own.kubectl("auth", "whoami", "-o", "json", f"--kubeconfig={kubeconfig}"))[
        "status"
    ]["userInfo"]
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]
    own.start_program("helper", ["sleep", "600"], node="n1")
    with pytest.raises(LocalClusterError, match="is up already"):
        Cluster.up(name=NAME)
    assert {"mount", "interface", "state folder"} < traces(state)
    own.down()
    assert traces(state) == set()
    assert host() == before
    own.down()
    with pytest.raises(LocalClusterError, match="is not up"):
        Cluster.attach(NAME)


def test_what_is_killed_comes_back_and_a_killed_supervisor_leaves_nothing(
    own: Cluster, state: StateFolder, before: dict[str, object]
) -> None:
    run_pod(own)
    started = own.kubectl("get", "pod", "sample", "-o", "jsonpath={.status}")
    for name in ("kubelet-n1", "containerd-n1", "kube-scheduler"):
        killed = pid_of(own, name)
        own.kill(name)
        wait_until(
            f"{name} to be started again",
            lambda name=name, killed=killed: (
                None if pid_of(own, name) not in {None, killed} else "not yet"
            ),
            seconds=60,
        )
    own.stop("kubelet-n1")
    assert pid_of(own, "kubelet-n1") is None
    own.start("kubelet-n1")
    wait_until(
        "the node to be Ready and to give its log again",
        lambda: None if own.node_readiness() == {"n1": "True"} else "not Ready",
        seconds=60,
    )
    assert own.kubectl("get", "pod", "sample", "-o", "jsonpath={.status}") == started
    supervisors = [
        int(each.name)
        for each in Path("/proc").glob("[0-9]*")
        if _command(each)[2:] == [b"localcluster.supervisor", os.fsencode(state.path), b""]
    ]
    assert len(supervisors) == 1
    os.kill(supervisors[0], signal.SIGKILL)
    wait_until(
        "the supervisor to be gone",
        lambda: None if not _command(Path(f"/proc/{supervisors[0]}"))[0] else "still there",
        seconds=5,
    )
    assert traces(state) > {"mount", "interface", "state folder"}
    teardown.down(state)
    assert traces(state) == set()
    assert host() == before


def test_a_node_whose_power_is_cut_starts_from_its_disk_and_leaves_nothing(
    own: Cluster, state: StateFolder, before: dict[str, object]
) -> None:
    run_pod(own)
    own.start_program("helper", ["sleep", "600"], node="n1")
    own.start_program("rests", ["sleep", "600"], node="n1")
    own.stop("rests")
    inside = own.node_folder("n1")
    for folder in ("run", "kubelet"):
        (inside / folder / "written").touch()
    who = ("get", "node", "n1", "-o", "jsonpath={.metadata.uid}{.status.addresses}")
    shown = own.kubectl(*who)
    ran = {each.name: each.pid for each in own.processes() if each.node == "n1" and each.pid}
    assert set(ran) == {"containerd-n1", "kubelet-n1", "helper"}
    containers = teardown.owned_processes(state, "n1") - set(ran.values())
    assert len(containers) >= len(["shim", "pause", "sample"])

    own.restart_node("n1", without=["helper"])

    assert all(_gone(pid) for pid in [*ran.values(), *containers])
    assert not (inside / "run" / "written").exists()
    assert (inside / "kubelet" / "written").exists()
    assert {"helper", "rests"} == {each.name for each in own.processes() if not each.wanted}
    own.start("helper")

    def not_again() -> str | None:
        found = json.loads(own.kubectl("get", "pod", "sample", "-o", "json"))["status"]
        [container] = found.get("containerStatuses") or [{}]
        runs = container.get("restartCount") == 1 and "running" in container["state"]
        return None if runs else str(found)

    wait_until("the pod to run again", not_again, seconds=60)
    assert "ready\n" in own.kubectl("logs", "sample")
    assert own.kubectl(*who) == shown
    own.down()
    assert traces(state) == set()
    assert host() == before


def _gone(pid: int) -> bool:
    return not _command(Path(f"/proc/{pid}"))[0]


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGHUP,), (signal.SIGTERM, signal.SIGINT)]
)
def test_an_interrupted_up_leaves_nothing(
    state: StateFolder, before: dict[str, object], signals: tuple[signal.Signals, ...]
) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and so may have started us.
    up = subprocess.Popen(
        ["env", "--default-signal", sys.executable, "-m", "localcluster", "up", "--name", NAME],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert up.stdout is not None
    with up.stdout as lines:
        assert "kube-apiserver started" in next(lines)
        for number in signals:
            os.kill(up.pid, number)
        said = lines.read()
    assert up.wait(patient(30)) != 0
    assert "Traceback" not in said
    assert traces(state) == set()
    assert host() == before


def _command(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]
