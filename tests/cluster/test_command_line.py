"""The command line against a real API server, kubelet and extender."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.text.amounts import free_gib, needed_gib, used_gib
from localcluster.demo import HALF, QUARTER, THREE_QUARTERS
from localcluster.gpushare import CARD_MIB, EXTENDER, Gpushare
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads, container, pod
from tests.cluster.command_line import ENDS_BY_SIGINT, PROGRAM, CommandLine
from tests.cluster.expect import wait_event

pytestmark = pytest.mark.cluster

SERVER = f"--server=http://{EXTENDER[0]}:{EXTENDER[1]}"
TEAM = "team"
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"


@pytest.fixture
def admin(gpushare: Gpushare, tmp_path: Path) -> CommandLine:
    return CommandLine(gpushare.cluster.kubeconfig, tmp_path)


def test_inspect_shows_and_follows_all_gpus(
    gpushare: Gpushare, pods: Workloads, admin: CommandLine
):
    pods.run(pod("a", HALF, node="n1"), pod("b", QUARTER, node="n1"))
    shown = admin.says("inspect", "-d", SERVER)
    used, total = used_gib(HALF + QUARTER, 2 * CARD_MIB), free_gib(2 * CARD_MIB)
    assert re.search(rf"^n1  {used} of {total} used$", shown, re.MULTILINE)
    assert f"default/a  {needed_gib(HALF)}\n" in shown
    assert "4 nodes, 10 GPUs" in shown
    assert "not shown" not in shown
    told = admin.tells("inspect", SERVER)
    mine = {node["name"]: node for node in told["nodes"]}
    assert mine == {node["name"]: node for node in gpushare.inspect()}
    assert "reservations are not shown: no extender runs as a pod" in admin.says("inspect", "n1")
    assert "nowhere does not exist" in admin.says("inspect", "nowhere", code=1)

    watching = subprocess.Popen(
        [*ENDS_BY_SIGINT, *PROGRAM, "inspect", "n1", "--watch", "-o", "json"],
        env=admin.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    try:
        assert json.loads(watching.stdout.readline())["summary"]["used"] == HALF + QUARTER
        pods.delete("a")
        used = HALF + QUARTER
        while used != QUARTER:  # its other changes are drawn too
            used = json.loads(watching.stdout.readline())["summary"]["used"]
        watching.send_signal(signal.SIGINT)
        assert watching.communicate(timeout=patient(20))[1] == ""
        assert watching.returncode == 0
    finally:
        watching.kill()


@pytest.fixture
def team(gpushare: Gpushare) -> Iterator[Workloads]:
    """Pods of a namespace whose account `default` may list only them."""
    kubectl = gpushare.cluster.kubectl
    kubectl("create", "namespace", TEAM)
    try:
        limit = f"--timeout={patient(60):.0f}s"
        kubectl("wait", "--for=create", "serviceaccount/default", "-n", TEAM, limit)
        kubectl("create", "role", "lists", "-n", TEAM, "--verb=list", "--resource=pods")
        account = f"--serviceaccount={TEAM}:default"
        kubectl("create", "rolebinding", "lists", "-n", TEAM, "--role=lists", account)
        yield Workloads(gpushare.cluster, TEAM)
    finally:
        kubectl("delete", "namespace", TEAM)
        for kind in ("clusterrolebinding", "clusterrole"):
            kubectl("delete", kind, "lists-nodes", "--ignore-not-found")


def test_inspect_shows_one_namespace_and_sums_only_what_may_be_seen(
    gpushare: Gpushare, pods: Workloads, team: Workloads, admin: CommandLine, tmp_path: Path
):
    cluster = gpushare.cluster
    pods.run(pod("theirs", HALF, node="n1"))
    team.run(pod("ours", QUARTER, node="n2"))
    team.create(pod("waits", CARD_MIB + 1))
    needed = f"{CARD_MIB + 1} MiB"
    total = f"namespace {TEAM}: {needed_gib(QUARTER)} used by 1 pod on 1 GPU of 1 node"

    whole = admin.says("inspect")
    assert re.search(rf"^{TEAM} +[\d.]+ GiB +2%  +1  +1$", whole, re.MULTILINE)
    one = admin.says("inspect", "-n", TEAM)
    used = used_gib(QUARTER, 2 * CARD_MIB)
    assert f"n2  {used} of {free_gib(2 * CARD_MIB)} used by {TEAM}\n" in one
    assert "theirs" not in one
    for shown in (whole, one):
        assert re.search(
            rf"^  {TEAM}/waits  \d+s  requests {needed} on one GPU, larger than any",
            shown,
            re.MULTILINE,
        )
    assert total in one
    assert admin.says("inspect", "-n", TEAM, "-A").splitlines()[0] == whole.splitlines()[0]

    user = CommandLine(cluster.service_account_kubeconfig(TEAM, "default"), tmp_path)
    wait_until("the right to list pods", lambda: lacks(user, "pods", TEAM), seconds=60)
    few = user.says("inspect", "-n", TEAM)
    assert re.search(rf"^{TEAM}/ours  {QUARTER} units of GPU-n2-\S+ on n2$", few, re.MULTILINE)
    assert "Nodes, free GPU memory and pods of other namespaces are not shown." in few
    assert not re.search("theirs|GiB| used", few)
    told = user.tells("inspect", "-n", TEAM)
    assert (told["complete"], told["summary"], told["namespaces"]) == (False, None, None)
    assert [each["name"] for each in told["waiting"]] == ["waits"]

    account = f"--serviceaccount={TEAM}:default"
    rights = ("-n", TEAM, "--verb=list", "--resource=events")
    cluster.kubectl("create", "role", "lists-events", *rights)
    cluster.kubectl("create", "rolebinding", "events", "-n", TEAM, "--role=lists-events", account)

    def says_what_the_event_says() -> str | None:
        found = user.says("inspect", "-n", TEAM)
        return None if f"requests {needed} on one GPU, larger than any" in found else found

    wait_until("the sentence in its Event", says_what_the_event_says, seconds=60)

    cluster.kubectl("create", "clusterrole", "lists-nodes", "--verb=list", "--resource=nodes")
    bound = ("--clusterrole=lists-nodes", account)
    cluster.kubectl("create", "clusterrolebinding", "lists-nodes", *bound)
    wait_until("the right to list nodes", lambda: lacks(user, "nodes"), seconds=60)
    assert total in user.says("inspect", "-n", TEAM)
    assert "at most" in user.says("inspect", code=3)


def lacks(user: CommandLine, resource: str, namespace: str = "default") -> str | None:
    """Return that a list is refused, as the command line does."""
    found = user.run("inspect", "-n", namespace)
    said = f"can-i list {resource}" + (f" -n {namespace}" if resource == "pods" else "")
    return said if said in found.stdout + found.stderr else None


def test_explain_quotes_kube_scheduler_for_what_gpushare_does_not_judge(
    pods: Workloads, admin: CommandLine
):
    port = {"ports": [{"containerPort": 80, "hostPort": 31999}]}
    pods.run(*(pod(f"large-{i}", THREE_QUARTERS, node="n1") for i in range(2)))
    pods.run(pod("other", node="n1", containers=[container("main", None) | port]))
    pods.create(pod("waits", node="n1", containers=[container("main", HALF) | port]))

    def unsaid() -> str | None:
        shown = admin.says("explain", "pod", "waits", code=1)
        said = "1 node(s) didn't have free ports for the requested pod ports."
        return None if f"default/large-0. kube-scheduler last said: {said}\n" in shown else shown

    wait_until("explain to quote kube-scheduler", unsaid, seconds=60)


def test_explain_works_with_and_without_an_extender(pods: Workloads, admin: CommandLine):
    pods.run(*(pod(f"large-{i}", THREE_QUARTERS, node="n1") for i in range(2)))
    pods.create(pod("waits", HALF, node="n1"))

    sentence = (
        f"requests {needed_gib(HALF)} on one GPU; the most free on one GPU that it may use is "
        f"{free_gib(QUARTER)} (n1, GPU 0); 3 nodes with room are excluded: node does not have the "
        f"labels of nodeSelector. It fits if it requests {free_gib(QUARTER)} or less "
        f"(`aliyun.com/gpu-mem: {QUARTER}`), or when one of 2 pods ends, for example "
        "default/large-0."
    )
    wait_event(pods, "waits", f"Pending: {sentence}")
    held = f"  0  {free_gib(QUARTER)} of {free_gib(CARD_MIB)} free, {needed_gib(HALF)} requested"
    for how in ([SERVER], []):
        shown = admin.says("explain", "pod", "waits", *how, code=1)
        assert shown.startswith(f"default/waits is Pending: {sentence}\n")
        shown = admin.says("explain", "pod", "waits", "-v", *how, code=1)
        assert f"n1  {NO_ROOM}\n{held}: too little free\n" in shown
        used = needed_gib(THREE_QUARTERS)
        assert re.search(rf"{used} used by default/large-\d, priority 0", shown)
        assert "n2  excluded: node does not have the labels of nodeSelector" in shown
    asks = json.dumps(pod("asks", HALF, node="n1", priority=1))
    for how in ([SERVER], []):
        shown = admin.says("what-if", "-f", "-", *how, code=1, stdin=asks)
        assert "evicting these pods would make room on n1, GPU" in shown
        nine = json.dumps(pod("nine", CARD_MIB))
        answer = admin.tells("what-if", "-f", "-", "--count", "9", *how, code=1, stdin=nine)
        assert (answer["asked"], answer["fitting"]) == (9, 8)

    def runs() -> str | None:
        found = admin.run("explain", "large-0", SERVER).stdout
        return None if "it runs there: the node's plugin reports GPU-n1-" in found else found

    wait_until("the plugin's word", runs, seconds=60)
    assert admin.tells("explain", "large-0")["pod"]["state"] == "bound"
    assert "pod default/none not found" in admin.says("explain", "none", code=1)


def test_kubectl_runs_and_completes_it(gpushare: Gpushare, pods: Workloads, admin: CommandLine):
    pods.run(pod("named", QUARTER, node="n1"))
    kubectl = str(gpushare.cluster.binaries / "kubectl")
    env = {**admin.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(*words: str) -> str:
        return subprocess.run(
            [kubectl, *words], env=env, capture_output=True, text=True, check=True
        ).stdout

    assert run("gpushare", "inspect", "n1").startswith(f"n1  {used_gib(QUARTER, 2 * CARD_MIB)} of")
    assert "named\n" in run("__complete", "gpushare", "explain", "pod", "na")
