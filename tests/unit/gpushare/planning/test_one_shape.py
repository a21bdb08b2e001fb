"""Gangs of equal members: exact, card by card."""

from functools import cache
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import ANNOTATION_CARD_POLICY, ANNOTATION_NODE_POLICY
from gpushare.planning.ask import NoPlan, Plan, ZoneRoom
from gpushare.planning.capacity import sets_of_cards
from tests.unit.gpushare.planning.worlds import PlannedWorld, gang, plan


@given(st.lists(st.integers(0, 12), max_size=4), st.integers(1, 5), st.integers(1, 4))
def test_as_many_sets_of_cards_fit_as_by_trying_all(free, units, count):
    @cache
    def most(left):
        found = 0
        for chosen in combinations(range(len(left)), count):
            if all(left[each] >= units for each in chosen):
                after = [much - units * (n in chosen) for n, much in enumerate(left)]
                found = max(found, 1 + most(tuple(sorted(after))))
        return found

    assert sets_of_cards(free, units, count) == most(tuple(sorted(free)))


@given(
    frees=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), min_size=1, max_size=4),
    need=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    wanted=st.integers(0, 12),
    cpu=st.integers(1, 4),
    policy=st.sampled_from(["binpack", "spread"]),
)
def test_exactly_as_many_equal_members_fit_as_nodes_take(frees, need, wanted, cpu, policy):
    world, (units, count) = PlannedWorld(), need
    for number, free in enumerate(frees):
        world.add(f"n{number}", *[(12, 12 - each) for each in free], cpu=cpu)
    annotations = {ANNOTATION_NODE_POLICY: policy, ANNOTATION_CARD_POLICY: policy}
    room = sum(min(sets_of_cards(free, units, count), cpu) for free in frees)
    found = plan(world, gang(wanted, units, cards=count, cpu=1, annotations=annotations))
    assert isinstance(found, Plan) == (wanted <= room)
    if isinstance(found, NoPlan):
        assert found.rooms == (ZoneRoom("", room),)
