"""Why a pod waits, what would fit, and who would have to go: of a real kube-scheduler's pod."""

import pytest

from localcluster.demo import HALF, QUARTER, THREE_QUARTERS
from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod

pytestmark = pytest.mark.cluster

EXTENDER = "/gpushare-scheduler"
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"


def test_a_pod_that_waits_is_told_why_and_what_would_help(gpushare: Gpushare, pods: Workloads):
    pods.run(*(pod(f"large-{i}", THREE_QUARTERS, node="n1") for i in range(2)))
    pods.create(pod("explained", HALF, node="n1"))

    def told() -> str | None:
        found = pods.events("explained")
        return (
            None
            if any(
                "does not fit on the one node that kube-scheduler asked about" in each
                and NO_ROOM in each
                for each in found
            )
            else str(found)
        )

    wait_until("the pod's event with the reason", told, seconds=20)
    status, found = gpushare.call("GET", f"{EXTENDER}/explain/default/explained")
    assert (status, found["state"]) == (200, "waiting")
    assert found["asked"]["reasons"] == {NO_ROOM: 1}
    assert found["asked"]["neverOffered"] == 3
    assert NO_ROOM in found["scheduled"]["message"]
    assert found["outlook"]["fits"] is False
    shown = {each["name"]: each for each in found["nodes"]}
    assert [(c["free"], c["needed"], len(c["pods"])) for c in shown["n1"]["cards"]] == [
        (QUARTER, HALF, 1),
        (QUARTER, HALF, 1),
    ]
    # The other nodes have room, and the pod's own selector keeps it off.
    assert shown["n2"]["fits"]
    assert shown["n2"]["forbidden"] == ["node does not have the labels of nodeSelector"]

    asks = pod("asks", HALF, node="n1", priority=1)
    _, answer = gpushare.call("POST", f"{EXTENDER}/what-if", {"pod": asks})
    assert answer["fits"] is False
    [victim] = answer["wouldHaveToGo"]["pods"]
    assert victim["name"] in {"large-0", "large-1"}
    _, answer = gpushare.call(
        "POST", f"{EXTENDER}/what-if", {"pod": pod("a", CARD_MIB), "count": 9}
    )
    # n2 and n3 have two empty cards each, n4 four: a ninth pod finds none.
    assert (answer["fits"], answer["fitting"]) == (False, 8)
    assert {each["node"] for each in answer["places"]} == {"n2", "n3", "n4"}

    pods.delete("large-0")
    pods.wait_running("explained")
    _, found = gpushare.call("GET", f"{EXTENDER}/explain/default/explained")
    assert (found["state"], found["places"][0]["node"]) == ("bound", "n1")
    status, _ = gpushare.call("GET", f"{EXTENDER}/explain/default/nobody")
    assert status == 404
