"""Gangs that are described wrongly or changed: by any source they wait, and delay nobody."""

import pytest

from gpushare.groups import reasons
from gpushare.groups.model import MOST_MEMBERS, Source
from gpushare.objects.scheduling import SchedulingGate
from tests.unit.extender.gangs.sources import Stage
from tests.unit.extender.scripted import changed

FOUR_GPUS = {"a": (16, 16), "b": (16, 16)}
UNSTATED = {
    Source.NATIVE: reasons.NO_POD_GROUP,
    Source.POD_GROUP: reasons.NO_POD_GROUP,
    Source.LABELS: reasons.NO_MINIMUM,
    Source.KUEUE: reasons.NO_COUNT,
}
UNREADABLE = {
    Source.NATIVE: reasons.WRONG_POD_GROUP,
    Source.POD_GROUP: reasons.WRONG_POD_GROUP,
    Source.LABELS: reasons.WRONG_MINIMUM,
    Source.KUEUE: reasons.WRONG_COUNT,
}


async def test_a_gang_that_lacks_members_is_refused_in_the_same_words_each_time(source):
    stage = Stage(source, False, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (4, 4), minimum=3))
    for _ in range(10):
        assert await stage.cluster.offered("x-0") == ([], reasons.FEW_MEMBERS.text)


@pytest.mark.parametrize("number", [1, 3])
async def test_members_with_a_gate_of_others_do_not_count_before_it_is_removed(
    source, is_gated, number
):
    stage = Stage(source, is_gated, FOUR_GPUS)
    pods = stage.gang("x", (4,) * 3)
    gates = (*(pods[0].spec.scheduling_gates or ()), SchedulingGate("example.com/other"))
    others = [changed(pod, spec={"scheduling_gates": gates}) for pod in pods[:number]]
    stage.cluster.add(*others, *pods[number:], *stage.gang("y", (16,) * 4))
    assert await stage.settle() == {"y": 4}
    await stage.check_waits("x")
    stage.cluster.delete(*stage.cluster.bound())
    stage.cluster.add(*pods[:number])
    assert await stage.settle() == {"x": 3}


@pytest.mark.parametrize("minimum", [None, 0, -1, "three", MOST_MEMBERS + 1])
async def test_a_gang_without_a_minimum_waits_with_a_reason_and_delays_nobody(
    source, is_gated, minimum
):
    stage = Stage(source, is_gated, FOUR_GPUS)
    if minimum is None:
        stage.cluster.add(*(stage.member(f"x-{n}", "x", None, units=4) for n in range(3)))
    else:
        stage.cluster.add(*stage.gang("x", (4,) * 3, minimum))
    stage.cluster.add(*stage.gang("y", (16,) * 4))
    assert await stage.settle() == {"y": 4}
    await stage.check_waits("x")
    why = (UNSTATED if minimum is None else UNREADABLE)[source]
    if not is_gated:
        assert await stage.cluster.offered("x-0") == ([], why.text)
    [(name, told)] = stage.told()
    assert name == "x-0"
    assert why.text in told
    stage.cluster.delete(*stage.cluster.bound())
    stage.cluster.add(*stage.gang("x", (4,) * 3))
    assert await stage.settle() == {"x": 3}


async def test_ten_thousand_pods_of_one_gang_wait_and_delay_nobody(is_gated):
    stage = Stage(Source.LABELS, is_gated, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (1,) * 10_000, minimum=2))
    stage.cluster.add(*stage.gang("y", (16,) * 4))
    assert await stage.settle() == {"y": 4}
    assert stage.cluster.held == 0
    [(_, told)] = stage.told()
    assert reasons.TOO_MANY.text in told


async def test_a_large_gang_delays_no_events_on_pods_of_others(is_gated):
    stage = Stage(Source.LABELS, is_gated, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (12,) * 512), stage.single("large", 20))
    assert await stage.settle() == {}
    assert {name for name, _ in stage.told()} == {"x-0", "large"}


async def test_another_reason_for_which_a_gang_waits_is_told_after_a_while(is_gated):
    stage = Stage(Source.LABELS, is_gated, {"a": (16,)})
    stage.cluster.add(*stage.gang("x", (12,) * 2, zone_key="zone"))
    await stage.settle()
    [(_, told)] = stage.told()
    assert "has the label zone" in told
    stage.cluster.put_node(changed(stage.cluster.nodes["a"], {"labels": {"zone": "z"}}))
    await stage.settle()
    stage.cluster.time.now += 60
    [_, (_, told)] = stage.told()
    assert "zone z has room for 1" in told


async def test_gangs_of_one_name_in_two_namespaces_have_nothing_in_common(source, is_gated):
    stage = Stage(source, is_gated, FOUR_GPUS)
    for namespace, count in (("here", 2), ("there", 3)):
        stage.state("x", 3, namespace)
        names = [f"{namespace}-{number}" for number in range(count)]
        stage.cluster.add(
            *(stage.member(each, "x", 3, units=4, namespace=namespace) for each in names)
        )
    assert await stage.settle() == {"there": 3}
    await stage.check_waits("here")


async def test_a_gang_is_as_important_as_its_least_important_member(source, is_gated):
    stage = Stage(source, is_gated, {"a": (300,)})
    important, other = stage.gang("x", (100, 100))
    stage.cluster.add(
        changed(important, spec={"priority": 9}),
        changed(other, spec={"priority": 1}),
        *stage.gang("y", (100, 100), priority=5),
    )
    # Without gates kube-scheduler decides whom it asks about first.
    assert await stage.settle() == ({"y": 2} if is_gated else {"x": 2})


@pytest.mark.parametrize("minimum", [None, 5])
async def test_room_is_given_back_if_the_minimum_is_withdrawn_or_not_reached_any_more(
    source, is_gated, minimum
):
    stage = Stage(source, is_gated, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (16,) * 4))
    await stage.keep_room("x")
    if minimum is None:
        stage.unstate("x")
    else:
        stage.state("x", minimum)
    for pod in list(stage.of("x")):
        stated = stage.member(pod.metadata.name, "x", minimum, units=16)
        notes = {"labels": stated.labels, "annotations": stated.annotations}
        stage.cluster.add(changed(pod, notes))
    stage.cluster.add(*stage.gang("y", (16,) * 4))
    assert await stage.settle() == {"y": 4}
    await stage.check_waits("x")


async def test_a_member_that_changes_its_gang_is_placed_with_the_other_one(source, is_gated):
    stage = Stage(source, is_gated, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (12,) * 3))
    await stage.keep_room("x")
    stage.state("y", 2)
    stage.cluster.add(*(stage.member(name, "y", 2, units=12) for name in ("x-2", "y-0")))
    await stage.settle()
    assert sorted(stage.cluster.bound()) == ["x-2", "y-0"]
    assert stage.cluster.held == 0
