"""Gangs of different members: never a false yes, and for small gangs no false no."""

from itertools import count, islice

from hypothesis import given
from hypothesis import strategies as st

from gpushare.planning.ask import NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.planning.brute_force import fits, most
from tests.unit.gpushare.planning.worlds import ZONE, PlannedWorld, ask, check, plan, pod

nodes = st.lists(
    st.tuples(st.lists(st.integers(0, 12), max_size=4).map(tuple), st.integers(0, 6)),
    min_size=1,
    max_size=4,
)


@st.composite
def gangs(draw, most=8):
    """Return nodes, and members with the nodes that they may go to."""
    found = draw(nodes)
    every = frozenset(range(len(found)))
    some = st.sets(st.sampled_from(sorted(every)), min_size=1).map(frozenset)
    allowed = draw(st.lists(st.one_of(st.just(every), some), min_size=1, max_size=3))
    kind = st.tuples(
        st.integers(1, 12),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(allowed),
    )
    kinds = draw(st.lists(kind, min_size=1, max_size=5))
    members = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=most))
    return found, [(units if count else 0, count, cpu, may) for units, count, cpu, may in members]


def world_of(found, zones="    "):
    world = PlannedWorld()
    for number, (free, cpu) in enumerate(found):
        zone = zones[number].strip()
        world.add(f"n{number}", *[(12, 12 - each) for each in free], cpu=cpu, zone=zone)
    return world


def pods_of(members, every):
    return [
        pod(
            f"m{number}",
            units,
            cards=count or 1,
            cpu=cpu,
            names=[f"n{each}" for each in sorted(may)] if len(may) < every else (),
        )
        for number, (units, count, cpu, may) in enumerate(members)
    ]


@given(gangs())
def test_a_gang_of_8_on_4_nodes_gets_slots_exactly_if_they_exist(case):
    found, members = case
    answer = plan(world_of(found), pods_of(members, len(found)))
    assert isinstance(answer, Plan) == fits(found, members)
    assert not (isinstance(answer, NoPlan) and answer.gave_up)


@given(gangs(most=6), st.integers(0, 6), st.lists(st.sampled_from("ab "), min_size=4, max_size=4))
def test_enough_members_get_slots_in_one_zone_exactly_if_that_is_possible(case, least, zones):
    found, members = case
    least = min(least, len(members))
    world = world_of(found, zones)
    answer = plan(world, pods_of(members, len(found)), least=least, zone_key=ZONE)
    room = 0
    for zone in "ab":
        here = frozenset(number for number, each in enumerate(zones[: len(found)]) if each == zone)
        inside = [(units, count, cpu, may & here) for units, count, cpu, may in members]
        room = max(room, most(found, inside))
    assert isinstance(answer, Plan) == (least <= room)
    if isinstance(answer, NoPlan):
        assert not answer.gave_up
        assert all(each.members <= room for each in answer.rooms)
    elif len(members) <= room:
        assert len(answer.slots) == len(members)


@given(
    cards=st.lists(st.lists(st.integers(0, 80), min_size=1, max_size=8), min_size=1, max_size=6),
    sizes=st.sampled_from([(1, 2, 4, 8), (5, 10, 20, 40), (3, 6, 24, 72), (10, 20), (7, 7, 14)]),
    counts=st.lists(st.integers(0, 16), min_size=4, max_size=4),
)
def test_sizes_that_divide_one_another_fit_exactly_if_there_is_room(cards, sizes, counts):
    world = PlannedWorld()
    for number, free in enumerate(cards):
        world.add(f"n{number}", *[(80, 80 - each) for each in free])
    units = [size for size, count in zip(sizes, counts, strict=False) for _ in range(count)]
    answer = plan(world, [pod(f"m{n}", each) for n, each in enumerate(units)])
    # As many multiples of each size as the members of it and of larger sizes need.
    fits = all(
        sum(each for each in units if each >= size)
        <= sum(each // size * size for free in cards for each in free)
        for size in sizes
    )
    assert isinstance(answer, Plan) == fits
    assert not (isinstance(answer, NoPlan) and answer.gave_up)


def test_a_card_that_is_used_at_any_step_of_a_plan_leads_to_no_wrong_plan():
    """Cards are packed several times here, because other resources are not enough at first."""
    for step in count():
        world = world_of([((12, 12), 6), ((12,), 4)])
        members = [(7, 2), (6, 2), (7, 3), (4, 3)]
        asked = ask([pod(f"m{n}", units, cpu=cpu) for n, (units, cpu) in enumerate(members)])
        steps = Planner(world).plan(asked)
        if len(list(islice(steps, step))) < step:
            return
        world.use("n0", 3, 0)
        answer = run_all(steps)
        if isinstance(answer, Plan):
            check(world, asked, answer)


def test_what_is_used_too_much_on_one_node_is_not_missing_on_others():
    """As claims use it, which keep what others still use."""
    world = PlannedWorld()
    world.add("n0", 12, cpu=1)
    world.use("n0", 0, cpu=3)
    world.add("n1", 12, cpu=4)
    assert isinstance(plan(world, [pod("m0", 11, cpu=3), pod("m1", 12)]), Plan)
