"""A plan that takes long: kube-scheduler does not wait for it, and nothing is lost by that."""

import asyncio

import pytest

from extender.decisions.filter import Filtered
from extender.gangs import answers
from gpushare.groups import reasons as texts
from gpushare.planning.planner import Planner
from localcluster.wait import patient
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.waiting import eventually

TWO_NODES = {"a": (16, 16, 16), "b": (16, 16, 16)}


class GatedPlanner(Planner):
    """Plans like the real one, but ends no plan before it may."""

    def __init__(self, world):
        super().__init__(world)
        self.may_end = False
        self.error: Exception | None = None

    def plan(self, ask, *more):
        while not self.may_end:
            yield
        if self.error is not None:
            raise self.error
        return (yield from super().plan(ask, *more))


class Stage:
    def __init__(self) -> None:
        self.cluster = GangCluster(TWO_NODES)
        self.planner = self.cluster.planning.planner = GatedPlanner(self.cluster.cluster.state)

    def add(self, name: str, count: int = 2, namespace: str = "default") -> None:
        self.cluster.add(
            *[
                member(f"{name}-{number}", name, count, units=4, namespace=namespace)
                for number in range(count)
            ]
        )

    async def ask(self, name: str) -> Filtered:
        cluster = self.cluster
        return await cluster.answers.filter(cluster.kube.pods[name], list(cluster.nodes))

    async def is_refused_for_now(self, name: str) -> bool:
        found = await self.ask(name)
        reasons = set(found.final.values())
        return found.is_retried and not found.fitting and reasons == {texts.BEING_PLANNED.text}

    async def settled(self, name: str) -> Filtered:
        """Ask again, as kube-scheduler does, until the answer is another one."""
        found = await self.ask(name)
        async with asyncio.timeout(patient(30)):
            while found.is_retried:
                await asyncio.sleep(0)
                found = await self.ask(name)
        return found


@pytest.fixture
def stage():
    return Stage()


async def test_filter_does_not_wait_for_a_long_plan_and_offers_its_nodes_later(stage):
    stage.add("g")
    assert await stage.is_refused_for_now("g-0")
    assert await stage.is_refused_for_now("g-1")
    stage.planner.may_end = True
    assert (await stage.settled("g-1")).fitting
    assert (await stage.settled("g-0")).fitting


async def test_a_member_of_another_gang_does_not_wait_for_it_either(stage):
    stage.add("g")
    stage.add("other", namespace="innocent")
    assert await stage.is_refused_for_now("g-0")
    assert await stage.is_refused_for_now("other-0")
    stage.planner.may_end = True
    assert (await stage.settled("other-0")).fitting


async def test_a_plan_goes_on_when_kube_scheduler_hangs_up(stage):
    stage.add("g")
    call = asyncio.create_task(stage.ask("g-0"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    stage.planner.may_end = True
    assert (await stage.settled("g-0")).fitting


async def test_many_gangs_of_one_namespace_leave_the_planner_to_others(stage):
    for number in range(answers.MOST_OF_NAMESPACE + 1):
        stage.add(f"g{number}", namespace="hostile")
        assert await stage.is_refused_for_now(f"g{number}-0")
    stage.add("other", namespace="innocent")
    assert await stage.is_refused_for_now("other-0")
    stage.planner.may_end = True
    assert (await stage.settled("other-0")).fitting
    assert (await stage.settled(f"g{answers.MOST_OF_NAMESPACE}-0")).fitting


async def test_a_plan_that_fails_late_is_logged_and_made_again(stage, caplog):
    stage.add("g")
    assert await stage.is_refused_for_now("g-0")
    stage.planner.error, stage.planner.may_end = RuntimeError("a bug"), True
    await eventually(lambda: caplog.records)
    assert "plan for a gang failed" in caplog.text
    stage.planner.error = None
    assert (await stage.settled("g-0")).fitting
