"""What the leader does for gangs between kube-scheduler's calls."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import pytest

from extender.decisions.gangs.gangs import HELD_SECONDS
from extender.decisions.gangs.stages import GangStages
from extender.gangs import duties, takeover
from extender.settings.configuration import GangSettings
from gpushare.contract import (
    ANNOTATION_GANG,
    ANNOTATION_SLOT,
    GANG_COMPLETING,
    GANG_STARTING,
    GANG_WHOLE,
)
from gpushare.errors import ApiError
from gpushare.groups import reasons as texts
from gpushare.groups.model import GroupKey, PodGroup, Source
from gpushare.objects.model import OwnerReference, Pod
from gpushare.objects.scheduling import Taint
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.gangs.test_answers import gang, names
from tests.unit.extender.scripted import changed
from tests.waiting import eventually

POD_GROUP = PodGroup(GroupKey("default", Source.POD_GROUP, "g"), 4)
JOB = (OwnerReference(controller=True, kind="Job", name="train", uid="uid-train"),)
SIZES = {"a": (16, 16), "b": (16, 16), "c": (16, 16)}


class ListedKube:
    """What the API server says beside the watch: ended pods, and when pods were bound."""

    def __init__(self) -> None:
        self.ended: list[Pod] = []
        self.lists = 0
        self.bound_for = timedelta()
        self.bound_at: dict[str, timedelta] = {}  # ago, by the name of a pod
        now = datetime.now(UTC)
        self.server_date = format_datetime(now, usegmt=True)
        self._now = now

    async def list_page(self, collection, *, limit, next_page, seconds=60.0) -> bytes:
        self.lists += 1
        items = [json.loads(msgspec.json.encode(each)) for each in self.ended]
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    async def request(self, method, path) -> bytes:
        ago = self.bound_at.get(path.rsplit("/", 1)[1], self.bound_for)
        at = (self._now - ago).isoformat(timespec="seconds").replace("+00:00", "Z")
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        return json.dumps({"status": {"conditions": [condition]}}).encode()


def owned(pod: Pod) -> Pod:
    return changed(pod, {"owner_references": JOB})


async def begun(cluster: GangCluster, count: int = 4) -> str:
    """Bind the first member of a gang, and return its node."""
    cluster.add(*map(owned, gang("g", count)))
    (at,), _ = await cluster.offered("g-0")
    await cluster.bind("g-0", at)
    return at


@pytest.fixture
def cluster() -> GangCluster:
    return GangCluster(SIZES, kube=ListedKube())


async def test_a_slot_on_a_node_that_is_cordoned_is_replaced(cluster):
    cluster.add(*gang("g", 4))
    await cluster.offered("g-0")
    kept = {slot.node for hold in cluster.cluster.ledger.kept() for slot in hold.slots}
    lost = min(kept)
    cordoned = changed(cluster.nodes[lost], spec={"unschedulable": True})
    cluster.put_node(cordoned)
    await cluster.duties.check()
    slots = [slot for hold in cluster.cluster.ledger.kept() for slot in hold.slots]
    assert len(slots) == 4
    assert lost not in {slot.node for slot in slots}


async def test_a_gang_that_has_not_begun_lets_go_if_a_lost_slot_cannot_be_replaced(cluster):
    cluster.add(*gang("g", 6))
    await cluster.offered("g-0")
    assert cluster.held == 6
    taint = (Taint("broken", "NoExecute"),)
    cluster.put_node(changed(cluster.nodes["b"], spec={"taints": taint}))
    await cluster.duties.check()
    assert cluster.held == 0


async def test_a_hold_that_no_member_asks_for_expires_and_is_not_made_again_at_once(cluster):
    cluster.add(*gang("g", 4))
    await cluster.offered("g-0")
    cluster.time.now += HELD_SECONDS + 1
    cluster.cluster.expire_plans()
    await cluster.duties.check()
    assert cluster.held == 0
    assert await cluster.offered("g-0") == ([], texts.NO_ROOM.text)
    cluster.time.now += 10
    assert (await cluster.offered("g-0"))[0] != []


async def test_the_hold_of_a_gang_that_has_begun_does_not_expire(cluster):
    await begun(cluster)
    cluster.time.now += 250
    cluster.cluster.expire_plans()
    await cluster.duties.check()
    assert cluster.held == 3


async def test_a_gang_that_does_not_get_its_minimum_in_time_is_evicted_and_told_once():
    settings = GangSettings(complete_seconds=60)
    cluster = GangCluster(SIZES, gangs=settings, kube=ListedKube())
    await begun(cluster)
    cluster.time.now += 59
    await cluster.duties.check()
    assert cluster.kube.evicted == []
    cluster.time.now += 1
    await cluster.duties.check()
    assert cluster.kube.evicted == [("g-0", "default-g-0")]
    assert cluster.held == 0
    told = [event for event in cluster.events if event[1] == "GpushareGangBroken"]
    assert [name for name, _, _ in told] == ["g-0"]
    assert (await cluster.offered("g-1"))[1] == texts.BROKEN.text
    cluster.delete("g-0")
    cluster.add(owned(member("g-4", "g", 4, units=12)))
    cluster.time.now += 10
    assert len(await cluster.schedule("g-1", "g-2", "g-3", "g-4")) == 4


async def test_released_members_without_room_in_their_zone_begin_again_with_a_gate():
    cluster = GangCluster(
        SIZES,
        {"a": {"zone": "x"}, "b": {"zone": "y"}, "c": {"zone": "y"}},
        gangs=GangSettings(complete_seconds=60),
        kube=ListedKube(),
    )
    released = [
        changed(owned(pod), {"annotations": pod.annotations | {ANNOTATION_SLOT: "{}"}})
        for pod in gang("g", 2, zone_key="zone")
    ]
    bare = changed(released[1], {"owner_references": ()})
    tied = [changed(pod, spec={"node_selector": {"zone": "x"}}) for pod in (released[0], bare)]
    cluster.add(*tied)
    cluster.put_node(changed(cluster.nodes["a"], spec={"unschedulable": True}))
    assert (await cluster.offered("g-0"))[0] == []
    cluster.time.now += 59
    await cluster.duties.check()
    assert cluster.kube.evicted == []
    cluster.time.now += 1
    await cluster.duties.check()
    await cluster.duties.check()
    assert [name for name, _ in cluster.kube.evicted] == ["g-0"]
    told = [event for event in cluster.events if event[1] == "GpushareGangBroken"]
    assert len(told) == 1
    assert "no room for long in the zone into which it was released" in told[0][2]


async def test_a_bound_server_without_gpu_keeps_no_gang_in_a_zone_without_room():
    cluster = GangCluster(
        SIZES,
        {"a": {"zone": "x"}, "b": {"zone": "y"}},
        gangs=GangSettings(complete_seconds=60),
        kube=ListedKube(),
    )
    released = [
        changed(owned(pod), spec={"node_selector": {"zone": "x"}})
        for pod in gang("g", 2, minimum=3, zone_key="zone", annotations={ANNOTATION_SLOT: "{}"})
    ]
    server = owned(member("server", "g", 3, units=None, zone_key="zone", node="a"))
    cluster.put_node(changed(cluster.nodes["a"], spec={"unschedulable": True}))
    cluster.add(server, *released)
    assert (await cluster.offered("g-0"))[0] == []
    cluster.time.now += 60
    await cluster.duties.check()
    assert [name for name, _ in cluster.kube.evicted] == ["g-0", "g-1"]


async def test_bound_members_without_a_controller_are_not_evicted():
    settings = GangSettings(complete_seconds=60)
    cluster = GangCluster(SIZES, gangs=settings, kube=ListedKube())
    cluster.add(*gang("g", 4))
    (at,), _ = await cluster.offered("g-0")
    await cluster.bind("g-0", at)
    cluster.time.now += 61
    await cluster.duties.check()
    assert cluster.kube.evicted == []
    cluster.time.now += 10
    assert len(await cluster.schedule(*names("g", 4))) == 4


async def test_a_new_leader_keeps_room_for_what_has_begun_before_its_first_answer(cluster):
    await begun(cluster)
    heir = GangCluster(SIZES, kube=ListedKube())
    heir.add(*cluster.kube.pods.values())
    assert heir.held == 0
    await heir.duties.take_over()
    assert heir.held == 3
    heir.add(*gang("other", 4))
    assert (await heir.offered("other-0"))[0] == []
    assert len(await heir.schedule(*names("g", 4))) == 4


async def taken_over(cluster: GangCluster, *pods: Pod, hours: int = 1) -> GangCluster:
    """Return the cluster before a new leader, some hours after the first member was bound."""
    kube = ListedKube()
    kube.bound_for = timedelta(hours=hours)
    heir = GangCluster(SIZES, kube=kube)
    heir.add(*(pods or cluster.kube.pods.values()))
    await heir.duties.take_over()
    return heir


async def test_a_new_leader_does_not_evict_a_gang_that_was_complete(cluster):
    cluster.add(*map(owned, gang("g", 4)))
    await cluster.schedule(*names("g", 4))
    cluster.delete("g-0", "g-1", "g-2")
    assert cluster.kube.pods["g-3"].annotations[ANNOTATION_GANG] == GANG_WHOLE
    heir = await taken_over(cluster)
    heir.time.now += 1000
    await heir.duties.check()
    assert heir.kube.evicted == []
    heir.add(owned(member("g-4", "g", 4, units=12)))
    assert await heir.schedule("g-4")


async def test_a_new_leader_undoes_a_gang_that_was_never_complete(cluster):
    await begun(cluster)
    heir = await taken_over(cluster)
    await heir.duties.check()
    assert heir.kube.evicted == [("g-0", "default-g-0")]


async def test_a_gang_that_an_older_release_bound_counts_as_complete_once_its_time_is_over(cluster):
    await begun(cluster)
    first, *others = cluster.kube.pods.values()
    notes = {key: text for key, text in first.annotations.items() if key != ANNOTATION_GANG}
    heir = await taken_over(cluster, changed(first, {"annotations": notes}), *others)
    heir.time.now += 1000
    await heir.duties.check()
    assert heir.kube.evicted == []
    assert heir.held == 0


@pytest.mark.parametrize("hours", [1, 10])
async def test_a_gang_that_has_worked_and_lost_the_member_that_completed_it_is_not_evicted(
    cluster, hours
):
    cluster.add(*map(owned, gang("g", 4)))
    await cluster.schedule(*names("g", 4))
    cluster.delete("g-3")
    # After long, a member beyond the minimum that never had room may have hidden the loss.
    created = "2999-01-01T00:00:00Z" if hours == 1 else "2026-01-01T00:00:00Z"
    late = owned(member("g-4", "g", 4, units=12, created=created))
    heir = await taken_over(cluster, *cluster.kube.pods.values(), late, hours=hours)
    heir.time.now += 1000
    await heir.duties.check()
    assert heir.kube.evicted == []
    assert await heir.schedule("g-4")


async def test_a_gang_that_lost_a_member_while_its_last_one_was_bound_gets_its_minimum_at_one_time(
    cluster,
):
    """Nobody knows whether the minimum was ever bound."""
    at = await begun(cluster, 3)
    said = cluster.kube.pods["g-0"].annotations | {ANNOTATION_GANG: GANG_COMPLETING}
    first = changed(cluster.kube.pods["g-0"], {"annotations": said})
    kube = ListedKube()
    kube.bound_for = timedelta(seconds=10)
    heir = GangCluster({at: (16, 16)}, kube=kube)
    late = owned(member("g-3", "g", 3, units=12, created="2999-01-01T00:00:00Z"))
    heir.add(first, cluster.kube.pods["g-1"], late)
    await heir.duties.take_over()
    assert await heir.schedule("g-1", "g-3") == {}
    heir.time.now += GangSettings().complete_seconds
    await heir.duties.check()
    assert heir.kube.evicted == []
    assert await heir.schedule("g-1", "g-3") == {"g-1": at}


async def test_what_users_write_about_a_gang_does_not_survive_the_binding(cluster):
    forged = {"annotations": {ANNOTATION_GANG: GANG_WHOLE}}
    cluster.add(*(changed(owned(each), forged) for each in gang("g", 4)))
    (at,), _ = await cluster.offered("g-0")
    await cluster.bind("g-0", at)
    assert cluster.kube.pods["g-0"].annotations[ANNOTATION_GANG] == GANG_STARTING
    heir = await taken_over(cluster)
    await heir.duties.check()
    assert heir.kube.evicted == [("g-0", "default-g-0")]


async def test_the_time_of_a_gang_goes_on_after_a_takeover(cluster):
    await begun(cluster)
    kube = ListedKube()
    kube.bound_for = timedelta(seconds=40)
    heir = GangCluster(SIZES, gangs=GangSettings(complete_seconds=60), kube=kube)
    heir.add(*cluster.kube.pods.values())
    await heir.duties.take_over()
    heir.time.now += 18
    await heir.duties.check()
    assert heir.kube.evicted == []
    heir.time.now += 3
    await heir.duties.check()
    assert heir.kube.evicted == [("g-0", "default-g-0")]


async def test_a_member_without_gpu_that_was_bound_long_ago_does_not_make_a_gang_whole(cluster):
    kube = ListedKube()
    kube.bound_for = timedelta(hours=1)
    kube.bound_at["g-0"] = timedelta(seconds=5)
    heir = GangCluster(SIZES, kube=kube)
    await begun(cluster, 3)
    server = owned(member("server", "g", 3, units=None))
    heir.add(*cluster.kube.pods.values(), changed(server, spec={"node_name": "a"}))
    await heir.duties.take_over()
    assert heir.held == 1


async def test_members_beyond_the_minimum_take_no_room_from_other_gangs_in_a_takeover():
    cluster = GangCluster({"a": (16, 16, 16, 16)}, kube=ListedKube())
    for name in ("g", "h"):
        cluster.add(*map(owned, gang(name, 2)))
        (at,), _ = await cluster.offered(f"{name}-0")
        await cluster.bind(f"{name}-0", at)
    heir = GangCluster({"a": (16, 16, 16, 16)}, kube=ListedKube())
    more = [owned(member(f"g-{n}", "g", 2, units=12)) for n in (2, 3)]
    heir.add(*cluster.kube.pods.values(), *more)
    await heir.duties.take_over()
    heir.add(*heir.kube.pods.values())
    assert len(await heir.schedule("h-1")) == 1


async def test_a_member_that_succeeds_before_others_are_bound_is_no_reason_for_eviction(cluster):
    await begun(cluster)
    cluster.listed.ended = [owned(member("g-0", "g", 4, units=12, phase="Succeeded"))]
    await cluster.schedule("g-1", "g-2")
    cluster.delete("g-0")
    await cluster.duties.check()
    cluster.time.now += 1
    await cluster.duties.check()
    assert len(await cluster.schedule("g-3")) == 1
    cluster.time.now += 1000
    await cluster.duties.check()
    assert cluster.kube.evicted == []


async def test_a_gang_that_was_whole_while_the_watch_was_interrupted_is_not_evicted(cluster):
    await begun(cluster)
    await cluster.schedule("g-1", "g-2")
    cluster.listed.ended = [owned(member("g-3", "g", 4, units=12, phase="Succeeded"))]
    cluster.delete("g-3")
    cluster.add(owned(member("next", "g", 4, units=12)))
    cluster.time.now += 1000
    await cluster.duties.check()
    assert cluster.kube.evicted == []


async def test_nobody_is_evicted_before_the_api_server_says_who_has_succeeded(cluster):
    await begun(cluster)

    async def unanswered(*_, **__):
        raise ApiError("no answer")

    real, cluster.listed.list_page = cluster.listed.list_page, unanswered
    cluster.time.now += 1000
    await cluster.duties.check()
    assert cluster.kube.evicted == []
    cluster.listed.list_page = real
    cluster.time.now += 60
    await cluster.duties.check()
    assert [name for name, _ in cluster.kube.evicted] == ["g-0"]


async def test_a_member_that_replaces_a_failed_one_is_placed_though_the_others_have_succeeded(
    cluster,
):
    cluster.listed.ended = [
        owned(member(f"g-{n}", "g", 4, units=12, phase="Succeeded")) for n in range(3)
    ]
    cluster.add(owned(member("again", "g", 4, units=12)))
    assert await cluster.offered("again") == ([], texts.FEW_MEMBERS.text)
    cluster.time.now += 1
    await cluster.duties.check()
    assert len(await cluster.schedule("again")) == 1


async def test_a_member_that_has_succeeded_counts_once_though_the_watch_is_behind(cluster):
    await begun(cluster)
    await cluster.schedule("g-1", "g-2")
    cluster.delete("g-3")
    cluster.listed.ended = [owned(member("g-0", "g", 4, units=12, phase="Succeeded"))]
    await cluster.duties.check()
    cluster.time.now += 1
    await cluster.duties.check()
    cluster.delete("g-0")
    cluster.time.now += 1000
    await cluster.duties.check()
    assert sorted(name for name, _ in cluster.kube.evicted) == ["g-1", "g-2"]


async def test_members_of_an_earlier_run_do_not_count(cluster):
    earlier = (OwnerReference(controller=True, kind="Job", name="train", uid="uid-earlier"),)
    cluster.listed.ended = [
        changed(
            member(f"g-{n}", "g", 4, units=12, phase="Succeeded"), {"owner_references": earlier}
        )
        for n in range(3)
    ]
    cluster.add(owned(member("again", "g", 4, units=12)))
    await cluster.offered("again")
    cluster.time.now += 1
    await cluster.duties.check()
    assert await cluster.schedule("again") == {}
    cluster.time.now += 10
    await cluster.duties.check()
    assert cluster.listed.lists == 1


async def test_waiting_with_a_server_that_needs_no_gpu_is_no_reason_for_eviction():
    settings = GangSettings(complete_seconds=60)
    cluster = GangCluster({"a": (16,)}, gangs=settings, kube=ListedKube())
    server = owned(member("server", "g", 3, units=None))
    cluster.add(changed(server, spec={"node_name": "a"}), *map(owned, gang("g", 2, minimum=3)))
    await cluster.schedule("g-0", "g-1")
    cluster.time.now += 600
    await cluster.duties.check()
    assert cluster.kube.evicted == []


async def test_a_gang_whose_pod_group_comes_late_is_not_taken_for_whole(cluster):
    pods = [member(f"g-{n}", source=Source.POD_GROUP, units=12) for n in range(4)]
    cluster.add(changed(pods[0], spec={"node_name": "a"}), *pods[1:])
    groups = cluster.cluster.state.groups
    groups.put_pod_group(POD_GROUP)
    await cluster.duties.check()
    group = groups.of(pods[0].uid)
    assert not cluster.gangs.record(group).is_whole
    groups.put_pod_group(replace(POD_GROUP, minimum=1))
    await cluster.duties.check()
    assert cluster.gangs.record(group).is_whole


async def test_a_member_that_fitted_nowhere_once_is_tried_again(cluster):
    cluster.add(*gang("g", 2))
    await cluster.offered("g-0")
    await cluster.offered("g-1", ())
    assert cluster.held == 0
    cluster.time.now += 11
    assert len(await cluster.schedule("g-0", "g-1")) == 2


async def test_groups_of_pods_without_gpu_memory_are_left_to_others():
    """Kueue, coscheduling and jobs with whole GPUs use the same labels."""
    cluster = GangCluster(SIZES, gangs=GangSettings(complete_seconds=60), kube=ListedKube())
    pods = [owned(member(f"g-{n}", "g", 3, units=None)) for n in range(3)]
    cluster.add(changed(pods[0], spec={"node_name": "a"}), *pods[1:])
    assert list(filter(None, GangStages(cluster.gangs).without_plan())) == []
    cluster.time.now += 61
    await cluster.duties.check()
    assert (cluster.kube.evicted, cluster.events, cluster.held) == ([], [], 0)
    assert list(cluster.cluster.state.gangs.views()) == []
    worker = owned(member("worker", "g", 4))
    cluster.add(worker)
    [shown] = cluster.cluster.state.gangs.views()
    assert (shown.members, shown.bound) == (4, 1)


async def test_members_of_a_gang_that_was_whole_are_placed_after_its_pod_group_is_deleted(cluster):
    groups = cluster.cluster.state.groups
    groups.put_pod_group(POD_GROUP)
    pods = gang("g", 5, source=Source.POD_GROUP, units=4)
    cluster.add(*pods[:4])
    assert len(await cluster.schedule(*names("g", 4))) == 4
    groups.drop_pod_group(POD_GROUP.key)
    await cluster.duties.check()
    cluster.delete("g-0")
    cluster.add(pods[4])
    assert list(await cluster.schedule("g-4")) == ["g-4"]


async def test_a_plan_for_a_gang_that_has_gone_meanwhile_leaves_nothing_behind(cluster):
    cluster.add(*gang("g", 2))
    group = cluster.gangs.group_of(cluster.kube.pods["g-0"])
    for name in names("g", 2):
        cluster.delete(name)
    assert not await cluster.planning.plan(group)
    assert cluster.gangs.known(group) is None
    assert cluster.held == 0


class SlowKube(ListedKube):
    """An API server that does not answer before ``answers`` is set, lists only of gang ``slow``."""

    def __init__(self, slow: str = "") -> None:
        super().__init__()
        self.answers, self.slow = asyncio.Event(), slow
        self.gets, self.now, self.most = [], 0, 0

    async def list_page(self, collection, *, limit, next_page, seconds=60.0) -> bytes:
        if self.slow in str(collection):
            await self.answers.wait()
        return await super().list_page(collection, limit=limit, next_page=next_page)

    async def request(self, method, path) -> bytes:
        self.gets.append(path)
        self.now += 1
        self.most = max(self.most, self.now)
        await self.answers.wait()
        self.now -= 1
        return await super().request(method, path)


async def test_an_answer_that_the_api_server_owes_delays_no_other_duty(monkeypatch):
    monkeypatch.setattr(duties, "EVERY_SECONDS", 0.001)
    kube = SlowKube(slow="few")
    cluster = GangCluster(SIZES, gangs=GangSettings(complete_seconds=60), kube=kube)
    await begun(cluster)
    cluster.add(*map(owned, gang("few", 2, minimum=3)))
    await cluster.offered("few-0")
    cluster.time.now += 1
    running = asyncio.create_task(cluster.duties.run())
    kept = {slot.node for hold in cluster.cluster.ledger.kept() for slot in hold.slots}
    lost = min(kept - {cluster.kube.pods["g-0"].node})
    cluster.put_node(changed(cluster.nodes[lost], spec={"unschedulable": True}))
    await eventually(
        lambda: (
            cluster.held == 3
            and lost
            not in {slot.node for hold in cluster.cluster.ledger.kept() for slot in hold.slots}
        )
    )
    cluster.time.now += 60
    await eventually(lambda: cluster.kube.evicted == [("g-0", "default-g-0")])
    running.cancel()


async def test_a_gang_that_lacks_members_is_listed_again_after_five_seconds(cluster):
    cluster.add(*map(owned, gang("g", 4)[:1]))
    await cluster.offered("g-0")
    cluster.time.now += 1
    await cluster.duties.check()
    assert cluster.listed.lists == 1
    cluster.add(*map(owned, gang("g", 4)[1:2]))
    await cluster.duties.check()
    assert cluster.listed.lists == 1
    cluster.time.now += 5
    await cluster.duties.check()
    await cluster.duties.check()
    assert cluster.listed.lists == 2


async def begun_gangs(count: int, kube: ListedKube) -> GangCluster:
    """Two members of each gang are bound, of three."""
    sizes = {f"n{number}": (16, 16, 16) for number in range(count)}
    first = GangCluster(sizes, kube=ListedKube())
    for number in range(count):
        first.add(*map(owned, gang(f"g{number}", 3)))
        await first.schedule(*names(f"g{number}", 2))
    heir = GangCluster(sizes, kube=kube)
    heir.add(*first.kube.pods.values())
    return heir


async def test_takeover_asks_once_about_each_begun_gang_and_sixteen_at_once(monkeypatch):
    kube = SlowKube()
    heir = await begun_gangs(40, kube)
    taking = asyncio.create_task(heir.duties.take_over())
    await asyncio.sleep(0.01)
    kube.answers.set()
    await taking
    assert len(kube.gets) == len(set(kube.gets)) == 40
    assert kube.most <= takeover.AT_ONCE
    assert heir.held == 40


async def test_what_the_api_server_does_not_answer_at_takeover_is_asked_later(monkeypatch):
    monkeypatch.setattr(takeover, "MOST_SECONDS", 0.02)
    kube = SlowKube()
    kube.bound_for = timedelta(hours=1)
    heir = await begun_gangs(3, kube)
    await heir.duties.take_over()
    assert heir.held == 3  # as if they had begun just now
    kube.answers.set()
    await heir.duties.check()
    await heir.duties.check()
    assert len(heir.kube.evicted) == 6  # their time is over
    assert heir.held == 0


async def test_no_plan_is_kept_for_a_gang_that_was_broken_while_it_was_made(cluster):
    await begun(cluster)
    group = cluster.cluster.state.groups.of("default-g-1")
    cluster.cluster.ledger.drop_slot("default-g-1")
    planning = asyncio.create_task(cluster.planning.plan(group))
    await asyncio.sleep(0)
    cluster.gangs.broke(group)
    assert not await planning
    assert cluster.held == 0


async def test_a_begun_gang_without_room_is_planned_again_less_and_less_often(cluster, monkeypatch):
    await begun(cluster)
    for node in set(SIZES):
        cluster.put_node(changed(cluster.nodes[node], spec={"unschedulable": True}))
    plan, plans = cluster.planning.planner.plan, []

    def counted(ask):
        plans.append(cluster.time.now)
        return plan(ask)

    monkeypatch.setattr(cluster.planning.planner, "plan", counted)
    for number in range(1200):  # ten times a second, for two minutes
        cluster.add(pod(f"other-{number}", 1, node="a"))
        await cluster.duties.check()
        cluster.time.now += 0.1
    assert len(plans) < 15
    for node in set(SIZES):
        cluster.put_node(changed(cluster.nodes[node], spec={"unschedulable": False}))
    for _ in range(310):
        cluster.add(pod("last", 1, node="a"))
        await cluster.duties.check()
        cluster.time.now += 0.1
    assert cluster.held == 3


async def test_a_begun_gang_that_changes_is_planned_at_once(cluster):
    await begun(cluster, 4)
    for node in set(SIZES):
        cluster.put_node(changed(cluster.nodes[node], spec={"unschedulable": True}))
    for number in range(100):
        cluster.add(pod(f"other-{number}", 1, node="a"))
        await cluster.duties.check()
        cluster.time.now += 0.1
    for node in set(SIZES):
        cluster.put_node(changed(cluster.nodes[node], spec={"unschedulable": False}))
    cluster.delete("g-3")
    cluster.add(*map(owned, gang("g", 5, minimum=4)[4:]))
    await cluster.duties.check()
    assert cluster.held == 3
