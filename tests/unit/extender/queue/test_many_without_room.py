"""However many entries have no room, each other one is tried before long."""

from extender.queue.admission_round import SHAPES_AT_ONCE
from tests.unit.extender.queue.driver import Queue


def fill(queue: Queue, count: int) -> None:
    """Submit pods of as many shapes, for which there is no node."""
    for number in range(count):
        queue.submit(f"never-{number}", 8, "other", node_selector={"none": str(number)})


async def test_a_pod_behind_more_shapes_without_room_than_one_round_tries_is_placed():
    queue = Queue({"a": (8,)}, order="fifo")
    fill(queue, 2 * SHAPES_AT_ONCE)
    queue.submit("last", 8)
    await queue.serve(3)
    assert queue.bound() == {"last"}


async def test_those_that_came_first_get_the_room_that_appears_while_the_others_are_tried():
    queue = Queue({"a": (8,)}, order="fifo")
    queue.submit("running", 8)
    await queue.serve()
    queue.submit("first", 8)
    fill(queue, SHAPES_AT_ONCE)
    await queue.serve()
    queue.end("running")
    await queue.serve(3)
    assert queue.bound() == {"first"}


async def test_all_that_have_no_room_stay_known_while_the_others_are_tried():
    queue = Queue({"a": (8,)}, order="fifo")
    fill(queue, SHAPES_AT_ONCE + 5)
    seen = set()
    for _ in range(4):
        await queue.serve()
        seen |= {len(queue.admission._round.without_room)}
    assert seen <= {SHAPES_AT_ONCE, SHAPES_AT_ONCE + 5}
    assert len(queue.admission._round.without_room) == SHAPES_AT_ONCE + 5
