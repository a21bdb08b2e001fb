"""Gangs of different members: never a false yes, and for small gangs no false no."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.planning.ask import NoPlan, Plan
from tests.unit.gpushare.planning.brute_force import fits
from tests.unit.gpushare.planning.worlds import PlannedWorld, plan, pod

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


def world_of(found):
    world = PlannedWorld()
    for number, (free, cpu) in enumerate(found):
        world.add(f"n{number}", *[(12, 12 - each) for each in free], cpu=cpu)
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
