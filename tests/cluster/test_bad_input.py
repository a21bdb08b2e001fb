"""Invalid input gives a clear error, changes no share, counts as no zero, leaves no traceback."""

import pytest

from localcluster.gpushare import Gpushare
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import CARDS, RUNNING_ON, env_is_card_on_record, wait_event

pytestmark = pytest.mark.cluster

FILTER, BIND = "/gpushare-scheduler/filter", "/gpushare-scheduler/bind"


@pytest.fixture
def unmoved(gpushare: Gpushare):
    """Check that the ledger is afterwards what it was before."""
    before = gpushare.inspect()
    yield
    assert gpushare.inspect() == before
    log = gpushare.cluster.log_path("extender").read_text()
    assert "Traceback" not in log


def test_an_amount_that_the_api_server_rewrites_is_read_right(gpushare: Gpushare, pods: Workloads):
    pods.run(pod("rewritten", 8000, node="n1"))
    limits = pods.get("rewritten")["spec"]["containers"][0]["resources"]["limits"]
    assert limits["aliyun.com/gpu-mem"] == "8k"
    [node] = gpushare.inspect("n1")
    assert node["devs"][0]["usedGPU"] == 8000
    assert pods.environment("rewritten")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8000"
    env_is_card_on_record(pods, "rewritten")


@pytest.mark.usefixtures("unmoved")
@pytest.mark.parametrize(
    ("units", "says"),
    [
        ("0", "request at least one unit"),
        ("8Gi", "Insufficient aliyun.com/gpu-mem"),
        ("8Gi", "it is a number of units, not of bytes"),
    ],
)
def test_a_pod_names_why_its_amount_is_rejected(pods: Workloads, units: str, says: str):
    pods.create(pod("asks", units))
    wait_event(pods, "asks", says)
    assert not pods.get("asks")["spec"].get("nodeName")
    pods.delete("asks")


@pytest.mark.usefixtures("unmoved")
def test_unknown_nodes_and_pods_are_named(gpushare: Gpushare):
    _, answer = gpushare.call("POST", FILTER, {"Pod": pod("asks", 1), "NodeNames": ["nowhere"]})
    assert answer["FailedAndUnresolvableNodes"] == {"nowhere": "node shares no GPU by memory"}
    body = {"PodName": "nobody", "PodNamespace": "default", "PodUID": "x", "Node": "n1"}
    status, answer = gpushare.call("POST", BIND, body)
    assert status == 200
    assert "default/nobody" in answer["Error"]
    status, answer = gpushare.call("GET", "/gpushare-scheduler/inspect/nowhere")
    assert status == 404
    assert "nowhere" in answer["Error"]
    hostile = body | {"PodNamespace": "../../nodes", "PodName": "../x"}
    status, answer = gpushare.call("POST", BIND, hostile)
    assert status == 200
    assert answer["Error"]


def test_preset_annotations_are_replaced(gpushare: Gpushare, pods: Workloads, history):
    history.allow_stranger("preset")
    preset = {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "1",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        CARDS: "GPU-n1-1",
        RUNNING_ON: '{"main":{"GPU-n1-1":1}}',
        "scheduler.framework.gpushare.allocation": "{",
    }
    gates = [{"name": "test/wait"}]
    metadata = {"annotations": preset}
    pods.create(pod("preset", 3000, node="n1", metadata=metadata, schedulingGates=gates))
    [node] = gpushare.inspect("n1")
    assert node["usedGPU"] == 0
    pods.cluster.kubectl(
        "patch", "pod", "preset", "--type=merge", "-p", '{"spec":{"schedulingGates":null}}'
    )
    pods.wait_running("preset")
    assert env_is_card_on_record(pods, "preset") == {"preset": "GPU-n1-0"}
    assert gpushare.card_of("preset") == ("n1", 0)


@pytest.mark.usefixtures("unguarded")
def test_a_changed_decision_of_a_running_pod_is_reported(gpushare: Gpushare, pods: Workloads):
    pods.run(pod("changed", 3000, node="n1"))
    pods.cluster.kubectl("annotate", "pod", "changed", "--overwrite", f"{CARDS}=GPU-n1-1")
    wait_event(pods, "changed", "changed the GPU decision")
    assert gpushare.card_of("changed") == ("n1", 0)
