"""A card that was given away twice, by a write that came too late, is mended and told."""

import json
from collections.abc import Iterator

import pytest

from localcluster.gpushare import Gpushare
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.history import History

pytestmark = pytest.mark.cluster

NODE, CARD, UNITS = "twice", "GPU-twice-0", 16


@pytest.fixture
def one_card(gpushare: Gpushare) -> Iterator[None]:
    """Give a node without a kubelet: nothing that is bound there ever starts."""
    card = {
        "index": 0,
        "uuid": CARD,
        "tag": "a0",
        "minor": 0,
        "model": "Paper",
        "memMiB": UNITS,
        "units": UNITS,
        "health": "healthy",
    }
    inventory = {"version": 1, "unitMiB": 1, "plugin": "0.1.0", "binding": "late", "cards": [card]}
    node = PaperNode(
        NODE,
        capacity={"aliyun.com/gpu-mem": str(UNITS), "aliyun.com/gpu-count": "1"},
        annotations={"gpushare.aliyun.com/inventory": json.dumps(inventory)},
    )
    gpushare.cluster.add_paper_nodes(node)
    yield
    gpushare.cluster.remove_paper_nodes(NODE)


def decided_elsewhere(name: str, units: int, at: int) -> dict[str, object]:
    """Describe a pod as another leader's Binding left it, decided on at ``at`` in ns."""
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(UNITS),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(at),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "gpushare.aliyun.com/cards": CARD,
    }
    described = pod(name, units, metadata={"annotations": annotations})
    described["spec"]["nodeName"] = NODE
    return described


@pytest.mark.usefixtures("unguarded", "one_card")
def test_the_newest_pod_of_a_card_given_away_twice_goes_and_the_older_ones_stay(
    gpushare: Gpushare, pods: Workloads, history: History
):
    names = ("first", "second", "late")
    for name in names:
        history.allow_stranger(name)
    pods.create(*(decided_elsewhere(name, 8, at) for at, name in enumerate(names, start=10)))

    def unmended() -> str | None:
        with gpushare.cluster.api() as api:
            found = api.get("/api/v1/namespaces/default/pods")["items"]
        there = {each["metadata"]["name"] for each in found}
        gone = {
            each["metadata"]["name"] for each in found if each["metadata"].get("deletionTimestamp")
        }
        return None if there - gone == {"first", "second"} else f"{sorted(there)} are there"

    wait_until("the newest pod to go", unmended, seconds=20)
    wait_until(
        "the event that says why",
        lambda: None if any("given away twice" in e for e in pods.events("late")) else "none",
        seconds=15,
    )
    _, metrics = gpushare.call("GET", "/metrics")
    assert 'gpushare_extender_evictions_total{reason="CardOverbooked"}' in metrics
