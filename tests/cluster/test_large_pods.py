"""A pod of the largest size that the API server accepts harms no other pod."""

import re
import sys
from pathlib import Path

import pytest

from localcluster.gpushare import Gpushare, plugin_of
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import env_is_card_on_record, wait_bound, wait_event
from tests.trials.hostile_objects import nested_fields

pytestmark = pytest.mark.cluster

EXTENDER = "/gpushare-scheduler"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
GATED = [{"name": "example.com/never"}]
DEPTH = 3000  # more than the decoder goes down


def pids(gpushare: Gpushare) -> dict[str, int | None]:
    """Return the processes of the extender and of n1's plugin."""
    wanted = {"extender", plugin_of("n1")}
    return {each.name: each.pid for each in gpushare.cluster.processes() if each.name in wanted}


def resident_mib(gpushare: Gpushare) -> int:
    status = Path(f"/proc/{pids(gpushare)['extender']}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


def refused(pods: Workloads, name: str, says: str) -> None:
    wait_event(pods, name, says)
    assert not pods.get(name)["spec"].get("nodeName")


@pytest.mark.parametrize("units", [None, 100])
def test_a_pod_of_huge_json_is_harmless(gpushare: Gpushare, pods: Workloads, units: int | None):
    before = pids(gpushare)
    pods.create(pod("large", units, node="n1", env={"X": "<" * 1_400_000}))
    wait_bound(pods, "large")
    pods.run(pod("ordinary", 1000, node="n1"))
    env_is_card_on_record(pods, "ordinary")
    assert pids(gpushare) == before


def test_changes_of_a_pod_with_many_labels_take_no_memory(gpushare: Gpushare, pods: Workloads):
    labels = {f"team-{number:05}": "x" for number in range(8000)}
    pods.create(pod("labelled", 100, metadata={"labels": labels}, schedulingGates=GATED))
    before = 0
    with gpushare.cluster.api() as api:
        for number in range(40):
            body = {"metadata": {"labels": {"changed": str(number)}}}
            api.request("PATCH", f"{PODS}/labelled", body, content_type=MERGE)
            if number == 10:
                before = resident_mib(gpushare)
    assert gpushare.call("GET", f"{EXTENDER}/explain/default/labelled")[1]["state"] == "gated"
    assert resident_mib(gpushare) - before < 25


def test_a_wish_for_thousands_of_cards_is_refused(pods: Workloads):
    wish = ",".join(f"GPU-{number:032}" for number in range(6000))
    annotations = {"gpushare.aliyun.com/card-uuids-not": wish}
    pods.create(pod("wishes", 100, metadata={"annotations": annotations}))
    refused(pods, "wishes", "card-uuids-not has more than")


def test_a_pod_with_too_many_tolerations_is_rejected(gpushare: Gpushare, pods: Workloads):
    tolerations = [{"key": f"t{number}", "operator": "Exists"} for number in range(20_000)]
    pods.create(pod("tolerates", 100, tolerations=tolerations))
    refused(pods, "tolerates", "spec.tolerations has")
    found = gpushare.call("GET", f"{EXTENDER}/explain/default/tolerates")[1]
    assert found["state"] == "refused"
    assert "spec.tolerations has" in found["says"]


def test_a_pod_with_deep_managed_fields_hides_no_other(gpushare: Gpushare, pods: Workloads):
    metadata = {"managedFields": nested_fields(DEPTH), "annotations": {"x": "y"}}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * DEPTH)  # json reads no deeper either
    try:
        pods.create(pod("nested", 100, metadata=metadata, schedulingGates=GATED))
        depth = str(pods.get("nested")["metadata"]["managedFields"]).count("f:y")
        assert depth == DEPTH, "the API server has kept all of it"
        pods.run(pod("ordinary", 1000, node="n1"))
        env_is_card_on_record(pods, "ordinary")
        explained = gpushare.call("GET", f"{EXTENDER}/explain/default/nested")[1]
        assert explained["state"] == "gated"
        pods.delete("nested", grace=0)
    finally:
        sys.setrecursionlimit(limit)
