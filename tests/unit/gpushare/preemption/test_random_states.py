"""Victims of random small states, compared with all sets of pods that are permitted."""

import random
from collections import Counter
from dataclasses import replace

from gpushare.preemption.model import Budgets, Preemption
from tests.unit.gpushare.preemption.states import Drawing, State
from tests.unit.gpushare.preemption.trying import answer
from tests.unit.gpushare.preemption.worlds import find

STATES = 3000


def test_victims_are_found_if_any_help_and_all_of_them_are_needed():
    counts = Counter(answer(Drawing(random.Random(seed)).state()) for seed in range(STATES))
    assert counts["victims"] > STATES / 5
    assert min(counts["free"], counts["ending"], counts["none"]) > STATES / 50


def test_while_some_victims_end_the_others_are_victims_again():
    """The same search again, as another replica does it: its hints are all victims.

    Budgets may make other sets of victims cheaper once some are gone, and so may a gang whose
    members of the highest priority are gone. Of a gang that goes as a whole, members may not be
    needed for their own room.
    """
    tried = 0
    for seed in range(STATES):
        draw = random.Random(seed)
        state = without_budgets(Drawing(draw).state())
        found = find(state.world, state.ask, state.rules)
        if not isinstance(found, Preemption) or not found.victims:
            continue
        chosen = {each.uid for each in found.victims}
        ending = {uid for uid in sorted(chosen) if draw.random() < 0.5}
        gangs = [group.members for group in state.world.groups]
        gangs = [members for members in gangs if not ending.isdisjoint(members)]
        if any(len({each.priority for each in members.values()}) > 1 for members in gangs):
            continue
        for members in gangs:
            ending |= chosen & members.keys()
        state.world.delete(*ending)
        hinted = frozenset(uid[:8] for uid in chosen)
        again = find(state.world, state.ask, replace(state.rules, hinted=hinted))
        assert isinstance(again, Preemption)
        assert {each.uid for each in again.victims} == chosen - ending, seed
        tried += 1
    assert tried > STATES / 10


def without_budgets(state: State) -> State:
    ask = replace(state.ask, least=len(state.ask.members))
    rules = replace(state.rules, budgets=Budgets(), hinted=frozenset())
    return replace(state, ask=ask, rules=rules)
