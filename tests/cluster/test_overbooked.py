"""A card that a late write gave away twice is corrected and reported."""

from collections.abc import Iterator

import pytest

from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.expect import decided, wait_event
from tests.cluster.history import History
from tests.trials.stage import paper_gpu_node

pytestmark = pytest.mark.cluster

NODE, UNITS = "twice", 16


@pytest.fixture
def one_card(gpushare: Gpushare) -> Iterator[None]:
    """Give a node without a kubelet: nothing that is bound there ever starts."""
    gpushare.cluster.add_paper_nodes(paper_gpu_node(NODE, 1, UNITS))
    yield
    gpushare.cluster.remove_paper_nodes(NODE)


@pytest.mark.usefixtures("unguarded", "one_card")
def test_a_cards_newest_pod_is_evicted(gpushare: Gpushare, pods: Workloads, history: History):
    for at, name in enumerate(("first", "second", "late"), start=10):
        history.allow_stranger(name)
        fields = {"DEV": str(UNITS), "ASSUME_TIME": str(at)}
        pods.create(decided(name, NODE, 8, cards=f"GPU-{NODE}-0", **fields))

    def unmended() -> str | None:
        found = [each["metadata"] for each in pods.all()]
        left = {each["name"] for each in found if not each.get("deletionTimestamp")}
        return None if left == {"first", "second"} else f"{sorted(left)} are left"

    wait_until("the newest pod to go", unmended, seconds=60)
    wait_event(pods, "late", "given away twice")
    _, metrics = gpushare.call("GET", "/metrics")
    assert 'gpushare_extender_evictions_total{reason="CardOverbooked"}' in metrics
