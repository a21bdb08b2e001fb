"""Nodes and pods of Aliyun gpushare's plugin and extender are counted card by card."""

from collections.abc import Iterator

import pytest

from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import decided, wait_bound, wait_event
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

NODE = "older"
TOTALS = {"aliyun.com/gpu-mem": str(2 * CARD_MIB), "aliyun.com/gpu-count": "2"}


@pytest.fixture
def older(gpushare: Gpushare) -> Iterator[str]:
    gpushare.cluster.add_paper_nodes(PaperNode(NODE, capacity=TOTALS))
    yield NODE
    gpushare.cluster.remove_paper_nodes(NODE)


@pytest.mark.usefixtures("unguarded")
def test_pods_of_aliyun_are_counted(
    gpushare: Gpushare, pods: Workloads, older: str, history: History
):
    bound = (("on-0", 8138, "0"), ("on-1", 12207, "1"), ("odd", 2000, "card seven"))
    for name, units, index in bound:
        history.allow_stranger(name)
        pods.create(decided(name, NODE, units, IDX=index, ASSIGNED="true"))

    def uncounted() -> str | None:
        [node] = gpushare.inspect(older)
        return None if node["unplaced"] and node["usedGPU"] == 22345 else str(node)

    wait_until("three pods to be counted", uncounted, seconds=60)
    [node] = gpushare.inspect(older)
    assert [card["usedGPU"] for card in node["devs"]] == [8138, 12207]
    assert [card["free"] for card in node["devs"]] == [6138, 2069]
    [unplaced] = node["unplaced"]
    assert (unplaced["name"], unplaced["units"]) == ("odd", 2000)
    assert "card seven" in unplaced["why"]
    wait_event(pods, "odd", "it is unknown which GPU")

    asks = pod("asks", 6200)
    _, answer = gpushare.call(
        "POST", "/gpushare-scheduler/filter", {"Pod": asks, "NodeNames": [older]}
    )
    assert answer["NodeNames"] == []
    assert list(answer["FailedAndUnresolvableNodes"]) == [older]

    pods.create(pod("fits", 6138, node=older))
    wait_bound(pods, "fits")
    found = pods.annotations("fits")
    assert found["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert found["ALIYUN_COM_GPU_MEM_DEV"] == str(CARD_MIB)
    assert gpushare.card_of("fits") == (older, 0)
