"""Pods that request a resource of which gpushare does not know whether kube-scheduler counts it."""

import pytest

from extender.settings.file import parse
from gpushare.objects.model import Container, Resources
from gpushare.planning.ask import Ask
from gpushare.preemption.model import Preemption, Rules
from gpushare.preemption.search import VictimSearch
from gpushare.process.time_slices import run_all
from tests.builders import node
from tests.unit.extender.queue.driver import Queue
from tests.unit.extender.queue.test_quotas import said
from tests.unit.extender.scripted import changed

LICENSE = "example.com/license"


def rules(text):
    """What a configuration says about all pods."""
    return parse(text.encode()).scheduler.rules


def asking(units, resource=LICENSE):
    amounts = {"aliyun.com/gpu-mem": str(units), resource: "1"}
    return (Container("main", Resources(amounts, amounts)),)


def put(queue, name, *sizes, licenses):
    made = node(name, *sizes)
    status = {"allocatable": {**made.allocatable, LICENSE: licenses}}
    queue.cluster.put_node(changed(made, status=status))


async def test_a_gated_pod_and_a_gang_are_placed_although_no_node_offers_the_resource():
    queue = Queue({"a": (16, 16, 16)})
    queue.submit("single", 12, containers=asking(12))
    for name in ("g-0", "g-1"):
        queue.submit(name, 12, gang="g", minimum=2, containers=asking(12))
    await queue.serve(5)
    assert queue.bound() == {"single", "g-0", "g-1"}


async def test_no_member_passes_before_kube_scheduler_has_found_room_for_all():
    queue = Queue({"a": (16, 16)})
    for name in ("g-0", "g-1"):
        queue.submit(name, 12, gang="g", minimum=2, is_gated=False, containers=asking(12))
    fitting, why = await queue.cluster.offered("g-0")
    assert not fitting, why
    assert (await queue.cluster.offered("g-1"))[0] == ["a"]
    assert (await queue.cluster.offered("g-0"))[0] == ["a"]


@pytest.mark.parametrize("gang", ["", "g"])
async def test_a_resource_that_another_node_offers_is_an_obstacle_as_long_as_it_does(gang):
    queue = Queue({"a": (16,)})
    put(queue, "b", 8, licenses="1")
    queue.submit("p", 12, gang=gang, minimum=1, containers=asking(12))
    await queue.serve(5)
    assert queue.bound() == set()
    put(queue, "b", 8, licenses="0")
    await queue.serve(5)
    assert queue.bound() == {"p"}


async def test_nobody_gets_more_of_a_known_resource_than_there_is():
    queue = Queue({"a": (16,)})
    put(queue, "b", 16, 16, licenses="1")
    for name in ("p", "q"):
        queue.submit(name, 12, containers=asking(12))
    await queue.serve(5)
    assert len(queue.bound()) == 1


async def test_a_resource_that_kube_scheduler_ignores_is_no_obstacle_whatever_nodes_offer():
    queue = Queue({})
    queue.state.profile_rules = rules("scheduler: {ignoredResources: [example.com/license]}")
    put(queue, "a", 16, licenses="0")
    put(queue, "b", 8, licenses="1")
    queue.submit("p", 12, containers=asking(12))
    await queue.serve(5)
    assert queue.bound() == {"p"}


@pytest.mark.parametrize(
    ("resource", "is_placed"), [("example.com/license", True), ("example.org/license", False)]
)
async def test_a_group_of_resources_is_ignored_by_what_is_before_the_slash(resource, is_placed):
    queue = Queue({})
    queue.state.profile_rules = rules("scheduler: {ignoredResourceGroups: [example.com]}")
    made = node("b", 8)
    allocatable = {**made.allocatable, "example.com/license": "1", "example.org/license": "1"}
    queue.cluster.put_node(changed(made, status={"allocatable": allocatable}))
    queue.add_node("a", (16,))
    queue.submit("p", 12, containers=asking(12, resource))
    await queue.serve(5)
    assert queue.bound() == ({"p"} if is_placed else set())


async def test_no_plan_uses_a_node_that_added_affinity_leaves_out():
    queue = Queue({})
    queue.state.profile_rules = rules(
        "scheduler: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        "{nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [gpu]}]}]}}}"
    )
    queue.add_node("a", (16, 16))
    queue.submit_gang("g", 2, 12)
    await queue.serve(5)
    assert queue.bound() == set()
    queue.cluster.put_node(changed(node("a", 16, 16), {"labels": {"pool": "gpu"}}))
    await queue.serve(5)
    assert queue.bound() == {"g-0", "g-1"}


async def test_people_are_not_told_that_the_resource_is_missing():
    queue = Queue({"a": (16,)})
    queue.submit("p", 12, containers=asking(12), is_gated=False)
    assert LICENSE not in said(queue.cluster, "p")[1]
    queue.submit("large", 17, containers=asking(17))
    await queue.serve(5)
    assert LICENSE not in said(queue.cluster, "large")[1]


async def test_evictions_for_a_pod_are_planned_as_if_the_resource_were_no_obstacle():
    queue = Queue({"a": (16,)})
    queue.submit("low", 16)
    await queue.serve(2)
    queue.submit("high", 12, priority=10, containers=asking(12))
    high = queue.cluster.kube.pods["high"]
    search = VictimSearch(queue.state).find(Ask(high.uid, (high,), 1), Rules())
    found = run_all(search)
    assert [each.metadata.name for each in found.victims] == ["low"]
    put(queue, "b", 8, licenses="1")
    search = VictimSearch(queue.state).find(Ask(high.uid, (high,), 1), Rules())
    assert not isinstance(run_all(search), Preemption)
