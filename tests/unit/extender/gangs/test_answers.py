"""What kube-scheduler is answered about members of gangs, and what that leaves behind."""

import asyncio

import msgspec
import pytest

from extender.binding.binder import BindRefused
from extender.binding.timing import WRITE_SECONDS
from extender.binding.unknown_outcomes import Reconciler
from extender.decisions.filter import Filtered
from extender.decisions.gangs.members import AGAIN_SECONDS
from gpushare.errors import NoRoom, OutcomeUnknown
from gpushare.groups import reasons as texts
from gpushare.objects.model import Node
from gpushare.objects.scheduling import ContainerPort
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.scripted import ScriptedKube, changed

FOUR_GPUS = {"a": (16, 16), "b": (16, 16)}
TWO_ZONES = {"a": {"zone": "x"}, "b": {"zone": "y"}}


def names(gang: str, count: int) -> list[str]:
    return [f"{gang}-{number}" for number in range(count)]


def gang(name: str, count: int, *, units: int = 12, minimum: int | None = None, **more):
    least = count if minimum is None else minimum
    return [member(each, name, least, units=units, **more) for each in names(name, count)]


async def test_a_gang_that_fits_is_bound_as_a_whole_one_gpu_each():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 4))
    bound = await cluster.schedule(*names("g", 4))
    assert sorted(bound.values()) == ["a", "a", "b", "b"]
    assert cluster.held == 0


async def test_a_gang_keeps_nothing_before_it_has_its_members():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 4)[:3])
    assert await cluster.schedule(*names("g", 3)) == {}
    assert cluster.held == 0
    assert await cluster.offered("g-0") == ([], texts.FEW_MEMBERS.text)


async def test_sums_that_fit_no_gpu_do_not_count():
    cluster = GangCluster({"a": (16, 16), "b": (16, 16)})
    cluster.add(*gang("filler", 4, units=10))
    assert len(await cluster.schedule(*names("filler", 4))) == 4
    cluster.add(*gang("g", 3, units=8))
    assert await cluster.schedule(*names("g", 3)) == {}
    assert cluster.held == 0


async def test_of_two_gangs_that_do_not_fit_together_one_is_whole_and_the_other_keeps_nothing():
    cluster = GangCluster(FOUR_GPUS)
    first, second = gang("x", 3), gang("y", 3)
    cluster.add(*(pod for pair in zip(first, second, strict=True) for pod in pair))
    for _ in range(3):
        for pair in zip(names("x", 3), names("y", 3), strict=True):
            await cluster.schedule(*pair)
    assert sorted(cluster.bound()) == names("x", 3)
    assert cluster.held == 0


async def test_kube_scheduler_may_see_that_a_node_has_room_before_the_extender_does():
    cluster = GangCluster(FOUR_GPUS)
    well = cluster.nodes["b"]
    cluster.put_node(changed(well, spec={"unschedulable": True}))
    cluster.add(*gang("g", 4))
    assert await cluster.schedule(*names("g", 4)) == {}
    cluster.time.now += AGAIN_SECONDS
    asked = asyncio.create_task(cluster.offered("g-0"))
    await asyncio.sleep(0)
    cluster.put_node(well)
    assert (await asked)[0] != []


async def test_no_preemption_is_tried_for_a_member_on_any_node_of_the_cluster():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 9))
    found = await cluster.answers.filter(cluster.kube.pods["g-0"], ["a"])
    assert found.fitting == []
    assert set(found.final) == {"a", "b"}
    proposals = await cluster.answers.preempt(cluster.kube.pods["g-0"], {"a": ["uid-x"]})
    assert proposals.kept == {}


async def test_a_member_whose_node_is_not_offered_gets_a_slot_on_one_that_is():
    cluster = GangCluster({**FOUR_GPUS, "c": (16,)})
    cluster.add(*gang("g", 4))
    bound = await cluster.schedule(*names("g", 3))
    left = await cluster.schedule("g-3", without=set(bound.values()))
    assert set(left.values()).isdisjoint(bound.values())
    assert len(cluster.bound()) == 4


async def test_a_gang_starts_elsewhere_if_a_member_fits_no_node_near_its_slot():
    zones = {"a": {"zone": "x"}, "b": {"zone": "y"}}
    cluster = GangCluster(FOUR_GPUS, zones)
    cluster.add(*gang("g", 2, zone_key="zone"))
    fitting, _ = await cluster.offered("g-0")
    (first,) = fitting
    other = {"a": "b", "b": "a"}[first]
    bound = await cluster.schedule("g-1", "g-0", without={first})
    assert bound == {"g-0": other, "g-1": other}


async def test_no_member_is_bound_while_another_one_has_lost_its_slot():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 4))
    (at,), _ = await cluster.offered("g-0")
    cluster.cluster.ledger.drop_slot(cluster.kube.pods["g-1"].uid)
    with pytest.raises(NoRoom, match=texts.NO_ROOM.text):
        await cluster.bind("g-0", at)


async def test_a_member_without_slot_is_never_bound():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 4))
    with pytest.raises(NoRoom, match=texts.NO_SLOT.text):
        await cluster.bind("g-0", "a")


async def test_after_the_minimum_members_are_placed_one_by_one_in_the_zone_of_the_gang():
    zones = {"a": {"zone": "x"}, "b": {"zone": "y"}}
    cluster = GangCluster(FOUR_GPUS, zones)
    cluster.add(*gang("g", 2, minimum=1, units=10, zone_key="zone"))
    first = (await cluster.schedule("g-0"))["g-0"]
    cluster.add(*gang("g", 3, minimum=1, units=10, zone_key="zone")[2:])
    assert await cluster.schedule("g-1", "g-2") == {"g-1": first}
    assert (await cluster.offered("g-2"))[0] == []


async def test_a_member_that_dies_before_any_is_bound_takes_all_slots_with_it():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 4))
    await cluster.offered("g-0")
    assert cluster.held == 4
    cluster.delete("g-3")
    assert cluster.held == 0


async def test_members_that_only_kube_scheduler_can_judge_wait_until_all_have_been_offered_a_node():
    cluster = GangCluster(FOUR_GPUS)
    pods = [changed(pod, spec={"resource_claims": ({},)}) for pod in gang("g", 2)]
    cluster.add(*pods)
    assert await cluster.offered("g-0") == ([], texts.ONE_BY_ONE.text)
    assert len(await cluster.schedule("g-1")) == 1
    assert len(await cluster.schedule("g-0")) == 1


async def test_members_that_wait_for_others_to_be_asked_about_are_tried_again_by_themselves():
    cluster = GangCluster(FOUR_GPUS)
    pods = [changed(pod, spec={"resource_claims": ({},)}) for pod in gang("g", 2)]
    cluster.add(pods[0])
    assert await cluster.is_retried("g-0")  # another member may appear, which is no event
    cluster.time.now += 61
    assert not await cluster.is_retried("g-0")
    cluster.add(pods[1])
    assert await cluster.is_retried("g-0")
    plain = gang("plain", 2)
    cluster.add(plain[0])
    assert not await cluster.is_retried("plain-0")


async def test_a_pod_of_a_gang_that_the_watch_has_not_shown_is_tried_again():
    cluster = GangCluster(FOUR_GPUS)
    (pod,) = gang("g", 1)
    cluster.kube.pods["g-0"] = pod
    with pytest.raises(Exception, match="not known yet"):
        await cluster.offered("g-0")


async def test_another_gang_of_the_same_name_is_not_whole_because_the_first_one_was():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 2))
    await cluster.schedule("g-0", "g-1")
    cluster.terminate("g-0")
    cluster.terminate("g-1")
    cluster.add(member("new", "g", 2, units=1))
    assert await cluster.schedule("new") == {}


def with_host_port(pod):
    (main,) = pod.containers
    ports = (ContainerPort(host_port=8080),)
    return changed(pod, spec={"containers": (msgspec.structs.replace(main, ports=ports),)})


@pytest.mark.parametrize(("minimum", "placed"), [(3, 3), (4, 0)])
async def test_members_that_cannot_share_a_node_need_one_each(minimum, placed):
    cluster = GangCluster({"a": (16, 16), "b": (16, 16), "c": (16, 16)})
    cluster.add(*map(with_host_port, gang("g", minimum, units=2)))
    for _ in range(4):
        for name in names("g", minimum):
            # kube-scheduler does not offer a node on which the port is in use.
            await cluster.schedule(name, without=set(cluster.bound().values()))
    assert len(set(cluster.bound().values())) == len(cluster.bound()) == placed


async def test_a_member_without_gpu_memory_does_not_choose_the_zone():
    zones = {"a": {"zone": "x"}, "b": {"zone": "y"}}
    cluster = GangCluster({"a": (16, 16), "b": (4,)}, zones)
    server = member("g-server", "g", 3, units=None, zone_key="zone")
    cluster.add(changed(server, spec={"node_name": "b"}))
    cluster.add(*gang("g", 2, minimum=3, zone_key="zone"))
    assert await cluster.schedule("g-0", "g-1") == {"g-0": "a", "g-1": "a"}


async def test_a_part_of_a_plan_is_not_kept_when_the_rest_has_lost_its_room():
    cluster = GangCluster(FOUR_GPUS)
    cluster.add(*gang("g", 4, minimum=3, units=16))
    await cluster.offered("g-0")
    cluster.delete("g-2", "g-3")
    cluster.add(pod("single-0", 16), pod("single-1", 16))
    assert len(await cluster.schedule("single-0", "single-1")) == 2
    cluster.add(*gang("g", 3, minimum=3, units=16)[2:])
    assert (await cluster.offered("g-2"))[0] == []
    assert cluster.held == 0


@pytest.mark.parametrize("admits", [False, True])
async def test_a_waiting_gang_is_planned_again_after_a_second_or_when_it_changes(
    admits, monkeypatch
):
    cluster = GangCluster(FOUR_GPUS)
    cluster.gangs.admits = admits
    cluster.add(*gang("g", 5))
    plans = 0
    plan = cluster.planning.planner.plan

    def counted(ask):
        nonlocal plans
        plans += 1
        return plan(ask)

    monkeypatch.setattr(cluster.planning.planner, "plan", counted)

    async def ask_all() -> list[Filtered]:
        found = []
        for number, name in enumerate(names("g", 5)):
            cluster.add(pod(f"other-{plans}-{number}", 1, node="a"))  # each is a change
            found.append(await cluster.answers.filter(cluster.kube.pods[name], list(FOUR_GPUS)))
        return found

    answers = await ask_all()
    assert plans == 1
    assert not answers[0].is_retried
    # kube-scheduler may not hear of the change again: without Admission it must try again.
    assert {each.is_retried for each in answers[1:]} == {not admits}
    cluster.time.now += 1
    await ask_all()
    assert plans == 2
    cluster.add(*gang("g", 6, minimum=5)[5:])
    await ask_all()
    assert plans == 3


async def test_members_of_a_whole_gang_that_are_bound_at_once_are_in_one_zone():
    cluster = GangCluster({"a": (16,), "b": (16, 16)}, {"a": {"zone": "x"}, "b": {"zone": "y"}})
    server = member("server", "g", 1, units=None, zone_key="zone")
    workers = gang("g", 2, minimum=1, zone_key="zone")
    cluster.add(changed(server, spec={"node_name": "a"}), *workers)
    cluster.kube.outcomes = [OutcomeUnknown("no answer")]
    with pytest.raises(BindRefused):
        await cluster.bind("g-0", "b")
    with pytest.raises(NoRoom):
        await cluster.bind("g-1", "a")
    assert (await cluster.offered("g-1"))[0] == ["b"]


async def lose(cluster: GangCluster, name: str, at: str) -> Node:
    """Bind a pod without an answer, and delete the node; return the node."""
    cluster.kube.outcomes, cluster.kube.lands = [OutcomeUnknown("no answer")], False
    with pytest.raises(BindRefused):
        await cluster.bind(name, at)
    cluster.kube.lands = True
    gone = cluster.nodes[at]
    cluster.delete_node(at)
    return gone


async def test_members_are_tried_again_while_one_may_be_bound_to_a_node_that_is_gone():
    cluster = GangCluster(FOUR_GPUS, TWO_ZONES, kube=ScriptedKube())
    cluster.add(*gang("g", 3, minimum=2, zone_key="zone"))
    (at,), _ = await cluster.offered("g-0")
    gone = await lose(cluster, "g-0", at)
    (other,) = cluster.nodes
    for _ in range(3):
        await cluster.duties.check()
        for name in names("g", 3):
            assert (await cluster.offered(name))[0] == []
            assert await cluster.is_retried(name)
    with pytest.raises(NoRoom):
        await cluster.bind("g-1", other)
    cluster.put_node(gone)
    assert (await cluster.offered("g-1"))[0] == [at]


async def test_another_zone_is_used_once_no_member_was_bound_to_a_node_that_is_gone():
    cluster = GangCluster(FOUR_GPUS, TWO_ZONES, kube=ScriptedKube())
    cluster.add(*gang("g", 2, zone_key="zone"))
    (at,), _ = await cluster.offered("g-0")
    await lose(cluster, "g-0", at)
    assert await cluster.schedule(*names("g", 2)) == {}
    reconciler = Reconciler(cluster.cluster.state, cluster.binder, cluster.kube, cluster.time)
    while list(cluster.cluster.ledger.reserves()):
        await reconciler.settle()
        cluster.time.now += WRITE_SECONDS
    (other,) = cluster.nodes
    assert await cluster.schedule(*names("g", 2)) == {"g-0": other, "g-1": other}


async def test_a_member_of_a_whole_gang_waits_while_another_may_be_bound_to_a_node_that_is_gone():
    cluster = GangCluster({"a": (16,), "b": (16, 16)}, TWO_ZONES)
    server = member("server", "g", 1, units=None, zone_key="zone")
    cluster.add(changed(server, spec={"node_name": "a"}))
    cluster.add(*gang("g", 2, minimum=1, zone_key="zone"))
    gone = await lose(cluster, "g-0", "b")
    assert await cluster.offered("g-1") == ([], texts.UNKNOWN_ZONE.text)
    assert await cluster.is_retried("g-1")
    with pytest.raises(NoRoom, match=texts.UNKNOWN_ZONE.text):
        await cluster.bind("g-1", "a")
    cluster.put_node(gone)
    assert (await cluster.offered("g-1"))[0] == ["b"]
