"""What is kept for gangs, and for how long, when something happens in the middle."""

import asyncio
from collections.abc import Callable

import pytest

from extender.decisions.gangs.gangs import HELD_SECONDS
from extender.settings.configuration import GangSettings
from gpushare.contract import GATE_ADMISSION
from gpushare.groups import reasons as texts
from tests.builders import node
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.gangs.test_answers import gang, names
from tests.unit.extender.gangs.test_duties import ListedKube, begun, owned
from tests.unit.extender.scripted import changed

SIZES = {"a": (16, 16), "b": (16, 16)}
COMPLETE_SECONDS = 60


@pytest.fixture
def cluster() -> GangCluster:
    settings = GangSettings(complete_seconds=COMPLETE_SECONDS)
    return GangCluster(SIZES, gangs=settings, kube=ListedKube())


def during_a_plan(cluster: GangCluster, happens: Callable[[], object]) -> None:
    """Let something happen once, between two steps of the next plan."""
    real = cluster.planning.planner.plan

    def plan(ask):
        cluster.planning.planner.plan = real
        found = yield from real(ask)
        happens()
        return found

    cluster.planning.planner.plan = plan


async def test_a_gang_that_cannot_replace_a_lost_member_lets_go_of_all_its_slots(cluster):
    cluster.add(*gang("g", 4))
    await cluster.offered("g-0")
    assert cluster.held == 4
    cluster.add(member("too-large", "g", 4, units=20))
    cluster.delete("g-3")
    assert await cluster.offered("g-0") == ([], texts.NO_ROOM.text)
    assert cluster.held == 0


async def test_a_gang_keeps_its_slots_while_a_member_may_be_bound(cluster):
    cluster.add(*gang("g", 4))
    (at,), _ = await cluster.offered("g-0")
    cluster.kube.hold = asyncio.Event()
    binding = asyncio.create_task(cluster.bind("g-0", at))
    await cluster.kube.asked.wait()
    cluster.add(member("too-large", "g", 4, units=20))
    cluster.delete("g-3")
    await cluster.offered("g-1")
    assert cluster.held == 3
    cluster.kube.hold.set()
    await binding


async def test_no_other_zone_is_chosen_while_a_member_may_be_bound_to_a_node_that_is_gone():
    zones = {"a": {"zone": "x"}, "b": {"zone": "y"}}
    cluster = GangCluster(SIZES, zones, kube=ListedKube())
    cluster.add(*gang("g", 2, zone_key="zone"))
    (at,), _ = await cluster.offered("g-0")
    (other,) = SIZES.keys() - {at}
    cluster.kube.hold = asyncio.Event()
    binding = asyncio.create_task(cluster.bind("g-0", at))
    await cluster.kube.asked.wait()
    cluster.delete_node(at)
    assert (await cluster.offered("g-1", [other]))[0] == []
    cluster.kube.hold.set()
    await binding
    assert cluster.bound() == {"g-0": at}


async def test_room_that_comes_while_a_plan_is_made_is_used(cluster):
    cluster.add(*gang("g", 6))
    during_a_plan(cluster, lambda: cluster.put_node(node("c", 16, 16)))
    assert (await cluster.offered("g-0"))[0] == []
    cluster.time.now += 1
    assert (await cluster.offered("g-0"))[0] != []


async def test_room_that_is_lost_while_a_plan_is_made_is_not_kept(cluster):
    def cordon() -> None:
        for each in list(cluster.nodes.values()):
            cluster.put_node(changed(each, spec={"unschedulable": True}))

    cluster.add(*gang("g", 2))
    during_a_plan(cluster, cordon)
    assert (await cluster.offered("g-0"))[0] == []
    assert cluster.held == 0


async def test_a_member_that_is_bound_while_a_plan_is_made_gets_no_slot(cluster):
    server = member("server", "g", 3, units=None)
    cluster.add(*gang("g", 2, minimum=3), server)
    bound = changed(server, spec={"node_name": "a"})
    during_a_plan(cluster, lambda: cluster.add(bound))
    assert len(await cluster.schedule("g-0", "g-1")) == 2
    assert cluster.held == 0


async def test_the_slot_of_a_member_beyond_the_minimum_expires(cluster):
    cluster.add(*gang("g", 1))
    await cluster.schedule("g-0")
    cluster.add(member("more", "g", 1, gates=(GATE_ADMISSION,)))
    group = cluster.gangs.group_of(cluster.kube.pods["more"])
    assert await cluster.planning.plan(group)
    assert cluster.held == 1
    cluster.time.now += HELD_SECONDS + 1
    cluster.cluster.expire_plans()
    assert cluster.held == 0


async def test_a_new_gang_of_the_same_name_has_nothing_of_the_former_one(cluster):
    cluster.add(*gang("g", 3, minimum=1))
    await cluster.schedule("g-0")
    assert cluster.held == 2
    cluster.delete("g-0")
    assert cluster.held == 0


async def test_a_member_that_kube_scheduler_binds_by_itself_does_not_start_the_gang(cluster):
    server = owned(member("server", "g", 5, units=None, node="a"))
    cluster.add(*gang("g", 4, minimum=5), server)
    for _ in range(3):
        cluster.time.now += COMPLETE_SECONDS
        await cluster.duties.check()
    assert cluster.kube.evicted == []
    assert len(await cluster.schedule(*names("g", 4))) == 4


async def test_a_gang_whose_last_member_may_be_bound_is_not_evicted(cluster):
    at = await begun(cluster, 2)
    cluster.kube.hold = asyncio.Event()
    cluster.kube.asked.clear()
    (at,), _ = await cluster.offered("g-1")
    binding = asyncio.create_task(cluster.bind("g-1", at))
    await cluster.kube.asked.wait()
    cluster.time.now += COMPLETE_SECONDS
    await cluster.duties.check()
    assert cluster.kube.evicted == []
    cluster.kube.hold.set()
    await binding
    await cluster.duties.check()
    assert cluster.kube.evicted == []


async def test_bare_members_get_their_time_again_each_time_the_gang_is_planned():
    cluster = GangCluster(SIZES, gangs=GangSettings(complete_seconds=10), kube=ListedKube())
    cluster.add(*gang("g", 4))
    (at,), _ = await cluster.offered("g-0")
    await cluster.bind("g-0", at)
    for second in range(200):
        cluster.time.now += 1
        await cluster.duties.check()
        if second > 99:
            await cluster.schedule(*names("g", 4))
    assert sorted(cluster.bound()) == names("g", 4)
