"""Pods that request a resource of which gpushare does not know whether kube-scheduler counts it."""

import pytest

from gpushare.objects.model import Container, Resources
from tests.builders import node
from tests.unit.extender.queue.driver import Queue
from tests.unit.extender.scripted import changed

LICENSE = "example.com/license"


def asking(units, resource=LICENSE):
    amounts = {"aliyun.com/gpu-mem": str(units), resource: "1"}
    return (Container("main", Resources(amounts, amounts)),)


def put(queue, name, *sizes, licenses):
    made = node(name, *sizes)
    status = {"allocatable": {**made.allocatable, LICENSE: licenses}}
    queue.cluster.put_node(changed(made, status=status))


async def test_a_gated_pod_and_a_gang_are_placed_although_no_node_offers_the_resource():
    queue = Queue({"a": (16, 16, 16)})
    queue.submit("single", 12, containers=asking(12))
    for name in ("g-0", "g-1"):
        queue.submit(name, 12, gang="g", minimum=2, containers=asking(12))
    await queue.serve(5)
    assert queue.bound() == {"single", "g-0", "g-1"}


async def test_no_member_passes_before_kube_scheduler_has_found_room_for_all():
    queue = Queue({"a": (16, 16)})
    for name in ("g-0", "g-1"):
        queue.submit(name, 12, gang="g", minimum=2, is_gated=False, containers=asking(12))
    fitting, why = await queue.cluster.offered("g-0")
    assert not fitting, why
    assert (await queue.cluster.offered("g-1"))[0] == ["a"]
    assert (await queue.cluster.offered("g-0"))[0] == ["a"]


@pytest.mark.parametrize("gang", ["", "g"])
async def test_a_resource_that_another_node_offers_is_an_obstacle_as_long_as_it_does(gang):
    queue = Queue({"a": (16,)})
    put(queue, "b", 8, licenses="1")
    queue.submit("p", 12, gang=gang, minimum=1, containers=asking(12))
    await queue.serve(5)
    assert queue.bound() == set()
    put(queue, "b", 8, licenses="0")
    await queue.serve(5)
    assert queue.bound() == {"p"}


async def test_nobody_gets_more_of_a_known_resource_than_there_is():
    queue = Queue({"a": (16,)})
    put(queue, "b", 16, 16, licenses="1")
    for name in ("p", "q"):
        queue.submit(name, 12, containers=asking(12))
    await queue.serve(5)
    assert len(queue.bound()) == 1
