"""What is kept for a gang that has not begun has an end, and more important pods pass it."""

import asyncio

import pytest

from extender.decisions.gangs.stages import GangStages
from extender.settings.configuration import GangSettings
from gpushare.groups.model import GroupKey, PodGroup, Source
from gpushare.groups.reasons import NOT_ASKED
from gpushare.objects.scheduling import Present, Volume
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.gangs.test_answers import gang, names
from tests.unit.extender.gangs.test_duties import ListedKube, owned
from tests.unit.extender.queue.test_admission import check, stage
from tests.unit.extender.scripted import changed

SIZE = {"a": (16, 16)}


@pytest.fixture
def cluster() -> GangCluster:
    return GangCluster(SIZE, kube=ListedKube())


def important(name: str, priority: int, units: int = 12):
    return changed(pod(name, units), spec={"priority": priority})


def not_plain(pod):
    """A pod that only kube-scheduler can judge."""
    claim = Volume(persistent_volume_claim=Present())
    return changed(pod, spec={"volumes": (claim,)})


async def pass_time(cluster: GangCluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.time.now += 1
        cluster.cluster.expire_plans()
        await cluster.duties.check()


async def test_a_more_important_pod_gets_room_that_is_kept_for_a_gang_of_which_nothing_is_bound(
    cluster,
):
    cluster.add(*gang("g", 2))
    await cluster.offered("g-0")
    assert cluster.held == 2
    cluster.add(important("high", 1))
    assert await cluster.schedule("high") == {"high": "a"}
    assert cluster.held == 0
    assert await cluster.schedule("g-0", "g-1") == {}
    cluster.delete("high")
    await pass_time(cluster, 30)
    assert len(await cluster.schedule("g-0", "g-1")) == 2


async def test_a_more_important_gang_gets_the_room_too(cluster):
    cluster.add(*gang("g", 2), *(member(f"h-{n}", "h", 2, units=12, priority=1) for n in (0, 1)))
    await cluster.offered("g-0")
    assert len(await cluster.schedule("h-0", "h-1")) == 2
    assert await cluster.schedule("g-0", "g-1") == {}


async def test_free_room_is_taken_before_that_of_a_gang():
    cluster = GangCluster({"a": (16, 16), "b": (16,)}, kube=ListedKube())
    cluster.add(*gang("g", 2), important("high", 1))
    await cluster.offered("g-0")
    (free,) = (await cluster.offered("high"))[0]
    await cluster.bind("high", free)
    assert len(await cluster.schedule("g-0", "g-1")) == 2


@pytest.mark.parametrize("priority", [0, -1])
async def test_a_gang_gives_way_to_no_equally_or_less_important_pod(cluster, priority):
    cluster.add(*gang("g", 2), important("other", priority))
    await cluster.offered("g-0")
    assert await cluster.schedule("other") == {}
    assert len(await cluster.schedule("g-0", "g-1")) == 2


async def test_a_gang_gives_way_to_nobody_once_a_member_is_being_bound(cluster):
    cluster.add(*gang("g", 2), important("high", 1000))
    (at,), _ = await cluster.offered("g-0")
    cluster.kube.hold = asyncio.Event()
    binding = asyncio.create_task(cluster.bind("g-0", at))
    await cluster.kube.asked.wait()
    assert (await cluster.offered("high"))[0] == []
    cluster.kube.hold.set()
    await binding
    assert await cluster.schedule("high") == {}
    assert await cluster.schedule("g-1")


async def test_no_member_is_bound_with_a_plan_of_which_a_part_has_given_way(cluster):
    cluster.add(*gang("g", 2), important("high", 1))
    (at,), _ = await cluster.offered("g-0")
    await cluster.schedule("high")
    with pytest.raises(Exception, match="not bound"):
        await cluster.bind("g-0", at)


async def test_asking_again_about_the_same_member_keeps_no_room(cluster):
    cluster.add(*map(not_plain, gang("g", 2)), pod("other", 12))
    for _ in range(40):
        await cluster.offered("g-0")
        await pass_time(cluster, 1)
        if await cluster.schedule("other"):
            break
    assert cluster.bound("other")


async def test_room_is_kept_as_long_as_other_members_are_asked_about():
    cluster = GangCluster({"a": (16,) * 4}, kube=ListedKube())
    cluster.add(*map(not_plain, gang("g", 4)))
    for name in names("g", 4):
        await cluster.offered(name)
        await pass_time(cluster, 25)
    assert cluster.held == 4
    assert len(await cluster.schedule(*names("g", 4))) == 4


@pytest.mark.parametrize(("asked", "seconds"), [(20, 20), (500, 500), (86_400, 600)])
async def test_a_pod_group_may_ask_for_up_to_ten_times_the_time_of_the_configuration(
    asked, seconds
):
    cluster = GangCluster(SIZE, gangs=GangSettings(complete_seconds=60), kube=ListedKube())
    key = GroupKey("default", Source.POD_GROUP, "g")
    cluster.cluster.state.groups.put_pod_group(PodGroup(key, 2, timeout_seconds=asked))
    cluster.add(
        *(owned(member(f"g-{n}", "g", source=Source.POD_GROUP, units=12)) for n in range(2))
    )
    (at,), _ = await cluster.offered("g-0")
    await cluster.bind("g-0", at)
    cluster.time.now += seconds - 1
    await cluster.duties.check()
    assert cluster.kube.evicted == []
    cluster.time.now += 1
    await cluster.duties.check()
    assert cluster.kube.evicted == [("g-0", "default-g-0")]


def of_others(pod):
    return changed(pod, spec={"scheduler_name": "other"})


@pytest.mark.parametrize("units", [12, None])
async def test_nothing_is_kept_for_a_gang_of_which_a_member_is_left_to_others(units):
    cluster, api, admission = stage()
    stranger = of_others(
        member("g-1", "g", 2, units=units, gates=("gpushare.aliyun.com/admission",))
    )
    first = member("g-0", "g", 2, units=12, gates=("gpushare.aliyun.com/admission",))
    cluster.add(first, stranger)
    await check(admission)
    assert (cluster.held, api.patches) == (0, {})
    (view,) = cluster.cluster.state.gangs.views()
    assert (view.phase, NOT_ASKED.text in view.text) == ("Invalid", True)
    cluster.delete("g-1")
    cluster.add(member("g-2", "g", 2, units=units, gates=("gpushare.aliyun.com/admission",)))
    await check(admission)
    assert api.patches.keys() == {"g-0", "g-2"}


async def test_a_gang_of_a_scheduler_that_asks_about_its_members_is_placed(cluster):
    cluster.add(*map(of_others, gang("g", 2)))
    assert len(await cluster.schedule("g-0", "g-1")) == 2


async def test_a_member_that_is_left_to_others_takes_the_room_of_its_gang_back(cluster):
    cluster.add(*gang("g", 2))
    await cluster.offered("g-0")
    cluster.add(of_others(member("g-2", "g", 2, units=12)))
    assert cluster.held == 0
    assert await cluster.offered("g-0") == ([], NOT_ASKED.text)


async def test_members_that_do_not_start_are_poked_less_and_less_often():
    cluster, api, admission = stage({"a": (16, 16)})
    cluster.add(*map(not_plain, gang("g", 2)))
    patched = []
    write = api.release_pod

    async def release_pod(pod, patch):
        patched.append(cluster.time.now)
        await write(pod, patch)

    api.release_pod = release_pod
    began = cluster.time.now
    for _ in range(3600):
        await check(admission)
        if cluster.held:
            await cluster.offered("g-0")
        cluster.time.now += 1
        cluster.cluster.expire_plans()
        list(GangStages(cluster.gangs).expired())
    first = sum(at - began < 600 for at in patched)
    assert patched
    assert len(patched) - first < 3 * first
