"""The driver limits a container's memory as the plugin's variables say, by NVIDIA's own hook.

A cluster of its own without an extender: the decisions are written with the pods. Which parts are
stand-ins is in `localcluster.memory_limits`.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localcluster import cgroups, memory_limits
from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.gpushare import CARD_MIB, LABELS, Gpushare
from localcluster.images import GREEDY_WORKLOAD
from localcluster.nodefiles import CARDS
from localcluster.nvml import CardSpec, MemoryLimit, hard_limits, read_limits
from localcluster.specs import NodeSpec, Runtime
from localcluster.toolkit import Setup
from localcluster.wait import wait_until
from localcluster.workloads import RESOURCE, Workloads
from tests.cluster.bringup import fresh
from tests.cluster.expect import decided

pytestmark = pytest.mark.cluster

MIB = 1 << 20
UNITS = 4000  # of one MiB, so this is also each container's limit
ONE, TWO, ON_OLD, ON_CRI_O, ON_AUTO = (f"GPU-0000000a-0000-4000-8000-{i:012x}" for i in range(5))
NODES: dict[str, tuple[Runtime, Setup, tuple[str, ...]]] = {
    "limits": ("containerd-2", Setup.CDI, (ONE, TWO)),
    "old": ("containerd-1.7", Setup.CDI, (ON_OLD,)),
    "cri-o": ("cri-o", Setup.CDI, (ON_CRI_O,)),
    "auto": ("containerd-2", Setup.AUTO, (ON_AUTO,)),  # without a CDI file of NVIDIA's
}
OUT_OF_MEMORY = 3
# What a container in its own namespace of cgroups sees on a machine with cgroup v2 alone.
V2_ALONE = f"""
echo $$ >$1/cgroup.procs
mount -n -t tmpfs none /run
mkdir {CARDS}
mount -n --bind $2 {CARDS}
shift 2
exec unshare --cgroup --mount sh -ec 'mount -n -t cgroup2 none /sys/fs/cgroup; "$@"' sh "$@"
"""


def start_plugin(gpushare: Gpushare, node: str, *arguments: str) -> None:
    # What NVIDIA's runtime makes of `all` in the plugin's own environment.
    env = {"NVIDIA_VISIBLE_DEVICES": "void"}
    gpushare.start_plugin(node, *arguments, binding="late", env=env)


def see_cgroups(pods: Workloads) -> None:
    """Let every plugin see a pod's cgroup, as it sees its own where it is a pod."""
    cards = {"first-1": ONE, "first-2": ON_OLD, "first-3": ON_CRI_O}
    pods.create(*(asking(name, 1, card=card) for name, card in cards.items()))
    pods.wait_running(*cards)

    def unstated() -> str | None:
        found = {node: stated(pods, node) for node in ("limits", "old", "cri-o")}
        is_stated = all(what == "driver" for each in found.values() for what, _ in each)
        return None if is_stated else str(found)

    wait_until("every node to promise limits", unstated, seconds=60)
    pods.delete_all()


@pytest.fixture(scope="module")
def cluster(node_runtimes: Path) -> Iterator[Cluster]:
    """The nodes, whose driver limits memory, with gpushare's plugin on them."""
    nodes = [
        NodeSpec(
            name,
            LABELS,
            tuple(CardSpec(uuid, mem_mib=CARD_MIB) for uuid in uuids),
            setup=setup,
            runtime=runtime,
            limits_memory=True,
        )
        for name, (runtime, setup, uuids) in NODES.items()
    ]
    with fresh(nodes, name="gpushare-limits", scheduler_config=None) as made:
        gpushare = Gpushare(made)
        gpushare.apply_access()
        for name in NODES:
            start_plugin(gpushare, name)

        def unshared() -> str | None:
            with made.api() as api:
                items = api.get("/api/v1/nodes")["items"]
            shown = {each["metadata"]["name"]: each["status"]["allocatable"] for each in items}
            without = [name for name in NODES if shown[name].get(RESOURCE, "0") == "0"]
            return f"no {RESOURCE} on {without}" if without else None

        wait_until("every node's cards", unshared, seconds=60)
        with gpushare.unguarded():
            see_cgroups(Workloads(made))
            yield made
    assert not (cgroups.unified() / made.state.cgroup).exists()


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Workloads]:
    made = Workloads(cluster)
    yield made
    made.delete_all()
    wait_until("no limit to be left", lambda: str(rows(made) or "") or None, seconds=30)


def asking(
    name: str, mib: int, *, card: str = ONE, env: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Describe a pod whose workload allocates so much memory of its card."""
    (node,) = (
        each for each, (_, _, uuids) in NODES.items() if card.split(",", maxsplit=1)[0] in uuids
    )
    described = decided(name, node, UNITS, cards=card)
    (container,) = described["spec"]["containers"]
    container["args"] = ["allocate", str(mib)]
    container["env"] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    # Containers of NVIDIA's runtimes have it anyway.
    container["volumeMounts"] = [{"name": "driver", "mountPath": CARDS, "readOnly": True}]
    volumes = [{"name": "driver", "hostPath": {"path": CARDS}}]
    described["spec"] |= {"restartPolicy": "Never", "volumes": volumes, **spec}
    return described


def rows(pods: Workloads) -> list[MemoryLimit]:
    """Return the limits that hold now on all nodes."""
    folders = [pods.cluster.node_folder(name) / "nvml" for name in NODES]
    return [each for folder in folders for each in read_limits(folder)]


def cgroup_of(pods: Workloads, name: str) -> str:
    """Return the end of the path of a container's cgroup: its pod's and its own."""
    found = pods.get(name)
    (status,) = found["status"]["containerStatuses"]
    runtime, _, ident = status["containerID"].partition("://")
    prefix = "crio-" if runtime == "cri-o" else ""
    return f"/pod{found['metadata']['uid']}/{prefix}{ident}"


def ended(pods: Workloads, name: str) -> int:
    """Return a container's exit code; wait until it has ended."""

    def state() -> dict[str, Any]:
        (status,) = pods.get(name)["status"].get("containerStatuses", [{}])
        return status.get("state", {})

    wait_until(
        f"{name} to end", lambda: None if "terminated" in state() else str(state()), seconds=60
    )
    return state()["terminated"]["exitCode"]


def stated(pods: Workloads, node: str) -> list[tuple[str, str]]:
    """Return what a node states that it enforces on each card, and why not more."""
    with pods.cluster.api() as api:
        found = api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    cards = json.loads(found["gpushare.aliyun.com/inventory"])["cards"]
    return [(card["enforces"], card.get("whyNotMore", "")) for card in cards]


def condition(pods: Workloads, name: str) -> tuple[str, str] | None:
    """Return status and reason of a pod's condition CardUsable; None without it."""
    for each in pods.get(name)["status"].get("conditions", []):
        if each["type"] == "gpushare.aliyun.com/CardUsable":
            return each["status"], each["reason"]
    return None


def wait_condition(pods: Workloads, name: str, status: str, reason: str) -> None:
    wait_until(
        f"{name} to be {reason}",
        lambda: None if condition(pods, name) == (status, reason) else str(condition(pods, name)),
        seconds=60,
    )


def test_a_container_has_its_share_as_limit_and_nothing_reserved_on_each_kind_of_node(
    pods: Workloads,
) -> None:
    wanted = {"a": ONE, "b": TWO, "on-old": ON_OLD, "on-cri-o": ON_CRI_O}
    pods.create(*(asking(name, 1000, card=uuid) for name, uuid in wanted.items()))
    pods.wait_running(*wanted)
    found = {each.uuid: each for each in rows(pods)}
    assert sorted(found) == sorted(wanted.values())
    for name, uuid in wanted.items():
        row = found[uuid]
        assert (row.soft, row.hard) == (0, UNITS * MIB), name
        assert row.cgroup.endswith(cgroup_of(pods, name))
    assert stated(pods, "limits") == [("driver", ""), ("driver", "")]


def test_a_node_without_nvidias_cdi_file_limits_nothing_and_says_why(pods: Workloads) -> None:
    pods.create(asking("on-auto", 1000, card=ON_AUTO))
    pods.wait_running("on-auto")
    assert rows(pods) == []
    ((enforces, why),) = stated(pods, "auto")
    assert enforces == "nothing"
    assert "nvidia-ctk cdi generate" in why


@pytest.mark.parametrize("card", [ONE, ON_OLD, ON_CRI_O])
def test_a_pod_that_sets_the_variables_itself_is_refused(pods: Workloads, card: str) -> None:
    own = {"NVIDIA_GPU_MEMORY_REQUEST": "9000", "NVIDIA_GPU_MEMORY_LIMIT": "9500"}
    pods.create(asking("a", 1000, card=card, env=own))
    wait_until(
        "a to be refused",
        lambda: None if pods.get("a")["status"]["phase"] == "Failed" else "not yet",
        seconds=60,
    )
    assert "remove the variable" in pods.get("a")["status"]["message"]


@pytest.mark.parametrize("card", [ONE, ON_OLD, ON_CRI_O])
def test_variables_of_a_config_map_change_neither_limit_nor_reservation(
    pods: Workloads, card: str
) -> None:
    data = {"NVIDIA_GPU_MEMORY_REQUEST": "9000", "NVIDIA_GPU_MEMORY_LIMIT": "9500"}
    described = asking("a", 1000, card=card)
    described["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "own"}}]
    with config_map(pods, "own", data):
        pods.create(described)
        pods.wait_running("a")
        assert [(each.soft, each.hard) for each in rows(pods)] == [(0, UNITS * MIB)]


@contextmanager
def config_map(pods: Workloads, name: str, data: Mapping[str, str]) -> Iterator[None]:
    path = f"/api/v1/namespaces/{pods.namespace}/configmaps"
    with pods.cluster.api() as api:
        api.request("POST", path, {"metadata": {"name": name}, "data": dict(data)})
    yield
    with pods.cluster.api() as api:
        api.request("DELETE", f"{path}/{name}")


@pytest.mark.parametrize("card", [ONE, ON_OLD])
def test_an_image_that_raises_its_limit_is_found_and_its_pod_must_go(
    pods: Workloads, card: str
) -> None:
    """With containerd the variables of an image come first."""
    described = asking("a", 1000, card=card)
    described["spec"]["containers"][0]["image"] = GREEDY_WORKLOAD
    pods.create(described)
    wait_condition(pods, "a", "False", "MemoryLimitChanged")
    assert any("its limit is 16000 MiB, with 3000 MiB reserved" in e for e in pods.events("a"))


def test_on_cri_o_an_image_cannot_raise_its_limit(pods: Workloads) -> None:
    described = asking("a", 1000, card=ON_CRI_O)
    described["spec"]["containers"][0]["image"] = GREEDY_WORKLOAD
    pods.create(described)
    pods.wait_running("a")
    assert [(each.soft, each.hard) for each in rows(pods)] == [(0, UNITS * MIB)]


def test_each_container_of_a_pod_has_its_own_limit_also_one_that_comes_first(
    pods: Workloads,
) -> None:
    described = asking("a", 1000)
    (main,) = described["spec"]["containers"]
    second = {**main, "name": "second", "resources": {"limits": {RESOURCE: "2000"}}}
    hiding = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    plain = {**main, "name": "plain", "resources": {}, "args": [], "env": hiding}
    # It fails if it has more than its own share.
    first = {**main, "name": "first", "resources": {"limits": {RESOURCE: "3000"}}}
    first["args"] = ["allocate", "3001"]
    described["spec"] |= {"containers": [main, second, plain]}
    pods.create(described)
    pods.wait_running("a")
    hard = sorted(each.hard // MIB for each in rows(pods))
    assert hard == [2000, UNITS]
    pods.delete("a", grace=1)
    greedy = asking("b", 1000)
    greedy["spec"]["initContainers"] = [first]
    pods.create(greedy)
    wait_until(
        "the init container of b to fail",
        lambda: None if pods.get("b")["status"]["phase"] == "Failed" else "not yet",
        seconds=60,
    )
    said = pods.cluster.kubectl("logs", "b", "-c", "first")
    assert f"out of memory: GPU {ONE}: wanted 3001 MiB, used 0 MiB of 3000 MiB" in said


def test_a_container_with_two_cards_has_its_part_of_each_as_limit(pods: Workloads) -> None:
    described = asking("a", 1000, card=f"{ONE},{TWO}")
    described["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    pods.create(described)
    pods.wait_running("a")
    found = {each.uuid: (each.soft, each.hard // MIB) for each in rows(pods)}
    assert found == dict.fromkeys((ONE, TWO), (0, UNITS // 2))


def test_a_limit_that_the_hook_skips_is_missed_and_a_pod_that_requires_it_must_go(
    pods: Workloads,
) -> None:
    hook = pods.cluster.node_folder("limits") / memory_limits.HOOK
    if not hook.exists():
        pytest.skip("NVIDIA's hook runs as it is here, and cannot be replaced")
    script = hook.read_text()
    strict = asking("strict", 1000, card=TWO)
    strict["metadata"]["annotations"]["gpushare.aliyun.com/isolation"] = "required"
    hook.write_text(
        "#!/bin/sh\n[ $1 = apply-cuda-memory-limits ] || exec " + script.split()[-2] + ' "$@"\n'
    )
    try:
        pods.create(asking("a", 1000), strict)
        wait_condition(pods, "strict", "False", "MemoryLimitMissing")
        assert any("it has no limit" in each for each in pods.events("a"))
        assert condition(pods, "a") is None
    finally:
        hook.write_text(script)


@pytest.mark.parametrize("changed", [(), ("--memory-unit=2MiB",)], ids=["same", "other-unit"])
def test_a_plugin_that_is_killed_on_the_way_changes_no_limit(
    pods: Workloads, changed: tuple[str, ...]
) -> None:
    again, beside = (f"{each}-{len(changed)}" for each in ("again", "beside"))  # without Events yet
    pods.create(asking(again, 1000, restartPolicy="Always"), asking(beside, 1000))
    pods.wait_running(again, beside)
    first = cgroup_of(pods, again)

    def not_restarted() -> str | None:
        found = rows(pods)
        return None if cgroup_of(pods, again) != first and len(found) == 2 else str(found)

    pods.kill_container(again)
    restart_plugin(pods, *changed)
    try:
        wait_until("the killed container to run again", not_restarted, seconds=60)
        limits = [(each.soft, each.hard) for each in rows(pods)]
    finally:
        restart_plugin(pods)
    assert limits == [(0, UNITS * MIB)] * 2
    told = [each for name in (again, beside) for each in pods.events(name)]
    assert not any("docs/isolation.md" in each for each in told)


def restart_plugin(pods: Workloads, *arguments: str) -> None:
    pods.cluster.stop("deviceplugin-limits", grace=0)
    start_plugin(Gpushare(pods.cluster), "limits", *arguments)


def test_a_container_above_its_limit_is_refused_memory_and_its_neighbor_keeps_its_own(
    pods: Workloads,
) -> None:
    pods.create(asking("a", 1000))
    pods.wait_running("a")
    before = pods.get("a")["status"]["containerStatuses"]
    pods.create(asking("greedy", UNITS + 1), asking("whole", UNITS))
    assert ended(pods, "greedy") == OUT_OF_MEMORY
    said = pods.cluster.kubectl("logs", "greedy")
    assert f"out of memory: GPU {ONE}: wanted {UNITS + 1} MiB, used 0 MiB of {UNITS} MiB" in said
    pods.wait_running("whole")
    assert pods.get("a")["status"]["containerStatuses"] == before


def test_what_is_executed_in_a_container_shares_its_limit(pods: Workloads) -> None:
    pods.create(asking("a", UNITS - 1000))
    pods.wait_running("a")
    with pytest.raises(CommandError, match=rf"wanted 1001 MiB, used {UNITS - 1000} MiB of {UNITS}"):
        pods.cluster.kubectl("exec", "a", "--", "/workload", "allocate", "1001")
    # It stays, as every workload does.
    words = ["exec", "a", "--", "/workload", "allocate", "1000"]
    kubectl = [pods.cluster.binaries / "kubectl", f"--kubeconfig={pods.cluster.kubeconfig}"]
    with subprocess.Popen([*kubectl, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "allocated 1000 MiB\n" in iter(process.stdout.readline, "ready\n")
        process.kill()


def test_a_limit_ends_with_its_container(pods: Workloads) -> None:
    pods.create(asking("a", 1000, restartPolicy="Always"), asking("b", 1000))
    pods.wait_running("a", "b")
    first = cgroup_of(pods, "a")
    folder = pods.cluster.node_folder("limits") / "nvml"
    assert hard_limits(folder, ONE) == 2 * UNITS * MIB
    pods.kill_container("a")

    def not_restarted() -> str | None:
        found = [each.cgroup for each in rows(pods)]
        is_new = cgroup_of(pods, "a") != first and len(found) == 2
        return None if is_new and not any(each.endswith(first) for each in found) else str(found)

    wait_until("the limit of the new container alone", not_restarted, seconds=60)
    pods.delete("a", grace=1)
    wait_until(
        "the limit of b alone",
        lambda: None if hard_limits(folder, ONE) == UNITS * MIB else str(rows(pods)),
        seconds=30,
    )


def test_a_workload_that_sees_only_its_own_cgroup_finds_its_limit(
    pods: Workloads, tmp_path: Path
) -> None:
    leaf = cgroups.unified() / pods.cluster.state.cgroup / "alone"
    leaf.mkdir(parents=True)
    row = f"{ONE}\t{leaf.stat().st_ino}\t0\t{2000 * MIB}\t/of/the/machine\n"
    (tmp_path / "limits").write_text(row)
    words = ["unshare", "--mount", "sh", "-ec", V2_ALONE, "sh", leaf, tmp_path]
    words += [pods.cluster.binaries / "workload", "allocate", "2001"]
    environment = {"GPUSHARE_CARD_UUID": ONE, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == OUT_OF_MEMORY, done.stderr
    assert "wanted 2001 MiB, used 0 MiB of 2000 MiB" in done.stderr
    leaf.rmdir()
