"""doctor, cordon-gpu and top against the shipped gpushare, healthy and broken.

A cluster of its own, whose plugins measure what pods use: one GPU node, one control-plane node.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from gpushare.text.amounts import needed_gib
from gpusharectl.app import cli
from localcluster.cgroups import running
from localcluster.errors import CommandError
from localcluster.gpushare import CARD_MIB, CONTROL_PLANE, NAMESPACE, Gpushare, gpu_node
from localcluster.nvml import CardSpec, write_state
from localcluster.shipped import PLUGIN, Shipped
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.bringup import of_image
from tests.cluster.expect import assigned, wait_bound

pytestmark = pytest.mark.cluster

ASKED, USED = 4000, 5000


@pytest.fixture(scope="module")
def shipped(image: Path) -> Iterator[Gpushare]:
    with of_image(image, gpu_node("n1", 2), name="gpushare-doctor") as made:
        manifests = Shipped(made.cluster)
        manifests.make_certificates()
        manifests.apply(components=["process-memory"])
        made.wait_ready()
        yield made


@pytest.fixture
def workloads(shipped: Gpushare) -> Iterator[Workloads]:
    found = Workloads(shipped.cluster)
    yield found
    found.delete_all()


def gpushare(shipped: Gpushare, *words: str, kubeconfig: str = "") -> tuple[int, str]:
    """Run a command; return its exit code and what it printed, errors behind."""
    config = f"--kubeconfig={kubeconfig or shipped.cluster.kubeconfig}"
    done = CliRunner().invoke(cli, [*words, config])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def doctor(shipped: Gpushare, *words: str, kubeconfig: str = "") -> tuple[int, dict[str, list]]:
    """Return the exit code and the findings by kind; output without JSON is a finding too."""
    code, text = gpushare(shipped, "doctor", "-o", "json", *words, kubeconfig=kubeconfig)
    try:
        checks = json.loads(text)["checks"]
    except ValueError:
        return code, {"NoAnswer": [text]}
    by_kind: dict[str, list] = {}
    for check in checks:
        for found in check["findings"]:
            by_kind.setdefault(found["kind"], []).append(found)
    return code, by_kind


def wait_doctor(shipped: Gpushare, code: int, *kinds: str, kubeconfig: str = "") -> dict[str, list]:
    """Return doctor's findings once they have exactly these kinds and this exit code."""
    found: dict[str, list] = {}

    def otherwise() -> str | None:
        nonlocal found
        now, found = doctor(shipped, kubeconfig=kubeconfig)
        return None if (now, set(found)) == (code, set(kinds)) else f"{now}: {found}"

    what = f"doctor to find just {', '.join(kinds) or 'nothing'}"
    wait_until(what, otherwise, seconds=60, interval=0.5)
    return found


@contextmanager
def scheduler_with(shipped: Gpushare, extenders: Sequence[dict]) -> Iterator[None]:
    """Run kube-scheduler's static pod with these extenders, while the context lasts."""
    path = shipped.cluster.state.node(CONTROL_PLANE) / "kubernetes" / "kube-scheduler.yaml"
    before = path.read_text()
    try:
        path.write_text(yaml.safe_dump({**yaml.safe_load(before), "extenders": list(extenders)}))
        restart_scheduler(shipped, "changed")
        yield
    finally:
        path.write_text(before)
        restart_scheduler(shipped, "as-before")


def restart_scheduler(shipped: Gpushare, why: str) -> None:
    """Change the manifest: only then does the kubelet restart a static pod."""
    folder = shipped.cluster.state.node(CONTROL_PLANE) / "kubernetes"
    manifest = yaml.safe_load((folder / "manifests" / "kube-scheduler.yaml").read_text())
    manifest["metadata"]["annotations"] = {"restarted": why}
    written = folder / "manifest.new"
    written.write_text(yaml.safe_dump(manifest))
    written.rename(folder / "manifests" / "kube-scheduler.yaml")

    def old() -> str | None:
        words = ("get", "pod", f"kube-scheduler-{CONTROL_PLANE}", "-o", "json")
        try:
            found = json.loads(shipped.cluster.kubectl("-n", "kube-system", *words))
        except CommandError as gone:
            return str(gone)
        ready = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
        is_new = found["metadata"]["annotations"].get("restarted") == why
        return None if is_new and ready.get("Ready") == "True" else f"{is_new}, {ready}"

    wait_until("kube-scheduler to be restarted", old, seconds=60)


def test_nothing_is_found_in_a_cluster_that_is_well(shipped, workloads):
    workloads.run(pod("train", ASKED))
    assigned(workloads, "train")
    wait_doctor(shipped, 0)


def test_top_shows_who_uses_more_than_it_asked_for(shipped, workloads):
    workloads.run(pod("greedy", ASKED), pod("modest", ASKED))
    uuid = workloads.annotations("greedy")["gpushare.aliyun.com/cards"]
    (pid,) = running(shipped.cluster.state.cgroup, "workload", "HOSTNAME=greedy")
    process = {"uuid": uuid, "pid": pid, "used_mib": USED, "graphics": 0}
    later_us = time.time_ns() // 1000 + 3_600_000_000  # newer than all that was asked for
    sample = {"uuid": uuid, "pid": pid, "at_us": later_us, "sm": 42}
    path = shipped.cluster.node_folder("n1") / "nvml" / "state"
    cards = [CardSpec(f"GPU-n1-{index}", mem_mib=CARD_MIB) for index in range(2)]
    write_state(path, cards, processes=[process], samples=[sample])

    def first() -> str | None:
        code, text = gpushare(shipped, "top", "-o", "json")
        if code:
            return text
        rows = json.loads(text)["pods"]
        wanted = [("greedy", USED, ASKED, 42), ("modest", 0, ASKED, None)]
        keys = ("pod", "usedMib", "askedMib", "smPercent")
        found = [tuple(row[key] for key in keys) for row in rows]
        return None if found == wanted else f"{found}"

    wait_until("top to show the pod that uses most", first, seconds=40)
    of_pod = {"namespace": "default", "pod": "greedy", "container": "main"}
    wanted = {
        "gpushare_deviceplugin_pod_used_mib": USED,
        "gpushare_deviceplugin_pod_sm_percent": 42,
    }
    page = text_string_to_metric_families(shipped.plugin_metrics("n1"))
    shown = {
        each.name: each.value
        for family in page
        for each in family.samples
        if of_pod.items() <= each.labels.items()
    }
    assert shown == wanted | {"gpushare_deviceplugin_pod_asked_mib": ASKED}

    def unshown() -> str | None:
        code, text = gpushare(shipped, "top", "gpus")
        is_shown = code == 0 and needed_gib(USED) in text and needed_gib(2 * ASKED) in text
        return None if is_shown else f"{code}: {text}"

    wait_until("top to show the card's sums", unshown, seconds=40)
    write_state(path, cards)


def test_two_administrators_who_cordon_at_once_lose_nothing(shipped):
    env = {**os.environ, "KUBECONFIG": str(shipped.cluster.kubeconfig)}
    command = [sys.executable, "-m", "gpusharectl", "cordon-gpu", "n1"]
    both = [subprocess.Popen([*command, card, "--reason", "fan"], env=env) for card in ("0", "1")]
    assert [each.wait(timeout=patient(60)) for each in both] == [0, 0]
    wait_until("the extender to know", lambda: _cordoned(shipped, [True, True]), seconds=60)

    def unwell() -> str | None:
        found = doctor(shipped)
        return f"{found}" if found[0] else None

    wait_until("doctor to find no fault", unwell, seconds=60, interval=0.5)
    code, text = gpushare(shipped, "uncordon-gpu", "n1", "--all")
    assert code == 0, text
    wait_until("the extender to know", lambda: _cordoned(shipped, [False, False]), seconds=60)
    code, text = gpushare(shipped, "cordon-gpu", "n1", "GPU-n1-7")
    assert code == 2
    assert "GPU-n1-0" in text


def _cordoned(shipped: Gpushare, wanted: list[bool]) -> str | None:
    (node,) = shipped.inspect("n1")
    found = [card["cordoned"] for card in node["devs"]]
    return None if found == wanted else f"{found}"


def test_whoever_may_only_list_is_told_which_rights_the_rest_would_take(shipped):
    kubectl = shipped.cluster.kubectl
    kubectl("create", "clusterrole", "lists", "--verb=list", "--resource=nodes,pods")
    account = f"--serviceaccount={NAMESPACE}:default"
    kubectl("create", "clusterrolebinding", "lists", "--clusterrole=lists", account)
    config = str(shipped.cluster.service_account_kubeconfig(NAMESPACE, "default"))
    found = wait_doctor(shipped, 0, "NotChecked", kubeconfig=config)
    told = " ".join(each["found"] for each in found["NotChecked"])
    for right in ("pods/proxy", "pods/portforward", "leases", "configmaps", "resourcequotas"):
        assert right in told
    kubectl("delete", "clusterrolebinding", "lists")
    wait_until("the right to be gone", lambda: _still_lists(shipped, config), seconds=60)


def _still_lists(shipped: Gpushare, config: str) -> str | None:
    code, text = gpushare(shipped, "doctor", kubeconfig=config)
    return None if code == 3 and "right to list" in text else f"{code}: {text[:200]}"


def test_a_kube_scheduler_without_the_extender_and_its_pods_are_found(shipped, workloads):
    with scheduler_with(shipped, []):
        workloads.create(pod("lost", ASKED))
        wait_bound(workloads, "lost")
        found = wait_doctor(shipped, 1, "SchedulerWithoutExtender", "PodWithoutDecision")
    assert "scheduler-config" in found["SchedulerWithoutExtender"][0]["cure"]
    assert "delete pod lost" in found["PodWithoutDecision"][0]["cure"]


def test_an_image_that_no_registry_has_is_named(shipped):
    daemon_set = ("-n", NAMESPACE, "rollout", "undo", f"daemonset/{PLUGIN}")
    image = "deviceplugin=registry.invalid/gpushare:9"
    shipped.cluster.kubectl("-n", NAMESPACE, "set", "image", f"daemonset/{PLUGIN}", image)
    found = wait_doctor(shipped, 1, "ImageNotPulled")
    (told,) = found["ImageNotPulled"]
    assert "image registry.invalid/gpushare:9: " in told["found"]
    assert "image.repository" in told["cure"]
    shipped.cluster.kubectl(*daemon_set)
    wait_doctor(shipped, 0)


def test_a_node_without_its_plugin_and_with_a_forged_inventory_is_found(shipped):
    """Run last: it repairs nothing."""
    kubectl = shipped.cluster.kubectl
    kubectl("delete", "validatingadmissionpolicybinding", "gpushare-inventory")
    nowhere = [{"op": "add", "path": "/spec/template/spec/nodeSelector/no", "value": "where"}]
    patch = ("patch", "daemonset", PLUGIN, "--type=json", f"--patch={json.dumps(nowhere)}")
    kubectl("-n", NAMESPACE, *patch)
    names = ("get", "pods", "-o", "name", "-l", f"app.kubernetes.io/name={PLUGIN}")
    wait_until("the plugin to go", lambda: kubectl("-n", NAMESPACE, *names) or None, seconds=60)
    wait_until("the policy to be gone", lambda: _refused(shipped), seconds=60)
    wait_doctor(shipped, 1, "PluginMissing", "InventoryUnreadable", "PolicyMissing")


def _refused(shipped: Gpushare) -> str | None:
    garbled = 'gpushare.aliyun.com/inventory={"version":'
    try:
        shipped.cluster.kubectl("annotate", "--overwrite", "node", "n1", garbled)
    except CommandError as refusal:
        return str(refusal)
    return None
