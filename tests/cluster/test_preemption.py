"""kube-scheduler's preemption, which only knows a node's total, and the extender's veto."""

import pytest

from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import env_is_card_on_record, sums_are_right

pytestmark = [pytest.mark.cluster, pytest.mark.every_version]

HALF = CARD_MIB // 2


def judged(gpushare: Gpushare, outcome: str) -> float:
    """Return how often the extender has judged proposals with this outcome."""
    _, text = gpushare.call("GET", "/metrics")
    name = f'gpushare_extender_requests_total{{outcome="{outcome}",verb="preempt"}}'
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(name)]
    return float(found[0]) if found else 0.0


@pytest.mark.usefixtures("priorities")
def test_no_pod_dies_for_a_card_that_its_end_would_not_free(gpushare: Gpushare, pods: Workloads):
    """Two full cards: the two pods of lowest priority are on different ones, then on one."""
    for name, priority in (("a-low", "low"), ("a-lower", "lower")):
        pods.run(pod(name, HALF, node="n1", priorityClassName=priority))
    for name, priority in (("b-low", "low"), ("b-lowest", "lowest")):
        pods.run(pod(name, HALF, node="n1", priorityClassName=priority))
    cards = {name: gpushare.card_of(name) for name in ("a-low", "a-lower", "b-low", "b-lowest")}
    assert set(cards.values()) == {("n1", 0), ("n1", 1)}
    assert cards["a-low"] == cards["a-lower"] != cards["b-low"] == cards["b-lowest"]

    before = judged(gpushare, "none")
    pods.create(pod("whole", 2 * HALF, node="n1", priorityClassName="high"))

    def proposed() -> str | None:
        return None if judged(gpushare, "none") > before else "nothing was vetoed yet"

    wait_until("kube-scheduler to propose victims on both cards", proposed, seconds=60)
    for name in cards:
        described = pods.get(name)
        assert "deletionTimestamp" not in described["metadata"], name
        conditions = [each["type"] for each in described["status"]["conditions"]]
        assert "DisruptionTarget" not in conditions, name
    assert "nominatedNodeName" not in pods.get("whole")["status"]

    # With half of the second card free, one pod of that card must leave.
    pods.delete("b-low")
    pods.wait_running("whole", seconds=40)
    assert gpushare.card_of("whole") == cards["b-lowest"]
    pods.wait_gone("b-lowest")
    left = {each["metadata"]["name"] for each in pods.all()}
    assert left == {"a-low", "a-lower", "whole"}
    env_is_card_on_record(pods, "whole")
    sums_are_right(gpushare, pods)
