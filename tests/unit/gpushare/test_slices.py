"""Long work is done in slices, and others go on in between."""

import asyncio

from gpushare import slices


async def test_others_go_on_between_slices(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    steps = iter([None] * 50)
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(slices.in_slices(steps))
        while not taking.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns >= 50
    assert not list(steps)


async def test_what_the_steps_come_to_is_returned():
    def steps():
        yield
        yield
        return 7

    assert await slices.found_in_slices(steps()) == 7
