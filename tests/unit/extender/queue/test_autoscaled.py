"""What autoscalers see: pods that the quota permits, although there is no room for them."""

from tests.unit.extender.queue.driver import QUEUED, Queue


async def test_a_pod_without_room_is_released_as_far_as_the_quota_permits():
    queue = Queue({"a": (8,)}, autoscaled=True)
    queue.namespace("team", "20", QUEUED)
    for name in ("one", "two", "three"):
        queue.submit(name, 8, "team")
    await queue.serve(3)
    assert queue.bound() == {"one"}
    assert queue.gated() == {"three"}


async def test_without_the_setting_no_pod_is_released_before_there_is_room():
    queue = Queue({"a": (8,)})
    queue.submit("one", 8)
    queue.submit("two", 8)
    await queue.serve(3)
    assert queue.gated() == {"two"}


async def test_a_gang_is_released_whole_or_not_at_all():
    queue = Queue({"a": (8,)}, autoscaled=True)
    queue.namespace("team", "40", QUEUED)
    queue.submit_gang("fits", 3, 8, "team")
    queue.submit_gang("exceeds", 3, 8, "team")
    await queue.serve(3)
    assert queue.bound() == set()
    assert queue.gated() == {"exceeds-0", "exceeds-1", "exceeds-2"}


async def test_released_pods_get_the_room_of_a_new_node_in_their_order():
    queue = Queue({"a": (8,)}, autoscaled=True)
    queue.namespace("team", labels=QUEUED)
    queue.submit("running", 8, "team")
    await queue.serve()
    queue.submit("ordinary", 8, "team")
    queue.submit("urgent", 8, "team", priority=1)
    await queue.serve(3)
    assert queue.gated() == set()
    assert queue.bound() == {"running"}
    queue.add_node("b", (8,))
    await queue.serve(3)
    assert queue.bound() == {"running", "urgent"}


async def test_nothing_is_released_under_a_quota_that_cannot_be_read():
    queue = Queue({"a": (8,)}, autoscaled=True)
    queue.namespace("team", "8Gi", QUEUED)
    queue.submit("one", 16, "team")
    await queue.serve(3)
    assert queue.gated() == {"one"}
