"""How long kube-scheduler waits for what the watch brings."""

import asyncio

import pytest

from extender.watch.grace import MOST, SECONDS, WITHIN_SECONDS


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every wait that took time."""
    found: list[float] = []
    turn = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            found.append(seconds)
        await turn(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def test_a_burst_of_refusals_costs_kube_scheduler_a_twentieth_of_its_time(bench, waits):
    time, grace = bench.time, bench.cluster.grace
    for _ in range(5 * MOST):
        await grace.wait()
    assert waits == [SECONDS] * MOST
    time.now += WITHIN_SECONDS
    await grace.wait()
    assert len(waits) == MOST + 1
    assert MOST * SECONDS <= WITHIN_SECONDS / 20
