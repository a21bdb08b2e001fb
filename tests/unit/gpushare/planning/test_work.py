"""However members, nodes and zones multiply: a plan has a limit, and no step is long.

Work is counted in lines of Python, which take well below a microsecond each, and not in seconds.
"""

import sys
from collections.abc import Generator, Mapping
from itertools import product
from typing import Any

import pytest

from gpushare.objects.model import Pod
from gpushare.objects.scheduling import LABEL_HOSTNAME
from gpushare.planning.ask import NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.planning.reasons import TOO_MANY_KINDS
from gpushare.planning.work import A_ZONE, MOST_WORK
from gpushare.preemption.model import Preemption, Rules
from gpushare.preemption.search import VictimSearch
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.planning.worlds import ask, pod
from tests.unit.gpushare.preemption.worlds import RunningWorld

LINES_A_STEP = 15_000
LINES_A_NODE = 20  # to read the labels of all nodes, once


class CountedWorld(RunningWorld):
    """``reads`` counts how often somebody reads what a node has left."""

    reads = 0

    def free_resources(self, node, **more):
        self.reads += 1
        return super().free_resources(node, **more)


def world_of(nodes: int, *, is_full: bool = False) -> CountedWorld:
    world = CountedWorld()
    for number in range(nodes):
        name = f"n{number}"
        world.add(name, 80, cpu=10**6, labels={LABEL_HOSTNAME: name})
        if is_full:
            world.run(f"r{number}", name, 80)
    return world


def different(members: int) -> list[Pod]:
    """Return members no two of which are equal."""
    return [pod(f"m{number}", 8, cpu=number + 1, priority=100) for number in range(members)]


def run(steps: Generator[None, None, Any]) -> tuple[Any, int, int]:
    """Return the result, the number of steps, and the lines of the longest one."""
    lines = number = longest = 0

    def trace(_frame, event, _arg):
        nonlocal lines
        lines += event == "line"
        return trace

    while True:
        lines, before = 0, sys.gettrace()
        sys.settrace(trace)
        try:
            next(steps)
        except StopIteration as end:
            return end.value, number, max(longest, lines)
        finally:
            sys.settrace(before)
        number, longest = number + 1, max(longest, lines)


GRID = list(product((1024, 256, 80), (5000, 1300, 313), ("", LABEL_HOSTNAME)))
REFUSED = [each for each in GRID if each[0] * each[1] * (1 + A_ZONE * bool(each[2])) > MOST_WORK]
PLANNED = [(200, 40, ""), (40, 200, ""), (200, 40, LABEL_HOSTNAME), (40, 200, LABEL_HOSTNAME)]


@pytest.mark.parametrize(("members", "nodes", "zone_key"), REFUSED)
def test_a_plan_of_too_many_kinds_is_refused_before_a_node_is_read(members, nodes, zone_key):
    world = world_of(nodes)
    found, steps, longest = run(Planner(world).plan(ask(different(members), zone_key=zone_key)))
    assert found == NoPlan(TOO_MANY_KINDS, gave_up=True)
    assert world.reads == 0
    assert steps <= members + nodes
    assert longest <= LINES_A_NODE * nodes + LINES_A_STEP


@pytest.mark.parametrize(("members", "nodes", "zone_key"), PLANNED)
def test_each_step_of_a_plan_is_short(members, nodes, zone_key):
    world = world_of(nodes)
    found, _, longest = run(Planner(world).plan(ask(different(members), zone_key=zone_key)))
    assert isinstance(found, Plan) == (not zone_key)
    assert world.reads <= 4 * nodes  # not for each member
    assert longest <= LINES_A_STEP


@pytest.mark.parametrize(("members", "nodes", "zone_key"), PLANNED)
def test_each_step_of_a_search_for_victims_is_short(members, nodes, zone_key):
    world = world_of(nodes, is_full=True)
    steps = VictimSearch(world).find(ask(different(members), zone_key=zone_key), Rules())
    found, _, longest = run(steps)
    assert isinstance(found, Preemption) == (not zone_key)
    assert longest <= LINES_A_STEP


def named(number: int) -> Mapping[str, Any]:
    return {"names": (f"n{number}",)}


def selected(number: int) -> Mapping[str, Any]:
    return {"selector": {LABEL_HOSTNAME: f"n{number}"}}


@pytest.mark.parametrize("where", [named, selected])
def test_members_that_each_name_their_node_are_planned_in_large_clusters(where):
    world = world_of(5000)
    members = [pod(f"m{number}", 8, **where(number)) for number in range(1024)]
    found = run_all(Planner(world).plan(ask(members)))
    assert isinstance(found, Plan)
    assert [slot.node for slot in found.slots] == [f"n{number}" for number in range(1024)]
    assert world.reads <= 2 * len(members)
