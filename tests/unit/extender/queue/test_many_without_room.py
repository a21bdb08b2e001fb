"""However many entries have no room, each other one is tried before long."""

import pytest

from extender.queue import admission_round
from gpushare.process.time_slices import run_all
from tests.unit.extender.queue.driver import Queue

MANY = 30


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each plan take all the time of a part of a round."""
    monkeypatch.setattr(admission_round, "FRONT_SECONDS", 0.0)
    monkeypatch.setattr(admission_round, "TURNS_SECONDS", 0.0)


def fill(queue: Queue, count: int, namespace: str = "other") -> None:
    """Submit pods of as many shapes, for which there is no node."""
    for number in range(count):
        more = {"node_selector": {"none": str(number)}}
        queue.submit(f"never-{namespace}-{number}", 8, namespace, **more)


@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_a_newcomer_that_fits_is_placed_in_the_next_round_beside_another_namespace(order):
    queue = Queue({"a": (8,)}, order=order)
    fill(queue, MANY)
    await queue.serve(3)
    queue.submit("newcomer", 8)
    await queue.serve()
    assert queue.bound() == {"newcomer"}


async def test_a_newcomer_that_fits_is_placed_in_the_next_round_beside_its_own_namespace():
    queue = Queue({"a": (8,)}, order="fifo")
    fill(queue, MANY)
    await queue.serve(MANY + 3)
    queue.submit("newcomer", 8, "other")
    await queue.serve()
    assert queue.bound() == {"newcomer"}


async def test_namespaces_take_turns_when_room_appears():
    queue = Queue({"a": (8,)}, order="fifo")
    queue.submit("running", 8)
    await queue.serve()
    fill(queue, 1, "first")
    fill(queue, MANY)
    queue.submit("last", 8)
    await queue.serve(MANY + 5)
    queue.end("running")
    await queue.serve(3)
    assert queue.bound() == {"last"}


async def test_each_entry_is_tried_once_before_another_one_is_tried_twice():
    queue = Queue({"a": (8,)}, order="fifo")
    fill(queue, MANY)
    queue.submit("last", 8, "other")
    await queue.serve(MANY + 1)
    assert queue.bound() == {"last"}


async def test_those_that_came_first_get_the_room_that_appears_while_the_others_are_tried():
    queue = Queue({"a": (8,)}, order="fifo")
    queue.submit("running", 8)
    await queue.serve()
    queue.submit("first", 8)
    fill(queue, MANY)
    await queue.serve()
    queue.end("running")
    await queue.serve(3)
    assert queue.bound() == {"first"}


async def test_all_that_have_no_room_stay_known_while_the_others_are_tried():
    queue = Queue({"a": (8,)}, order="fifo")
    fill(queue, MANY)
    await queue.serve(MANY + 1)
    for _ in range(4):
        queue.submit("more", 8, node_selector={"none": "more"})
        await queue.serve()
        queue.end("more")
        reasons = {each.reason for each in run_all(queue.state.queue.entries("other")).entries}
        assert reasons == {"NoRoom"}
