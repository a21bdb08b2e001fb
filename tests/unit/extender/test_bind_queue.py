"""Binds that come at once: room is held from the first moment, writes go out a few at a time."""

import asyncio

import pytest

from extender.binding.binder import WRITES_AT_ONCE, BindRefused, TooManyBinds
from extender.binding.timing import ANSWER_SECONDS, LEAST_WRITE_SECONDS, READ_SECONDS
from gpushare.errors import NoRoom
from tests.builders import pod
from tests.unit.extender.scripted import Bench


@pytest.fixture
def bench():
    return Bench(1000)


async def begun(bench: Bench, count: int) -> list[asyncio.Task[None]]:
    """Binds of that many pods of one unit, as far as they come before the API server answers."""
    bench.kube.hold = asyncio.Event()
    pods = [pod(f"p{i}", 1) for i in range(count)]
    bench.add(*pods)
    tasks = [asyncio.create_task(bench.bind(each)) for each in pods]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def finish(bench: Bench, tasks: list[asyncio.Task[None]]) -> None:
    bench.kube.hold.set()
    await asyncio.gather(*tasks)


async def test_only_so_many_writes_are_under_way_at_a_time_and_all_get_their_turn_in_order(bench):
    tasks = await begun(bench, 3 * WRITES_AT_ONCE)
    assert len(bench.kube.bindings) == WRITES_AT_ONCE
    await finish(bench, tasks)
    names = [f"uid-p{i}" for i in range(3 * WRITES_AT_ONCE)]
    assert [uid for uid, _, _ in bench.kube.bindings] == names


async def test_a_pod_that_waits_for_its_turn_holds_its_room_already():
    bench = Bench(2 * WRITES_AT_ONCE)
    tasks = await begun(bench, 2 * WRITES_AT_ONCE)
    assert bench.held == [(0, 2 * WRITES_AT_ONCE)]
    bench.add(pod("late", 1))
    with pytest.raises(NoRoom):
        await bench.bind(pod("late", 1))
    await finish(bench, tasks)


async def test_a_turn_that_comes_too_late_for_an_answer_writes_nothing_and_frees_the_room(bench):
    tasks = await begun(bench, WRITES_AT_ONCE + 1)
    bench.time.now += ANSWER_SECONDS - READ_SECONDS - LEAST_WRITE_SECONDS + 0.01
    bench.kube.hold.set()
    *written, late = await asyncio.gather(*tasks, return_exceptions=True)
    assert written == [None] * WRITES_AT_ONCE
    assert isinstance(late, BindRefused)
    assert isinstance(late.__cause__, TooManyBinds)
    assert len(bench.kube.bindings) == WRITES_AT_ONCE
    assert bench.held == [(0, WRITES_AT_ONCE)]


async def test_a_write_whose_turn_came_late_has_less_time_but_never_more_than_is_left(bench):
    limits = []
    bind_pod = bench.kube.bind_pod

    async def noted(*args, seconds):
        limits.append(seconds)
        await bind_pod(*args, seconds=seconds)

    bench.kube.bind_pod = noted
    tasks = await begun(bench, WRITES_AT_ONCE + 1)
    bench.time.now += 2.0
    await finish(bench, tasks)
    assert limits[-1] == pytest.approx(ANSWER_SECONDS - READ_SECONDS - 2.0)
