"""What is promised of gangs, by whatever they are stated, with gpushare's gate and without."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.settings.configuration import GangSettings, ZoneRoleSetting
from extender.wire import BindingArgs
from gpushare.errors import Conflict, NoRoom
from gpushare.groups.model import MOST_MEMBERS, Source
from gpushare.objects.model import Pod
from tests.unit.extender.gangs.sources import Stage
from tests.unit.extender.scripted import changed

EIGHT_GPUS = {"a": (1,) * 8}
FOUR_GPUS = {"a": (16, 16), "b": (16, 16)}
ONE_GPU = {"a": (300,)}


@dataclass(frozen=True)
class Gang:
    """``first_needs`` is the node selector of the first member."""

    amounts: tuple[int, ...]
    minimum: int | None = None
    priority: int = 0
    first_needs: Mapping[str, str] = field(default_factory=dict)

    def pods(self, stage: Stage, name: str) -> list[Pod]:
        first, *more = stage.gang(name, self.amounts, self.minimum, priority=self.priority)
        return [changed(first, spec={"node_selector": dict(self.first_needs)}), *more]


@dataclass(frozen=True)
class Singles:
    """Pods that belong to no gang."""

    amounts: tuple[int, ...]
    priority: int = 0

    def pods(self, stage: Stage, name: str) -> list[Pod]:
        sizes = enumerate(self.amounts)
        return [stage.single(f"{name}-{n}", units, self.priority) for n, units in sizes]


@dataclass(frozen=True)
class Case:
    """The nodes' GPUs, how much of each is used, the pods, and how many of them are bound."""

    sizes: Mapping[str, tuple[int, ...]]
    pods: Mapping[str, Gang | Singles]
    bound: Mapping[str, int]
    used: int = 0


CASES = {
    "a gang without room beside one that fits": Case(
        ONE_GPU, {"x": Gang((50,) * 3), "y": Gang((100,) * 4)}, {"x": 3}
    ),
    "several gangs without room": Case(
        ONE_GPU,
        {"x": Gang((50,) * 3), "y": Gang((100,) * 4), "z": Gang((100,) * 4)},
        {"x": 3},
    ),
    "a gang that lacks a member beside single pods": Case(
        ONE_GPU, {"x": Gang((50,) * 3, minimum=4), "y": Singles((100, 100))}, {"y": 2}
    ),
    "a more important gang": Case(
        ONE_GPU, {"x": Gang((50,) * 3), "y": Gang((50,) * 4, priority=5)}, {"y": 4}
    ),
    "more important single pods": Case(
        ONE_GPU, {"x": Gang((50,) * 3), "y": Singles((100,) * 3, priority=5)}, {"y": 3}
    ),
    "less important single pods": Case(
        ONE_GPU, {"y": Singles((100,) * 3), "x": Gang((50,) * 3, priority=5)}, {"x": 3, "y": 1}
    ),
    "a large gang that fits nowhere before a small one": Case(
        {"a": (6,), "b": (2,), "c": (2,), "d": (2,)},
        {"x": Gang((4,) * 6), "y": Gang((2,))},
        {"y": 1},
    ),
    "more GPUs than one node has free": Case(
        EIGHT_GPUS, {"x": Gang((1,) * 10), "y": Gang((1,) * 4)}, {"y": 4}
    ),
    "as many members as are needed": Case(FOUR_GPUS, {"x": Gang((4,) * 3)}, {"x": 3}),
    "more members than are needed": Case(FOUR_GPUS, {"x": Gang((4,) * 4, minimum=3)}, {"x": 4}),
    "a GPU for each member": Case(FOUR_GPUS, {"x": Gang((12,) * 4)}, {"x": 4}),
    "room on GPUs that are in use": Case(FOUR_GPUS, {"x": Gang((6,) * 4)}, {"x": 4}, used=10),
    "too little room on each GPU": Case(FOUR_GPUS, {"x": Gang((8,) * 3)}, {}, used=10),
    "more than is free in all": Case(FOUR_GPUS, {"x": Gang((8,) * 4)}, {}, used=10),
    "pairs that fill GPUs exactly": Case({"a": (16, 16)}, {"x": Gang((10, 6, 6, 10))}, {"x": 4}),
    "triples that fill GPUs exactly": Case(
        {"a": (10, 10)}, {"x": Gang((4, 4, 3, 3, 3, 3))}, {"x": 6}
    ),
    "a master that fits nowhere": Case(
        FOUR_GPUS,
        {"x": Gang((1, 1), first_needs={"disk": "none"}), "y": Gang((16,) * 4)},
        {"y": 4},
    ),
    "a gang that never has as many members as it needs": Case(
        FOUR_GPUS, {"x": Gang((4,) * 3, minimum=MOST_MEMBERS), "y": Gang((16,) * 4)}, {"y": 4}
    ),
    "a member that fits nowhere and is not needed": Case(
        {"a": (2,)}, {"x": Gang((1,) * 3, minimum=2, first_needs={"disk": "none"})}, {"x": 2}
    ),
}


@pytest.mark.parametrize("in_turns", [False, True], ids=["one after another", "in turns"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_what_fits_as_a_whole_is_placed_and_all_others_keep_nothing(
    source, is_gated, case, in_turns
):
    stage = Stage(source, is_gated, case.sizes)
    if case.used:
        cards = sum(map(len, case.sizes.values()))
        stage.cluster.add(*(stage.single(f"user-{n}", case.used) for n in range(cards)))
        assert await stage.settle() == {"user": cards}
    made = [each.pods(stage, name) for name, each in case.pods.items()]
    created = zip_longest(*made) if in_turns else made
    stage.cluster.add(*(each for some in created for each in some if each is not None))
    bound = await stage.settle()
    del bound["user"]
    assert bound == Counter(case.bound)
    for name in case.pods.keys() - bound.keys():
        await stage.check_waits(name)
    assert stage.cluster.held == 0


@settings(max_examples=100)
@given(
    st.permutations("xxxxyyyy"),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from(Source),
    st.booleans(),
)
async def test_of_two_gangs_that_exclude_each_other_one_is_whole_and_then_the_other(
    order, is_tried, source, is_gated
):
    stage = Stage(source, is_gated, FOUR_GPUS)
    pods = {name: iter(stage.gang(name, (12,) * 4)) for name in "xy"}
    for name, then in zip(order, is_tried, strict=True):
        stage.cluster.add(next(pods[name]))
        if then:
            await stage.step()
    (first,) = bound = await stage.settle()
    (second,) = {"x", "y"} - {first}
    assert bound == {first: 4}
    await stage.check_waits(second)
    stage.cluster.delete(*stage.cluster.bound())
    assert await stage.settle() == {second: 4}


async def test_no_member_is_bound_once_another_one_that_is_needed_is_deleted(source, is_gated):
    stage = Stage(source, is_gated, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (12,) * 3))
    await stage.keep_room("x")
    offers = {name: (await stage.cluster.offered(name))[0] for name in ("x-0", "x-1")}
    stage.cluster.delete("x-2")
    assert stage.cluster.held == 0
    for name, (node,) in offers.items():
        with pytest.raises(NoRoom):
            await stage.cluster.bind(name, node)
    assert stage.cluster.bound() == {}


@pytest.mark.parametrize("is_watched", [False, True])
async def test_a_member_that_is_bound_again_stays_where_it_is(source, is_gated, is_watched):
    stage = Stage(source, is_gated, FOUR_GPUS)
    stage.cluster.add(*stage.gang("x", (12,) * 4))
    await stage.keep_room("x")
    (node,), _ = await stage.cluster.offered("x-0")
    args = BindingArgs("x-0", "default", "default-x-0", node)
    await stage.cluster.binder.bind(args)
    bound = stage.cluster.kube.pods["x-0"]
    if is_watched:
        stage.cluster.add(bound)
    stage.cluster.kube.outcomes, stage.cluster.kube.lands = [Conflict("is bound", code=409)], False
    await stage.cluster.binder.bind(args)
    stage.cluster.kube.outcomes, stage.cluster.kube.lands = [], True
    stage.cluster.add(bound)
    assert await stage.settle() == {"x": 4}
    assert stage.cluster.kube.pods["x-0"].annotations == bound.annotations


IN_ZONES = {"a1": {"zone": "a"}, "a2": {"zone": "a"}, "b1": {"zone": "b"}}


async def test_all_members_are_in_one_zone_or_wait(source, is_gated):
    stage = Stage(source, is_gated, {"a1": (1,) * 3, "a2": (1,) * 3, "b1": (1,) * 5}, IN_ZONES)
    stage.cluster.add(*stage.gang("wide", (1,) * 8, zone_key="zone"))
    stage.cluster.add(*stage.gang("x", (1,) * 6, zone_key="zone"))
    assert await stage.settle() == {"x": 6}
    assert set(stage.cluster.bound().values()) == {"a1", "a2"}
    await stage.check_waits("wide")
    told = [patch["spec"]["nodeSelector"] for patch in stage.api.patches.values()]
    assert told == [{"zone": "a"}] * (6 if is_gated else 0)


async def test_a_gang_goes_only_to_zones_for_its_size(source, is_gated):
    roles = (ZoneRoleSetting("a", 1, 4), ZoneRoleSetting("b", 5, 64))
    sizes = {"a1": (1,) * 8, "a2": (1,) * 8, "b1": (1,) * 4}
    stage = Stage(source, is_gated, sizes, IN_ZONES, GangSettings(zone_roles=roles))
    stage.cluster.add(*stage.gang("large", (1,) * 8, zone_key="zone"))
    stage.cluster.add(*stage.gang("small", (1,) * 2, zone_key="zone"))
    assert await stage.settle() == {"small": 2}
    assert "b1" not in stage.cluster.bound().values()
    await stage.check_waits("large")


async def test_a_gang_that_has_begun_waits_for_room_in_its_zone(source, is_gated):
    sizes = {"a1": (16, 16), "a2": (16,), "b1": (16, 16, 16)}
    stage = Stage(source, is_gated, sizes, IN_ZONES)
    stage.cluster.add(*stage.gang("x", (16,) * 3, zone_key="zone"))
    await stage.keep_room("x")
    slots = {pod.uid: stage.cluster.cluster.ledger.slot_of(pod.uid) for pod in stage.of("x")}
    last = next(uid for uid, slot in slots.items() if slot.node == "a2")
    names = [pod.metadata.name for pod in stage.of("x") if pod.uid != last]
    assert len(await stage.cluster.schedule(*names)) == 2
    well = stage.cluster.nodes["a2"]
    stage.cluster.put_node(changed(well, spec={"unschedulable": True}))
    assert await stage.settle() == {"x": 2}
    stage.cluster.put_node(well)
    assert await stage.settle() == {"x": 3}
    assert set(stage.cluster.bound().values()) == {"a1", "a2"}
