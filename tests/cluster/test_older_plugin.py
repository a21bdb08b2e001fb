"""Nodes and pods of the ecosystem's older plugin and extender are counted card by card."""

from collections.abc import Iterator

import pytest

from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

NODE = "older"
TOTALS = {"aliyun.com/gpu-mem": str(2 * CARD_MIB), "aliyun.com/gpu-count": "2"}


@pytest.fixture
def older(gpushare: Gpushare) -> Iterator[str]:
    gpushare.cluster.add_paper_nodes(PaperNode(NODE, capacity=TOTALS))
    yield NODE
    gpushare.cluster.remove_paper_nodes(NODE)


def bound_by_the_older_extender(name: str, units: int, index: str) -> dict[str, object]:
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": index,
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(CARD_MIB),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    }
    described = pod(name, units, metadata={"annotations": annotations})
    described["spec"]["nodeName"] = NODE
    return described


@pytest.mark.usefixtures("unguarded")
def test_its_pods_are_counted_and_one_that_cannot_be_told_is_named(
    gpushare: Gpushare, pods: Workloads, older: str, history: History
):
    for name in ("on-0", "on-1", "odd"):
        history.allow_stranger(name)
    pods.create(
        bound_by_the_older_extender("on-0", 8138, "0"),
        bound_by_the_older_extender("on-1", 12207, "1"),
        bound_by_the_older_extender("odd", 2000, "card seven"),
    )

    def uncounted() -> str | None:
        [node] = gpushare.inspect(older)
        return None if node["unplaced"] and node["usedGPU"] == 22345 else str(node)

    wait_until("three pods to be counted", uncounted, seconds=15)
    [node] = gpushare.inspect(older)
    assert [card["usedGPU"] for card in node["devs"]] == [8138, 12207]
    assert [card["free"] for card in node["devs"]] == [6138, 2069]
    [unplaced] = node["unplaced"]
    assert (unplaced["name"], unplaced["units"]) == ("odd", 2000)
    assert "card seven" in unplaced["why"]

    def untold() -> str | None:
        found = pods.events("odd")
        return None if any("it is unknown which GPU" in each for each in found) else str(found)

    wait_until("the event on the pod that cannot be placed", untold, seconds=15)

    asks = pod("asks", 6200)
    _, answer = gpushare.call(
        "POST", "/gpushare-scheduler/filter", {"Pod": asks, "NodeNames": [older]}
    )
    assert answer["NodeNames"] == []
    assert list(answer["FailedNodes"]) == [older]

    pods.create(pod("fits", 6138, node=older))
    wait_until(
        "the pod to be bound",
        lambda: None if pods.get("fits")["spec"].get("nodeName") else "not bound",
        seconds=20,
    )
    found = pods.annotations("fits")
    assert found["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert found["ALIYUN_COM_GPU_MEM_DEV"] == str(CARD_MIB)
    assert gpushare.card_of("fits") == (older, 0)
