"""What may be asked for, and how the answer reads."""

import pytest
from msgspec.structs import replace

from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM, LABEL_MOVABLE
from gpushare.defragment.movable import Rules, movables_of
from gpushare.errors import SettingsError
from gpushare.objects.model import OwnerReference, Pod
from gpushare.process.time_slices import run_all
from gpusharectl.defragment.lines import draw
from gpusharectl.defragment.rules import Answer, Goal, goal_of, name_of, plan_of, view
from gpusharectl.terminal.exits import No
from tests.unit.gpushare.planning.worlds import pod
from tests.unit.gpushare.preemption.worlds import RunningWorld


@pytest.fixture
def world() -> RunningWorld:
    """Give two nodes with a movable pod each."""
    made = RunningWorld()
    made.add("n1", 8)
    made.add("n2", 8)
    for name, node in (("one", "n1"), ("two", "n2")):
        running = made.run(name, node, 3)
        owner = OwnerReference(controller=True, kind="ReplicaSet", uid=f"of-{name}")
        meta = replace(running.metadata, labels={LABEL_MOVABLE: "true"}, owner_references=(owner,))
        made.running[name] = replace(running, metadata=meta)
    return made


def answer(world: RunningWorld, goal: Goal) -> Answer:
    movables = run_all(movables_of(world, Rules()))
    return view(world, goal, run_all(plan_of(world, goal, movables)), movables)


def shown(found: Answer, *, is_dry: bool = True) -> list[str]:
    return [line.plain for line in draw(found, is_dry=is_dry)]


def goal(world: RunningWorld, *pods: Pod, name: str = "wanted") -> Goal:
    for each in pods:
        world.groups.update(each)
    every = [*world.running.values(), *pods]
    return goal_of(every, world.groups, world, "default", name)


def member(name: str, minimum: str = "2") -> Pod:
    made = pod(name, 4)
    labels = {LABEL_GANG: "trainer", LABEL_GANG_MINIMUM: minimum}
    return replace(made, metadata=replace(made.metadata, labels=labels))


def test_a_pod_is_named_with_or_without_its_namespace():
    assert name_of("train", "ml") == ("ml", "train")
    assert name_of("other/train", "ml") == ("other", "train")
    for text in ("", "/train", "ml/", "a/b/c"):
        with pytest.raises(SettingsError, match="write NAME or NAMESPACE/NAME"):
            name_of(text, "ml")


def test_a_plan_for_a_gpu_shows_each_move_and_what_is_free_then(world: RunningWorld):
    lines = shown(answer(world, Goal("1 GPU", 1)))
    assert lines[:4] == [
        "1 GPU would become free with 1 move",
        "  1. default/one  3 MiB  n1, GPU 0 -> n2, GPU 0",
        "free after that:",
        "  n1, GPU 0",
    ]
    assert lines[-1] == "Nothing was changed: --yes evicts these pods, one after the other."


def test_too_few_gpus_are_shown_with_the_reasons_of_pods_that_may_not_move(world: RunningWorld):
    world.run("bare", "n2", 2)
    found = answer(world, Goal("2 GPUs", 2))
    assert not found.is_enough
    lines = shown(found)
    assert lines[0] == "only 1 GPU of 2 would become free, with 1 move"
    assert "2 pods may move; the others:" in lines
    assert "  1  no controller would replace them" in lines


def test_a_pod_that_fits_now_needs_no_move(world: RunningWorld):
    lines = shown(answer(world, goal(world, pod("wanted", 5))))
    assert lines[:2] == ["pod default/wanted fits now", "places:"]


def test_a_pod_that_no_move_helps_is_said_to_have_no_plan(world: RunningWorld):
    world.run("bare", "n2", 3)
    lines = shown(answer(world, goal(world, pod("wanted", 8))))
    assert lines[0] == "no moves were found for pod default/wanted"


@pytest.mark.parametrize("name", ["trainer", "m1"])
def test_a_gang_is_asked_for_by_its_name_or_that_of_a_member(world: RunningWorld, name: str):
    found = goal(world, member("m1"), member("m2"), member("m3"), name=name)
    assert found.what == "gang default/trainer"
    assert found.asked == 2


def test_what_does_not_wait_for_gpu_memory_is_no_goal(world: RunningWorld):
    with pytest.raises(No, match="no Pending pod and no gang nobody"):
        goal(world, name="nobody")
    with pytest.raises(No, match="pod default/one is bound to n1 already"):
        goal(world, name="one")
    with pytest.raises(No, match="does not request"):
        goal(world, pod("wanted"))
    with pytest.raises(No, match="has 1 of the 2 pods that it needs"):
        goal(world, member("m1"), name="trainer")


def test_a_pod_that_no_node_could_ever_grant_is_said_to_be_one(world: RunningWorld):
    wrong = pod("wanted", 4, annotations={"gpushare.aliyun.com/card-policy": "tight"})
    with pytest.raises(No, match="no node can ever grant what pod default/wanted requests"):
        answer(world, goal(world, wrong))
