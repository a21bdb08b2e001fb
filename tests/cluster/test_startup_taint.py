"""The startup taint keeps pods off a node until its plugin serves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.gpushare import Gpushare, plugin_of
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import env_is_card_on_record
from tests.cluster.test_access import REFUSED, patch

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("component")]

COMPONENT = Path(__file__).parents[2] / "daemonset/components/startup-taint/access.yaml"
TAINT = "gpushare.aliyun.com/not-ready"
OTHER = "example.com/other"
NODE = "n2"
PATH = f"/api/v1/nodes/{NODE}"


def taints(gpushare: Gpushare, node: str = NODE) -> list[str]:
    with gpushare.cluster.api() as api:
        return [each["key"] for each in api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])]


@pytest.fixture
def component(gpushare: Gpushare) -> Iterator[None]:
    """Apply the component's rights; remove them and the taints afterwards."""
    cluster = gpushare.cluster
    cluster.kubectl("apply", "-f", str(COMPONENT))
    yield
    cluster.stop(plugin_of(NODE))
    cluster.kubectl("delete", "-f", str(COMPONENT))
    with cluster.api() as api:
        found = api.get(PATH)["spec"].get("taints", [])
    for key in {each["key"] for each in found} & {TAINT, OTHER}:
        cluster.kubectl("taint", "node", NODE, f"{key}-")
    gpushare.start_plugin(NODE)
    gpushare.wait_ready()


def test_no_pod_runs_before_the_plugin_serves(gpushare: Gpushare, pods: Workloads):
    cluster = gpushare.cluster
    cluster.stop(plugin_of(NODE))
    cluster.kubectl("taint", "node", NODE, f"{TAINT}:NoSchedule", f"{OTHER}=x:PreferNoSchedule")
    pods.create(pod("early", 1000, node=NODE))

    def not_kept_off() -> str | None:
        said = [
            each.get("message", "") for each in pods.get("early")["status"].get("conditions", [])
        ]
        return None if any("untolerated taint" in each for each in said) else str(said)

    wait_until("the scheduler to name the taint", not_kept_off, seconds=60)
    gpushare.start_plugin(NODE, "--startup-taint")
    wait_until(
        "the taint to go",
        lambda: None if taints(gpushare) == [OTHER] else str(taints(gpushare)),
        seconds=60,
    )
    pods.wait_running("early")
    env_is_card_on_record(pods, "early")


def test_the_plugin_may_only_remove_its_nodes_startup_taint(gpushare: Gpushare):
    cluster = gpushare.cluster
    own, stranger = gpushare.plugin_kubeconfig(NODE), gpushare.plugin_kubeconfig("n1")
    cluster.kubectl("taint", "node", NODE, f"{TAINT}:NoSchedule", f"{OTHER}=x:PreferNoSchedule")
    both = [
        {"key": TAINT, "effect": "NoSchedule"},
        {"key": OTHER, "value": "x", "effect": "PreferNoSchedule"},
    ]
    wanted = json.dumps({"spec": {"taints": both[1:]}})

    def policy_sleeps() -> str | None:
        labelled = json.dumps({"metadata": {"labels": {"x": "y"}}})
        code, _ = patch(gpushare, own, f"{PATH}?dryRun=All", labelled)
        return None if code in REFUSED else str(code)

    wait_until("the policy to hold", policy_sleeps, seconds=60)
    for written in (
        {"metadata": {"annotations": {"x": "y"}}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": both[:1]}},
        {"spec": {"taints": []}},
        {"spec": {"taints": [*both, {"key": "x", "effect": "NoExecute"}]}},
        {"spec": {"taints": both[1:]}, "metadata": {"labels": {"gpushare": "false"}}},
    ):
        assert patch(gpushare, own, PATH, json.dumps(written))[0] in REFUSED, written
    assert patch(gpushare, stranger, PATH, wanted)[0] in REFUSED
    assert sorted(taints(gpushare)) == sorted([TAINT, OTHER])
    assert patch(gpushare, own, PATH, wanted) == (200, "")
    assert taints(gpushare) == [OTHER]
