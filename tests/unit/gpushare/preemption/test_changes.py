"""The cluster changes while victims are searched."""

import random

from gpushare.preemption.model import Preemption
from gpushare.preemption.search import VictimSearch
from tests.unit.gpushare.planning.worlds import check
from tests.unit.gpushare.preemption.states import Drawing, State

STATES = 400


def test_the_slots_fit_without_the_victims_at_the_moment_at_which_they_are_returned():
    found = overtaken = 0
    for seed in range(STATES):
        draw = random.Random(seed)
        state = Drawing(draw).state()
        steps = VictimSearch(state.world).find(state.ask, state.rules)
        number, at = 0, draw.randint(0, 60)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer = end.value
                break
            number += 1
            if number == at:
                change(state, draw)
        overtaken += number > at
        if isinstance(answer, Preemption):
            found += bool(answer.victims)
            world = state.world
            gone = {each.uid for each in answer.victims} & world.running.keys()
            with world.gone(gone if answer.is_free else {*gone, *world.ending()}):
                check(world, state.ask, answer.plan)
    assert min(found, overtaken) > STATES / 10


def change(state: State, draw: random.Random) -> None:
    """Let a pod end, begin to end, or come."""
    world, name = state.world, draw.choice(list(state.world.running))
    what = draw.choice(["gone", "deleted", "new"])
    if what == "gone":
        world.stop(name)
    elif what == "deleted":
        world.delete(name)
    else:
        node = draw.choice(list(world.nodes))
        world.use(node, draw.randint(1, 12), 0, cpu=1)
