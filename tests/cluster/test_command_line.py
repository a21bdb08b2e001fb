"""The command line against a real API server, kubelet and extender."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from localcluster.demo import HALF, QUARTER, THREE_QUARTERS
from localcluster.gpushare import CARD_MIB, EXTENDER, NAMESPACE, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.unit.gpusharectl.test_program import HOOK

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SERVER = f"--server=http://{EXTENDER[0]}:{EXTENDER[1]}"
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"
# What `gpushare` is, so that what it runs on needs no installation.
PROGRAM = (sys.executable, "-m", "gpusharectl")


class CommandLine:
    """Runs commands as a user of the kubeconfig would, and without either half's libraries."""

    def __init__(self, kubeconfig: Path, hook: Path) -> None:
        path = f"{hook}:{ROOT}"
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": path}

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words],
            env=self.env, input=stdin, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def says(self, *words: str, code: int = 0, stdin: str = "") -> str:
        found = self.run(*words, stdin=stdin)
        assert found.returncode == code, found.stdout + found.stderr
        return found.stdout if code <= 1 and found.stdout else found.stderr

    def tells(self, *words: str, code: int = 0, stdin: str = "") -> dict:
        return json.loads(self.says(*words, "-o", "json", code=code, stdin=stdin))


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    return tmp_path


@pytest.fixture
def admin(gpushare: Gpushare, hook: Path) -> CommandLine:
    return CommandLine(gpushare.cluster.kubeconfig, hook)


@contextlib.contextmanager
def applied(gpushare: Gpushare, manifest: str) -> Iterator[None]:
    gpushare.cluster.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        yield
    finally:
        gpushare.cluster.kubectl("delete", "-f", "-", "--wait=false", stdin=manifest)


@contextlib.contextmanager
def reader(gpushare: Gpushare, hook: Path, *names: str) -> Iterator[CommandLine]:
    """Somebody with these rights of the documentation alone, and with those of ``view``."""
    text = (ROOT / "docs" / "command-line.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    documents = [each for block in blocks for each in yaml.safe_load_all(block)]
    wanted = [each for each in documents if each["metadata"]["name"] in names]
    roles = [each for each in wanted if each["kind"].endswith("Role")]
    for each in roles:  # where this test has its extender's pod
        each["metadata"].pop("namespace", None)
    assert {each["metadata"]["name"] for each in roles} == set(names)
    subject = {"kind": "ServiceAccount", "name": "reads", "namespace": "default"}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reads"}}
    bindings = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{each['kind']}Binding",
            "metadata": each["metadata"],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": each["kind"],
                "name": each["metadata"]["name"],
            },
            "subjects": [subject],
        }
        for each in roles
    ]
    with applied(gpushare, yaml.safe_dump_all([account, *roles, *bindings])):
        kubeconfig = gpushare.cluster.service_account_kubeconfig("default", "reads")
        yield CommandLine(kubeconfig, hook)


@contextlib.contextmanager
def extender_in_a_pod(gpushare: Gpushare, pods: Workloads) -> Iterator[list[str]]:
    """A ready pod with an extender on its loopback; what the command line is told about it.

    The workload's pod, in whose network the extender is started: it is the pod's address and way
    that are tested here.
    """
    cluster = gpushare.cluster
    labels = {"labels": {"app.kubernetes.io/name": "gpushare-extender"}}
    pods.run(pod("in-a-pod", metadata=labels, node="n1"))
    with cluster.api() as api:
        uid = api.get("/api/v1/namespaces/default/pods/in-a-pod")["metadata"]["uid"]
    account = cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
    path = cluster.state.path / "extender-in-a-pod.yaml"
    settings = {"kubeconfig": str(account), "memoryUnit": "MiB", "evictAfterSeconds": 0}
    path.write_text(yaml.safe_dump(settings))
    cluster.start_program(
        "in-a-pod",
        ["nsenter", f"--net=/proc/{process_of(uid)}/ns/net", *PROGRAM[:2], "extender",
         f"--config={path}"],
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield ["--system-namespace=default"]
    finally:
        cluster.stop("in-a-pod")


def process_of(uid: str) -> str:
    """A process of the pod's containers."""
    names = {uid, uid.replace("-", "_")}
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if any(name in path.read_text() for name in names):
                return path.parent.name
    raise AssertionError(f"no process of pod {uid}")


def test_inspect_shows_every_card_and_follows_changes(
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
    assert "reserves are not shown: no extender runs as a pod" in admin.says("inspect", "n1")
    assert "nowhere is not there" in admin.says("inspect", "nowhere", code=1)

    watching = subprocess.Popen(
        [*PROGRAM, "inspect", "n1", "--watch", "-o", "json"],
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


def test_why_a_pod_waits_and_what_would_help_is_said_with_and_without_an_extender(
    gpushare: Gpushare, pods: Workloads, admin: CommandLine
):
    pods.run(*(pod(f"large-{i}", THREE_QUARTERS, node="n1") for i in range(2)))
    pods.create(pod("waits", HALF, node="n1"))

    def told() -> str | None:
        found = admin.run("explain", "waits", SERVER).stdout
        return None if "kube-scheduler asked about would do" in found else found

    wait_until("kube-scheduler to have asked", told, seconds=20)
    held = f"  0   {QUARTER} of {CARD_MIB} free, needs {HALF}: too little free\n"
    for how in ([SERVER], []):
        shown = admin.says("explain", "pod", "waits", *how, code=1)
        assert f"n1  {NO_ROOM}\n{held}" in shown
        assert re.search(rf"{THREE_QUARTERS} held by default/large-\d, priority 0", shown)
        assert "n2  kept off: node does not have the labels of nodeSelector" in shown
    asks = json.dumps(pod("asks", HALF, node="n1", priority=1))
    for how in ([SERVER], []):
        shown = admin.says("what-if", "-f", "-", *how, code=1, stdin=asks)
        assert "if these ended:\n  default/large-" in shown
        nine = json.dumps(pod("nine", CARD_MIB))
        answer = admin.tells("what-if", "-f", "-", "--count", "9", *how, code=1, stdin=nine)
        assert (answer["asked"], answer["fitting"]) == (9, 8)
    pods.delete("large-0")
    pods.wait_running("waits")

    def runs() -> str | None:
        found = admin.run("explain", "waits", SERVER).stdout
        return None if "it runs there: the node's plugin says GPU-n1-" in found else found

    wait_until("the plugin's word", runs, seconds=20)
    assert admin.tells("explain", "waits", SERVER)["pod"]["state"] == "bound"
    assert "no pod default/none" in admin.says("explain", "none", code=1)


def test_the_rights_in_the_documentation_are_enough_and_one_that_is_missing_is_named(
    gpushare: Gpushare, pods: Workloads, admin: CommandLine, hook: Path
):
    pods.run(pod("here", HALF, node="n1"))
    pods.create(pod("never", 2 * CARD_MIB, node="n1"))
    sample = json.dumps(pod("sample", QUARTER))
    with extender_in_a_pod(gpushare, pods) as where:
        with reader(gpushare, hook) as nobody:
            assert "kubectl auth can-i list nodes" in nobody.says("inspect", *where, code=3)
            assert "can-i get pods -n default" in nobody.says("explain", "here", *where, code=3)
            refusal = nobody.says("what-if", "-f", "-", *where, code=3, stdin=sample)
            assert "kubectl auth can-i list pods -A" in refusal
        with reader(gpushare, hook, "gpushare-reads") as lists:

            def refused() -> str | None:
                shown = lists.run("inspect", *where)
                return None if shown.returncode == 0 else shown.stderr

            wait_until("the rights to hold", refused, seconds=10)
            shown = lists.says("inspect", *where)
            assert "n1  " in shown
            assert "kubectl auth can-i create pods/portforward -n default" in shown
            shown = lists.says("explain", "never", *where, code=1)
            assert f"0  {CARD_MIB - HALF:>5} of {CARD_MIB} free" in shown
            assert "kubectl auth can-i create pods/portforward -n default" in shown
            assert "  n2, GPU 0" in lists.says("what-if", "-f", "-", *where, stdin=sample)
        forwarding = "gpushare-asks-extender"
        with reader(gpushare, hook, "gpushare-reads", forwarding) as asks:

            def unasked() -> str | None:
                shown = asks.run("inspect", *where)
                return None if "not shown" not in shown.stdout else shown.stdout

            wait_until("an answer through the pod", unasked, seconds=20)
            assert asks.tells("explain", "never", *where, code=1)["fromExtender"] is True
            answer = asks.tells("what-if", "-f", "-", *where, stdin=sample)
            assert (answer["fits"], len(answer["places"])) == (True, 1)


def test_kubectl_runs_it_as_its_plugin_and_completes_its_words(
    gpushare: Gpushare, pods: Workloads, admin: CommandLine
):
    pods.run(pod("named", QUARTER, node="n1"))
    kubectl = str(gpushare.cluster.binaries / "kubectl")
    env = {**admin.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(*words: str) -> str:
        return subprocess.run(
            [kubectl, *words], env=env, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert run("gpushare", "inspect", "n1").startswith(f"n1  {QUARTER} of")
    assert "named\n" in run("__complete", "gpushare", "explain", "pod", "na")
