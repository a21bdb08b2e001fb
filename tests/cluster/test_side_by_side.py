"""Nodes that share cards by memory and nodes that give whole cards live in one cluster."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.gpushare import CARD_MIB, LABELS, ROOT, Gpushare, plugin_of
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, container, pod
from tests.cluster.conftest import WHOLE
from tests.cluster.expect import bind, env_is_card_on_record, sums_are_right, wait_event

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("whole_cards")]

RESOURCE = "nvidia.com/gpu"
PLUGIN = "whole-cards"
MEMORY = "aliyun.com/gpu-mem"
CARDS = [f"GPU-{WHOLE}-{place}" for place in range(2)]


@pytest.fixture
def whole_cards(gpushare: Gpushare) -> Iterator[None]:
    """Offer whole cards on the node without gpushare."""
    cluster = gpushare.cluster
    cluster.start_program(
        PLUGIN,
        [sys.executable, "-m", "tests.cluster.other_plugin", RESOURCE, *CARDS],
        node=WHOLE,
        env={"PYTHONPATH": str(ROOT)},
    )
    wait_until("whole cards", lambda: offers(gpushare, WHOLE, RESOURCE, 2), seconds=60)
    yield
    cluster.stop(PLUGIN)
    # Otherwise the next test would read the old number.
    wait_until("no whole cards", lambda: offers(gpushare, WHOLE, RESOURCE, 0), seconds=60)


def offers(gpushare: Gpushare, node: str, resource: str, wanted: int) -> str | None:
    """Return what a node has allocatable unless the resource is as wanted."""
    with gpushare.cluster.api() as api:
        found = api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return None if found.get(resource, "0") == str(wanted) else str(found)


def whole(name: str) -> dict[str, Any]:
    main = container("main", None) | {"resources": {"limits": {RESOURCE: "1"}}}
    return pod(name, containers=[main])


def pending_because(pods: Workloads, name: str, text: str) -> None:
    """Wait until a pod stays Pending with this text among its events."""
    wait_event(pods, name, text)
    assert "nodeName" not in pods.get(name)["spec"]


def test_each_kind_of_pod_gets_its_kind_of_node(gpushare: Gpushare, pods: Workloads):
    shares = [f"share-{place}" for place in range(6)]
    wholes = [f"whole-{place}" for place in range(2)]
    mixed = [pod(name, CARD_MIB // 2) for name in shares] + [whole(name) for name in wholes]
    pods.run(*mixed[::2], *mixed[1::2], seconds=60)
    given = [pods.environment(name)["NVIDIA_VISIBLE_DEVICES"] for name in wholes]
    assert sorted(given) == CARDS
    assert [pods.cards(name) for name in wholes] == [[card] for card in given]
    assert {pods.get(name)["spec"]["nodeName"] for name in wholes} == {WHOLE}
    assert WHOLE not in {pods.get(name)["spec"]["nodeName"] for name in shares}
    env_is_card_on_record(pods, *shares)
    assert WHOLE not in {node["name"] for node in gpushare.inspect()}

    both = whole("both")
    both["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "100"
    elsewhere = whole("whole-elsewhere")
    elsewhere["spec"]["nodeSelector"] = LABELS
    pods.create(pod("share-there", 100, node=WHOLE), both, elsewhere, whole("whole-third"))
    pending_because(pods, "share-there", "Insufficient aliyun.com/gpu-mem")
    for name in ("both", "whole-elsewhere", "whole-third"):
        pending_because(pods, name, f"Insufficient {RESOURCE}")
    sums_are_right(gpushare, pods)


def test_no_share_is_bound_to_a_whole_card_node(gpushare: Gpushare, pods: Workloads):
    pods.create(pod("astray", 100, schedulerName="nobody"))
    asked = {"Pod": pods.get("astray"), "NodeNames": [WHOLE]}
    _, answer = gpushare.call("POST", "/gpushare-scheduler/filter", asked)
    refused = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
    assert refused == {WHOLE: "node shares no GPU by memory"}
    assert WHOLE in bind(gpushare, "astray", pods.get("astray")["metadata"]["uid"], WHOLE)
    assert "nodeName" not in pods.get("astray")["spec"]


def test_the_end_of_a_plugin_ends_no_pods(gpushare: Gpushare, pods: Workloads):
    cluster = gpushare.cluster
    pods.run(whole("whole-0"), pod("share-0", 1000, node="n1"))
    cluster.stop(plugin_of("n1"))
    wait_until("n1 to share nothing", lambda: offers(gpushare, "n1", MEMORY, 0), seconds=60)
    assert offers(gpushare, WHOLE, RESOURCE, 2) is None
    pods.run(whole("whole-1"))
    cluster.start(plugin_of("n1"))
    gpushare.wait_ready()

    cluster.stop(PLUGIN)
    wait_until("no whole cards", lambda: offers(gpushare, WHOLE, RESOURCE, 0), seconds=60)
    pods.run(pod("share-1", 1000, node="n1"))
    pods.wait_running("whole-0", "whole-1", "share-0", "share-1")
    env_is_card_on_record(pods, "share-0", "share-1")
    sums_are_right(gpushare, pods)
