"""A node migrates from Aliyun gpushare to gpushare while its pods run."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from localcluster.errors import LocalClusterError
from localcluster.gpushare import CARD_MIB, ROOT, Gpushare, plugin_of
from localcluster.nvml import CardSpec, write_state
from localcluster.run import run
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, describe, is_running, pod
from tests.cluster.expect import ASSIGNED, LONG, RUNNING_ON, start_kubelet, wait_plugin
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

MEMORY = "aliyun.com/gpu-mem"
INVENTORY = "gpushare.aliyun.com/inventory"
OLDER = "older-plugin"
HALF = CARD_MIB // 2


@dataclass(frozen=True)
class OlderNode:
    """A node whose cards have minor numbers in reverse order, unlike our indexes."""

    gpushare: Gpushare
    policies: ExitStack
    name: str
    cards: int

    def uuid_of(self, minor: int) -> str:
        return f"GPU-{self.name}-{self.cards - 1 - minor}"

    def show_cards(self, *, reverse: bool) -> None:
        specs = [
            CardSpec(
                f"GPU-{self.name}-{place}",
                mem_mib=CARD_MIB,
                minor=self.cards - 1 - place if reverse else place,
            )
            for place in range(self.cards)
        ]
        write_state(self.gpushare.cluster.node_folder(self.name) / "nvml" / "state", specs)

    def start_older(self) -> None:
        cluster = self.gpushare.cluster
        cards = [f"{self.uuid_of(minor)}={minor}" for minor in range(self.cards)]
        words = [str(cluster.kubeconfig), self.name, str(CARD_MIB), *cards]
        cluster.start_program(
            OLDER,
            [sys.executable, "-m", "tests.cluster.older_plugin", *words],
            node=self.name,
            env={"PYTHONPATH": str(ROOT)},
        )
        self.wait_offers(self.cards * CARD_MIB)

    def wait_offers(self, units: int) -> None:
        def others() -> str | None:
            with self.gpushare.cluster.api() as api:
                found = api.get(f"/api/v1/nodes/{self.name}")["status"]["allocatable"]
            return None if found.get(MEMORY, "0") == str(units) else str(found)

        wait_until(f"{units} units of {self.name}", others, seconds=60)

    def forget(self) -> None:
        """Remove every trace of our plugin."""
        cluster = self.gpushare.cluster
        shutil.rmtree(cluster.node_folder(self.name) / "gpushare", ignore_errors=True)
        cluster.kubectl("annotate", "node", self.name, f"{INVENTORY}-")


NODES = {"late": ("n3", 2), "early": ("n4", 4)} if LONG else {"late": ("n3", 2)}


@pytest.fixture(params=NODES.values(), ids=NODES)
def older(request: pytest.FixtureRequest, gpushare: Gpushare) -> Iterator[OlderNode]:
    """Run Aliyun gpushare's plugin on a node, without our extender and policies."""
    cluster = gpushare.cluster
    with ExitStack() as policies:
        policies.enter_context(gpushare.unguarded())
        node = OlderNode(gpushare, policies, *request.param)
        cluster.stop("extender")
        cluster.stop(plugin_of(node.name))
        node.wait_offers(0)
        node.forget()
        node.show_cards(reverse=True)
        node.start_older()
        yield node
        for program in (OLDER, plugin_of(node.name)):
            cluster.stop(program)
        Workloads(cluster).delete_all()
        node.show_cards(reverse=False)
    with gpushare.unguarded():
        node.forget()
    cluster.start(plugin_of(node.name))
    cluster.start("extender")
    gpushare.wait_ready()


def bind_as_aliyun(pods: Workloads, node: str, name: str, minor: int, decided: int = 0) -> None:
    """Bind as Aliyun gpushare's extender does: patch the annotations, then create the Binding."""
    units = pods.get(name)["spec"]["containers"][0]["resources"]["limits"][MEMORY]
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": str(minor),
        "ALIYUN_COM_GPU_MEM_POD": units,
        "ALIYUN_COM_GPU_MEM_DEV": str(CARD_MIB),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(decided or time.time_ns()),
        ASSIGNED: "false",
    }
    path = f"/api/v1/namespaces/default/pods/{name}"
    patch, kind = {"metadata": {"annotations": annotations}}, "application/merge-patch+json"
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    with pods.cluster.api() as api:
        api.request("PATCH", path, patch, content_type=kind)
        api.request("POST", f"{path}/binding", body)


def run_as_before(gpushare: Gpushare, pods: Workloads, node: str, units: Mapping[str, int]) -> None:
    """Run four pods under Aliyun gpushare, on the cards 0 and 1.

    Of two equal pods its plugin takes the one that was decided first, and the kubelet the one that
    was bound first. So ``late`` and ``early`` each get the other's card.
    """
    pods.create(*(pod(name, amount, node=node) for name, amount in units.items()))
    bind_as_aliyun(pods, node, "low", 0)
    bind_as_aliyun(pods, node, "high", 1)
    pods.wait_running("low", "high")
    gpushare.cluster.kill(f"kubelet-{node}", signal.SIGSTOP)
    decided = time.time_ns()
    bind_as_aliyun(pods, node, "late", 1)
    bind_as_aliyun(pods, node, "early", 0, decided)
    gpushare.cluster.kill(f"kubelet-{node}", signal.SIGCONT)
    pods.wait_running(*units)


def wait_counted(gpushare: Gpushare, node: str, wanted: dict[str, dict[str, int]]) -> None:
    """Wait until the extender counts these pods, with their units, on these cards of a node."""

    def differs() -> str | None:
        try:
            [found] = gpushare.inspect(node)
        except LocalClusterError as err:
            return str(err)
        counted = {
            card["uuid"]: {each["name"]: each["usedGPU"] for each in card["pods"]}
            for card in found["devs"]
        }
        held = {uuid: holders for uuid, holders in counted.items() if holders}
        if held == wanted and not found["unplaced"]:
            return None
        return f"{found} {[describe(each) for each in Workloads(gpushare.cluster).all()]}"

    wait_until("what each card holds", differs, seconds=60)


def refused(gpushare: Gpushare, node: str, units: int) -> None:
    """Check that the extender has no card for so much there."""
    asked = {"Pod": pod("asks", units), "NodeNames": [node]}
    _, answer = gpushare.call("POST", "/gpushare-scheduler/filter", asked)
    assert answer["NodeNames"] == []
    assert "no single GPU has enough free" in answer["FailedAndUnresolvableNodes"][node]


def check(pods: Workloads) -> str:
    """Return what ``gpushare migrate`` prints if nothing blocks."""
    words = ["-m", "gpusharectl", "migrate", f"--kubeconfig={pods.cluster.kubeconfig}"]
    return run([sys.executable, *words])


def check_not_uninstalled(gpushare: Gpushare, node: str) -> None:
    """Check that nothing is uninstalled while a node has Aliyun gpushare's plugin."""
    words = ["uninstall", "--drain", "--yes", f"--kubeconfig={gpushare.cluster.kubeconfig}"]
    command = [sys.executable, "-m", "gpusharectl", *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, f"Aliyun gpushare: {node}." in found.stderr) == (1, True)


def states(pods: Workloads, *names: str) -> dict[str, Any]:
    """Return what changes when a container restarts."""
    found = {name: pods.get(name)["status"]["containerStatuses"][0] for name in names}
    return {name: (each["containerID"], each["restartCount"]) for name, each in found.items()}


def visible(pods: Workloads, *names: str) -> list[str]:
    """Return the cards that containers were started with."""
    return [pods.environment(name)["NVIDIA_VISIBLE_DEVICES"] for name in names]


def wait_reported(pods: Workloads, *names: str) -> None:
    """Wait until our plugin has reported where these pods run."""

    def missing() -> str | None:
        late = [name for name in names if not pods.annotations(name).get(RUNNING_ON)]
        return ", ".join(late) or None

    wait_until("where each pod runs", missing, seconds=60)


def wait_run_again(pods: Workloads, before: dict[str, Any]) -> None:
    """Wait until the containers of these ``states`` have each been started once more."""

    def waits() -> str | None:
        for name, (container, count) in before.items():
            found = pods.get(name)
            [state] = found["status"].get("containerStatuses") or [{}]
            is_next = state.get("restartCount") == count + 1 and state["containerID"] != container
            if not (is_next and is_running(found)):
                return f"{name}: {found['status']}: {pods.events(name)[-2:]}"
        return None

    wait_until("containers to run again", waits, seconds=60)


def test_pods_keep_running_on_their_cards_in_a_migration(
    gpushare: Gpushare, pods: Workloads, history: History, older: OlderNode
):
    cluster, node = gpushare.cluster, older.name
    first, second = older.uuid_of(0), older.uuid_of(1)
    old = {"low": 3000, "high": HALF, "late": 2000, "early": 2000}
    run_as_before(gpushare, pods, node, old)
    for name in old:
        history.allow_stranger(name)
    assert visible(pods, *old) == ["0", "1", "0", "1"]
    before = states(pods, *old)

    # The extender first: it reads the node of Aliyun's plugin, which reads its decisions.
    cluster.start("extender")
    by_record = {"minor-0": {"low": 3000, "early": 2000}, "minor-1": {"high": HALF, "late": 2000}}
    wait_counted(gpushare, node, by_record)
    old["between"] = CARD_MIB - HALF - 2000
    pods.run(pod("between", old["between"], node=node))
    assert visible(pods, "between") == ["1"]
    assert states(pods, *before) == before
    said = check(pods)
    assert f"{node}  has Aliyun gpushare: {older.cards} GPUs, {CARD_MIB} MiB each, pods: 5" in said
    assert "--memory-unit=MiB --reserved=none" in said
    check_not_uninstalled(gpushare, node)

    # Then the plugin: pods count on the cards that they really use.
    before = states(pods, *old)
    cluster.stop(OLDER)
    cluster.start(plugin_of(node))
    gpushare.wait_ready()
    on_first = {"low": 3000, "late": 2000}
    on_second = {"high": HALF, "early": 2000, "between": old["between"]}
    wait_counted(gpushare, node, {first: on_first, second: on_second})
    wait_reported(pods, *old)
    assert states(pods, *old) == before
    assert f"{node}  is migrated: {older.cards} GPUs, {CARD_MIB} MiB each, pods: 5" in check(pods)

    # Containers restart on their cards, whose units no other pod gets.
    ended = states(pods, "early", "low")
    for name in ended:
        pods.kill_container(name)
    wait_run_again(pods, ended)
    assert visible(pods, *old) == ["0", "1", "0", "1", "1"]
    room = CARD_MIB - 5000
    if older.cards == len((first, second)):
        refused(gpushare, node, room + 1)
    pods.run(pod("new", room, node=node))
    assert visible(pods, "new") == [first]

    # The policies last. After a power loss the same pods run on the same cards.
    older.policies.close()
    names = [*old, "new"]
    shown, before = visible(pods, *names), states(pods, *names)
    cluster.restart_node(node, without=[f"kubelet-{node}"])
    wait_plugin(gpushare, node)
    start_kubelet(gpushare, node)
    wait_run_again(pods, before)
    assert visible(pods, *names) == shown
    wait_counted(gpushare, node, {first: {**on_first, "new": room}, second: on_second})

    # A deleted pod's units are free.
    pods.delete("between", grace=1)
    pods.run(pod("newer", old["between"], node=node))
    assert visible(pods, "newer") == [second]
