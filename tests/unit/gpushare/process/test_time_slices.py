"""Long computations run in slices, and other tasks run in between."""

import asyncio
import os
import time

from gpushare.process import time_slices
from gpushare.process.polled_loop import SelectorLoop
from localcluster.wait import patient


async def test_other_tasks_run_between_slices(monkeypatch):
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)
    steps = iter([None] * 50)
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(time_slices.in_slices(steps))
        while not taking.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns >= 50
    assert not list(steps)


async def test_the_result_of_the_steps_is_returned():
    def steps():
        yield
        yield
        return 7

    assert await time_slices.Turns().run(steps()) == 7


async def test_callers_that_share_a_turn_run_one_slice_at_a_time():
    taken = []

    def steps(number):
        for _ in range(20):
            taken.append(number)
            yield

    turns = time_slices.Turns(1e-9)
    most = 0
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(turns.run(steps(n))) for n in range(16)]
        while not all(each.done() for each in readers):
            before = len(taken)
            await asyncio.sleep(0)
            most = max(most, len(taken) - before)
    assert most == 1
    assert set(taken[:17]) == set(range(16))  # the first one comes again before others wait


async def test_others_run_after_many_short_computations_as_after_a_long_one():
    turns, others = time_slices.Turns(0.001, 4.0), 0

    def step():
        end = time.perf_counter() + 0.0002
        while time.perf_counter() < end:
            pass
        yield
        return 1

    async def other():
        nonlocal others
        while True:
            await asyncio.sleep(0)
            others += 1

    task = asyncio.create_task(other())
    results = [await turns.run(step()) for _ in range(50)]
    task.cancel()
    assert sum(results) == 50
    assert others >= 5


async def test_nothing_else_runs_after_the_last_step_of_a_turn():
    world = 0

    def steps():
        for _ in range(5):
            yield
        return world

    async def other():
        nonlocal world
        while True:
            world += 1
            await asyncio.sleep(0)

    turns, task = time_slices.Turns(1e-9), asyncio.create_task(other())
    assert await turns.run(steps()) == world
    assert world > 1
    task.cancel()


async def test_no_slice_begins_while_a_call_is_answered(monkeypatch):
    monkeypatch.setattr(time_slices, "MOST_SECONDS", 3600.0)
    turns, taken, moved = time_slices.Turns(1e-9), 0, asyncio.Event()

    def steps():
        nonlocal taken
        while True:
            taken += 1
            moved.set()
            yield

    task = asyncio.create_task(turns.run(steps()))
    await moved.wait()
    with turns.answering():
        before = taken
        moved.clear()
        await asyncio.sleep(5 * time_slices.QUIET_SECONDS)
        assert taken == before
    await moved.wait()
    task.cancel()


def one_step():
    yield
    return 7


async def test_a_call_that_is_never_answered_stops_no_computation():
    turns = time_slices.Turns()
    with turns.answering():
        assert await turns.run(one_step()) == 7


async def test_a_computation_for_a_call_waits_for_no_other_call(monkeypatch):
    monkeypatch.setattr(time_slices, "MOST_SECONDS", 3600.0)
    turns = time_slices.Turns()
    with turns.answering(), turns.hurry():
        assert await asyncio.wait_for(turns.run(one_step()), patient(60)) == 7


def test_a_slice_ends_when_something_arrives():
    read, write = os.pipe()
    number, last = 0, 1_000_000

    def steps():
        nonlocal number
        for number in range(last + 1):
            if number == last // 1000:
                os.write(write, b"x")
            yield

    async def program() -> int:
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        loop.add_reader(read, lambda: arrived.done() or arrived.set_result(number))
        task = asyncio.create_task(time_slices.Turns(3600.0).run(steps()))
        try:
            return await arrived
        finally:
            loop.remove_reader(read)
            task.cancel()

    with asyncio.Runner(loop_factory=SelectorLoop) as runner:
        assert runner.run(program()) < last
    os.close(read)
    os.close(write)
