"""Properties of every plan of moves, in random small clusters."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.defragment import check, planner
from gpushare.defragment.model import MovePlan
from gpushare.planning.ask import Ask
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.defragment.brute_force import (
    MOST,
    Used,
    asked,
    fewest_for_a_card,
    fewest_for_a_pod,
    used_of,
)
from tests.unit.gpushare.defragment.states import CARD, State, states


def free_cards(state: State, number: int) -> MovePlan:
    return run_all(planner.free_cards(state.world, number, state.movables))


def make_room(state: State) -> MovePlan:
    ask = Ask("wanted", (state.wanted,), 1)
    return run_all(planner.make_room(state.world, ask, state.movables))


def made(state: State, plan: MovePlan) -> Used:
    """Make the moves one by one: each pod may move and has room, and none uses a closed card."""
    now = used_of(state)
    may_move = {each.uid for each in state.movables}
    assert len({each.movable.uid for each in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        uid, to = move.movable.uid, move.to
        assert uid in may_move
        closed = frozenset((key.node, _index(key.uuid)) for key in move.closed)
        assert not {(to.node, _index(uuid)) for uuid in to.cards} & closed
        after = now.after(uid, to.node, closed)
        assert after is not None
        assert after.pods[uid][2:] == (to.node, tuple(map(_index, to.cards)))
        now = after
    return now


def _index(uuid: str) -> int:
    return int(uuid.rpartition("-")[2])


@given(states(), st.integers(1, 4))
def test_a_plan_frees_the_cards_that_it_says_and_keeps_those_that_are_free(
    state: State, number: int
):
    plan = free_cards(state, number)
    before, after = used_of(state), made(state, plan)
    empty = {each for each in before.cards() if before.free(*each) == CARD}
    freed = {(key.node, _index(key.uuid)) for key in plan.freed}
    assert not empty & freed
    assert all(after.free(*each) == CARD for each in empty | freed)
    assert len(plan.freed) <= number
    assert plan.is_enough == (len(plan.freed) == number)


@given(states())
def test_a_pending_pod_has_room_after_the_moves_of_its_plan(state: State):
    plan = make_room(state)
    after = made(state, plan)
    assert plan.is_enough == bool(plan.wanted)
    if not plan.is_enough:
        assert not plan.moves
        return
    [wanted] = plan.wanted
    units, count, cpu = asked(state.wanted)
    chosen = after.choice(units, count, cpu, wanted.place.node, frozenset())
    assert chosen == tuple(map(_index, wanted.place.cards))


def is_least(plan: MovePlan, fewest: int | None, *, is_exact: bool) -> None:
    """Check that a plan is no longer than the shortest one, if that has at most MOST moves.

    Without ``is_exact`` it may be longer, or not be found.
    Which cards a node gives to a pod with several depends on who came before, so that the search
    may miss a plan with them.
    """
    if fewest is None:
        assert not plan.is_enough or len(plan.moves) > MOST
    elif is_exact:
        assert plan.is_enough
        assert len(plan.moves) == fewest
    else:
        assert not plan.is_enough or len(plan.moves) >= fewest


@given(states())
def test_no_plan_frees_a_card_with_fewer_moves_where_two_are_enough(state: State):
    fewest = fewest_for_a_card(state)
    is_exact = fewest == 1 or all(len(each.share.cards) == 1 for each in state.movables)
    is_least(free_cards(state, 1), fewest, is_exact=is_exact)


@given(states())
def test_no_plan_makes_room_with_fewer_moves_where_two_are_enough(state: State):
    _, count, _ = asked(state.wanted)
    is_exact = count == 1 and all(len(each.share.cards) == 1 for each in state.movables)
    fewest = fewest_for_a_pod(state)
    if fewest is not None:  # the brute force knows only plans whose closed cards the pod gets
        is_least(make_room(state), fewest, is_exact=is_exact)


@given(states(), st.integers(1, 3))
def test_equal_clusters_have_equal_plans(state: State, number: int):
    first, second = free_cards(state, number), free_cards(state, number)
    assert [(each.movable.uid, each.to) for each in first.moves] == [
        (each.movable.uid, each.to) for each in second.moves
    ]
    assert first.freed == second.freed


@given(states(), st.integers(1, 3))
def test_the_rest_of_a_plan_can_be_made_after_each_move(state: State, number: int):
    for plan in (free_cards(state, number), make_room(state)):
        assert run_all(check.why_not(state.world, plan, 0)) == ""
