"""Members beyond the minimum of a gang whose gate is gone are placed in their turn too."""

import pytest

from tests.unit.extender.queue.driver import QUEUED, Queue


async def running_gang() -> Queue:
    queue = Queue({"a": (8, 8)})
    queue.namespace("team", labels=QUEUED)
    queue.submit("gang-0", 8, "team", gang="gang", minimum=1)
    await queue.serve()
    return queue


async def test_one_that_was_created_without_the_gate_is_placed():
    queue = await running_gang()
    queue.submit("gang-1", 8, "team", gang="gang", minimum=1, is_gated=False)
    await queue.serve(2)
    assert queue.bound() == {"gang-0", "gang-1"}


async def test_one_that_did_not_come_in_time_is_placed_later():
    queue = await running_gang()
    queue.submit("gang-1", 8, "team", gang="gang", minimum=1)
    queue.ignored.add("gang-1")
    await queue.serve(40)
    assert not queue.gated()
    queue.ignored.clear()
    await queue.serve(60)
    assert queue.bound() == {"gang-0", "gang-1"}


@pytest.mark.parametrize("is_gated", [True, False])
async def test_one_that_never_comes_keeps_the_room_from_nobody(is_gated):
    queue = await running_gang()
    queue.submit("gang-1", 8, "team", gang="gang", minimum=1, is_gated=is_gated)
    queue.ignored.add("gang-1")
    await queue.serve(2)
    queue.submit("next", 8)
    await queue.serve(40)
    assert queue.bound() == {"gang-0", "next"}
