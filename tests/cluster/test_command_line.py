"""The command line against a real API server, kubelet and extender."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.demo import HALF, QUARTER, THREE_QUARTERS
from localcluster.gpushare import CARD_MIB, EXTENDER, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.command_line import ENDS_BY_SIGINT, PROGRAM, CommandLine

pytestmark = pytest.mark.cluster

SERVER = f"--server=http://{EXTENDER[0]}:{EXTENDER[1]}"
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"


@pytest.fixture
def admin(gpushare: Gpushare, tmp_path: Path) -> CommandLine:
    return CommandLine(gpushare.cluster.kubeconfig, tmp_path)


def test_inspect_shows_and_follows_all_gpus(
    gpushare: Gpushare, pods: Workloads, admin: CommandLine
):
    pods.run(pod("a", HALF, node="n1"), pod("b", QUARTER, node="n1"))
    shown = admin.says("inspect", "-d", SERVER)
    assert re.search(rf"^n1  {HALF + QUARTER} of {2 * CARD_MIB} MiB used$", shown, re.MULTILINE)
    assert f"default/a  {HALF}\n" in shown
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
        assert watching.communicate(timeout=20)[1] == ""
        assert watching.returncode == 0
    finally:
        watching.kill()


def test_explain_works_with_and_without_an_extender(pods: Workloads, admin: CommandLine):
    pods.run(*(pod(f"large-{i}", THREE_QUARTERS, node="n1") for i in range(2)))
    pods.create(pod("waits", HALF, node="n1"))

    def told() -> str | None:
        found = admin.run("explain", "waits", SERVER).stdout
        return None if "does not fit on the one node" in found else found

    wait_until("kube-scheduler to have asked", told, seconds=60)
    held = f"  0   {QUARTER} of {CARD_MIB} free, needs {HALF}: too little free\n"
    for how in ([SERVER], []):
        shown = admin.says("explain", "pod", "waits", *how, code=1)
        assert f"n1  {NO_ROOM}\n{held}" in shown
        assert re.search(rf"{THREE_QUARTERS} used by default/large-\d, priority 0", shown)
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
            [kubectl, *words], env=env, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert run("gpushare", "inspect", "n1").startswith(f"n1  {QUARTER} of")
    assert "named\n" in run("__complete", "gpushare", "explain", "pod", "na")
