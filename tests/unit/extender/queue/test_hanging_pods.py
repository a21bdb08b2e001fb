"""A pod that hangs on a node that does not answer holds no quota, and people are told who hangs."""

import pytest

from extender.metrics.nodes import NodeMetrics
from gpushare.objects.model import NodeCondition
from gpushare.objects.scheduling import Taint
from tests.builders import node
from tests.unit.extender.queue.driver import Queue
from tests.unit.extender.queue.test_quotas import said, used
from tests.unit.extender.scripted import changed

GRACE = 30
SINCE = "2026-01-01T00:00:30Z"


def tainted(key):
    return changed(node("old", 16), spec={"taints": (Taint(key, "NoExecute"),)})


UNREACHABLE = tainted("node.kubernetes.io/unreachable")
LOST = {
    "unreachable": UNREACHABLE,
    "out of service": tainted("node.kubernetes.io/out-of-service"),
    "not ready": changed(
        node("old", 16), status={"conditions": (NodeCondition("Ready", "Unknown"),)}
    ),
    "deleted": None,
}


def become(queue, found):
    if found is None:
        queue.cluster.delete_node("old")
    else:
        queue.cluster.put_node(found)


def terminate(queue, name):
    """Delete a pod, as the API server shows it until its kubelet confirms the end."""
    before = queue.cluster.kube.pods[name]
    deleted = {"deletion_timestamp": SINCE, "deletion_grace_period_seconds": GRACE}
    queue.cluster.add(changed(before, deleted))


@pytest.fixture
async def queue():
    """A pod that uses the whole quota of its namespace is deleted, and another one waits."""
    made = Queue({"old": (16,)})
    made.namespace("default", "16")
    made.submit("web-old", 16)
    await made.serve(2)
    made.add_node("new", (16,))
    made.submit("web-new", 16)
    terminate(made, "web-old")
    return made


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
async def test_after_its_grace_period_a_pod_on_a_lost_node_holds_no_quota(queue, lost):
    become(queue, lost)
    await queue.serve(GRACE - 5)
    assert "web-new" not in queue.bound()
    await queue.serve(10)
    assert queue.cluster.bound("web-new") == {"web-new": "new"}
    assert used(queue.cluster) == 16
    assert queue.state.quotas.share("default") == 1


async def test_a_node_that_is_lost_only_later_lets_go_too(queue):
    await queue.serve(10 * GRACE)
    assert "web-new" not in queue.bound()
    become(queue, UNREACHABLE)
    await queue.serve(2)
    assert "web-new" in queue.bound()


async def test_a_pod_that_still_runs_counts_again_when_its_node_answers(queue):
    become(queue, UNREACHABLE)
    await queue.serve(GRACE + 2)
    become(queue, node("old", 16))
    assert used(queue.cluster) == 32
    queue.submit("one-more", 1)
    queue.add_node("more", (16,))
    await queue.serve(5)
    assert "one-more" not in queue.bound()
    queue.end("web-old")
    assert used(queue.cluster) == 16


async def test_its_gpu_memory_is_given_to_nobody(queue):
    become(queue, UNREACHABLE)
    await queue.serve(GRACE + 5)
    queue.namespace("default", "64")
    for number in range(3):
        queue.submit(f"p{number}", 8)
    become(queue, node("old", 16))
    await queue.serve(5)
    assert queue.bound({"p0", "p1", "p2"}) == set()


async def test_metrics_of_namespaces_let_go_of_it_and_those_of_nodes_do_not(queue):
    metrics = NodeMetrics(queue.state.ledger, let_go=queue.state.let_go)
    counts = b'gpushare_namespace_pods{namespace="default"} 1\n'
    assert counts in await metrics.render()
    become(queue, UNREACHABLE)
    assert counts in await metrics.render()
    queue.cluster.time.now += GRACE
    found = await metrics.render()
    assert counts not in found
    assert b'gpushare_node_used_units{node="old"} 16\n' in found


async def test_people_are_told_who_hangs_and_whether_it_counts(queue):
    await queue.serve(GRACE + 5)
    _, text = said(queue.cluster, "web-new")
    assert "uses 16 MiB of its quota of 16 MiB" in text
    hangs = "Pod web-old hangs Terminating on node old, and still counts"
    assert hangs in text
    become(queue, UNREACHABLE)
    queue.namespace("default", "8")
    queue.submit("small", 4)
    await queue.serve(5)
    queue.submit("too-much", 8)
    _, text = said(queue.cluster, "too-much")
    assert "uses 4 MiB of its quota of 8 MiB" in text
    assert "on node old, which is unreachable, and no longer counts." in text
