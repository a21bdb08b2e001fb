"""A node that takes no pods for a while gets none from the queue, and all that waits afterwards."""

import pytest

from tests.unit.extender.queue.driver import Queue
from tests.unit.extender.scripted import changed

UNANSWERED = {"reason": "UnexpectedAdmissionError", "message": "rpc error: code = Unavailable"}


async def fail_on(queue: Queue, name: str) -> None:
    """Bind a pod to a node whose device plugin has died, where it fails at once."""
    queue.submit("failed", 8, is_gated=False)
    await queue.cluster.schedule("failed", without=set(queue.cluster.nodes) - {name})
    pod = queue.cluster.kube.pods["failed"]
    assert pod.node == name
    queue.end("failed")
    ended = changed(pod, status={"phase": "Failed", **UNANSWERED})
    queue.state.failing_nodes.failed(ended, queue.cluster.time.monotonic())


@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_pod_goes_to_another_node(name):
    queue = Queue({"a": (8,), "b": (8,)})
    await fail_on(queue, name)
    queue.submit("pod", 8)
    await queue.serve()
    assert queue.bound() == {"pod"}


@pytest.mark.parametrize("gang", ["", "gang"])
async def test_a_pod_or_gang_that_has_no_other_node_waits_until_it_takes_pods_again(gang):
    queue = Queue({"a": (8,)})
    await fail_on(queue, "a")
    queue.submit("pod", 8, gang=gang, minimum=1)
    await queue.serve(3)
    assert queue.gated() == {"pod"}
    await queue.serve(5)
    assert queue.bound() == {"pod"}
