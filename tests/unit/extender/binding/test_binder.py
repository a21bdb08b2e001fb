"""A pod is bound once, on a card with room, whatever the API server answers."""

import asyncio

import pytest

from extender.binding.binder import BindRefused
from extender.binding.timing import OVERDUE_SECONDS, WRITE_SECONDS
from extender.binding.unknown_outcomes import Reconciler
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_RUNNING_ON,
    LABEL_CARD_COUNT,
)
from gpushare.errors import ApiError, Conflict, NoRoom, OutcomeUnknown, RequestError, Unreachable
from tests.builders import legacy_node, node, pod
from tests.unit.extender.scripted import Bench, args, bound


@pytest.fixture
def bench():
    """A GPU of 16, and two pods that ask for 10 each."""
    made = Bench(16)
    made.add(pod("a", 10), pod("b", 10))
    return made


async def test_decision_and_node_are_written_in_one_request():
    bench = Bench(16, 16)
    await bench.add_and_bind(pod("a", 8))
    [(uid, node, written)] = bench.kube.bindings
    assert (uid, node) == ("uid-a", "n")
    assert written[ANNOTATION_CARDS] == "GPU-0"
    assert written[ANNOTATION_INDEX] == "0"
    assert written[ANNOTATION_ASSIGNED] == "false"
    assert written[ANNOTATION_RUNNING_ON] == ""
    assert bench.held == [(0, 8), (0, 0)]
    bench.watch_catches_up()
    assert bench.held == [(8, 0), (0, 0)]


async def test_two_pods_for_the_last_room_are_not_both_bound(bench):
    first, second = await asyncio.gather(
        bench.bind(pod("a", 10)), bench.bind(pod("b", 10)), return_exceptions=True
    )
    assert first is None
    assert isinstance(second, NoRoom)
    assert len(bench.kube.bindings) == 1


async def test_the_same_call_twice_at_once_is_one_binding(bench):
    await asyncio.gather(bench.bind(pod("a", 10)), bench.bind(pod("a", 10)))
    assert len(bench.kube.bindings) == 1


@pytest.mark.parametrize("watched", [True, False])
async def test_the_same_call_again_later_is_success_without_a_second_binding(bench, watched):
    await bench.bind(pod("a", 10))
    if watched:
        bench.watch_catches_up()
    else:
        bench.kube.outcomes, bench.kube.lands = [Conflict("already assigned", code=409)], False
    await bench.bind(pod("a", 10))
    assert sum(used + reserved for used, reserved in bench.held) == 10


async def test_a_caller_that_hangs_up_does_not_stop_what_was_begun(bench):
    bench.kube.hold = asyncio.Event()
    call = asyncio.create_task(bench.bind(pod("a", 10)))
    await bench.kube.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    bench.kube.hold.set()
    await bench.bind(pod("a", 10))
    assert len(bench.kube.bindings) == 1


async def test_a_pod_that_is_bound_elsewhere_is_refused_and_holds_nothing_here(bench):
    bench.kube.land(pod("a", 10), "other", {})
    bench.kube.outcomes, bench.kube.lands = [Conflict("already assigned", code=409)], False
    with pytest.raises(BindRefused, match="already bound to node other"):
        await bench.bind(pod("a", 10))
    assert bench.held == [(0, 0)]


@pytest.mark.parametrize(
    "outcome",
    [
        Conflict("gated", code=409),
        ApiError("forbidden", code=403),
        Unreachable("connection refused"),
    ],
)
async def test_a_definite_refusal_frees_the_room(bench, outcome):
    bench.kube.outcomes, bench.kube.lands = [outcome], False
    with pytest.raises(BindRefused):
        await bench.bind(pod("a", 10))
    assert bench.held == [(0, 0)]


@pytest.mark.parametrize("landed", [True, False])
async def test_an_unknown_outcome_keeps_the_room_until_it_is_known(bench, landed):
    await bench.lose(pod("a", 10), landed=landed)
    assert bench.held == [(0, 10)]
    with pytest.raises(NoRoom):
        await bench.bind(pod("b", 10))
    await bench.settle()
    assert bench.held == [(0, 10)]
    await bench.settle(after=OVERDUE_SECONDS + WRITE_SECONDS)
    assert bench.held == [(0, 10)]  # one look is not enough, a slow write may still land
    await bench.settle(after=WRITE_SECONDS)
    assert bench.held == [(0, 10 if landed else 0)]
    bench.watch_catches_up()
    assert bench.held == [(10 if landed else 0, 0)]


async def test_a_watch_that_has_not_shown_a_bound_pod_is_told_to_be_behind():
    bench, told = Bench(16), []
    bench.add(pod("a", 10))
    reconciler = Reconciler(
        bench.cluster,
        bench.binder,
        bench.kube,
        bench.time,
        watch_is_behind=lambda: told.append(bench.time.now),
    )
    await bench.bind(pod("a", 10))
    await reconciler.settle()
    assert not told, "it may be on its way"
    bench.time.now += OVERDUE_SECONDS
    await reconciler.settle()
    assert len(told) == 1
    assert bench.held == [(0, 10)], "shares come through the watch alone"
    bench.watch_catches_up()
    await reconciler.settle()
    assert len(told) == 1


async def test_how_many_outcomes_are_not_known_is_told(bench):
    assert bench.binder.unknown() == 0
    bench.kube.hold = asyncio.Event()
    binding = asyncio.create_task(bench.lose(pod("a", 10)))
    await bench.kube.asked.wait()
    assert bench.binder.unknown() == 0, "it is under way"
    bench.kube.hold.set()
    await binding
    assert bench.binder.unknown() == 1
    await bench.bind(pod("a", 10))
    bench.watch_catches_up()
    assert bench.binder.unknown() == 0


async def test_what_was_read_before_another_attempt_says_nothing_about_it(bench):
    await bench.lose(pod("a", 10))
    await bench.settle()
    await bench.settle(after=OVERDUE_SECONDS)  # the first read of two: not bound
    await bench.lose(pod("a", 10))
    await bench.settle(after=WRITE_SECONDS)
    await bench.settle(after=OVERDUE_SECONDS)
    assert bench.held == [(0, 10)]


async def test_a_read_that_was_on_its_way_while_a_retry_succeeded_frees_nothing(bench):
    await bench.lose(pod("a", 10))
    await bench.settle()
    await bench.settle(after=OVERDUE_SECONDS)
    bench.time.now += WRITE_SECONDS
    bench.kube.read_hold = asyncio.Event()
    bench.kube.read_asked.clear()
    settling = asyncio.create_task(bench.settle())
    await bench.kube.read_asked.wait()
    await bench.bind(pod("a", 10))
    bench.kube.read_hold.set()
    await settling
    assert bench.held == [(0, 10)]
    with pytest.raises(NoRoom):
        await bench.bind(pod("b", 10))


async def test_a_pod_that_ended_unseen_gives_its_room_back(bench):
    await bench.bind(pod("a", 10))
    bench.kube.pods["a"] = pod("a", 10, node="n", phase="Succeeded")  # the watch leaves it out
    await bench.settle()
    await bench.settle(after=OVERDUE_SECONDS)
    assert bench.held == [(0, 0)]


async def test_a_label_that_changes_between_two_tries_does_not_change_the_decision():
    bench = Bench(16, 16)
    bench.add(pod("a", 10))
    await bench.lose(pod("a", 10))
    relabelled = pod("a", 10, labels={LABEL_CARD_COUNT: "2"})
    bench.add(relabelled)
    await bench.bind(relabelled)
    assert [written[ANNOTATION_CARDS] for _, _, written in bench.kube.bindings] == ["GPU-0"] * 2


async def test_a_reserve_outlives_the_names_that_its_node_gave_its_cards():
    bench = Bench(16)
    bench.cluster.node_changed(legacy_node("n", "32", "2"))
    bench.add(pod("a", 10))
    await bench.lose(pod("a", 10))
    bench.cluster.node_changed(node("n", 16, 16))
    assert [entry.free for entry in bench.cluster.ledger.account("n").cards] == [6, 6]


async def test_while_the_api_server_is_away_an_unknown_outcome_stays_unknown(bench):
    await bench.lose(pod("a", 10))
    bench.kube.read_error = Unreachable("away")
    for _ in range(5):
        await bench.settle(after=60)
    assert bench.held == [(0, 10)]


async def test_a_retry_after_an_unknown_outcome_writes_the_same_card():
    bench = Bench(16, 16)
    bench.add(pod("a", 10), bound("b", 4, "GPU-1"))
    await bench.lose(pod("a", 10))
    bench.cluster.pod_deleted(pod("b", 4))  # card 0 would be chosen now
    await bench.bind(pod("a", 10))
    cards = [written[ANNOTATION_CARDS] for _, _, written in bench.kube.bindings]
    assert cards == ["GPU-1", "GPU-1"]


async def test_a_refusal_after_an_unknown_outcome_does_not_free_what_may_still_land(bench):
    bench.kube.lands = False
    bench.kube.outcomes = [OutcomeUnknown("timeout"), ApiError("too many requests", code=429)]
    for _ in range(2):
        with pytest.raises(BindRefused):
            await bench.bind(pod("a", 10))
    assert bench.held == [(0, 10)]


async def test_a_name_that_means_another_pod_by_now_is_refused():
    bench = Bench(16)
    bench.kube.pods["a"] = pod("a", 10, uid="new")
    with pytest.raises(BindRefused, match="another pod has the name"):
        await bench.binder.bind(args(pod("a", 10), uid="old"))
    assert not bench.kube.bindings


async def test_a_pod_that_our_watch_has_not_seen_yet_is_read():
    bench = Bench(16)
    bench.kube.pods["a"] = pod("a", 10)
    await bench.bind(pod("a", 10))
    assert len(bench.kube.bindings) == 1


async def test_a_pod_that_asks_for_nothing_is_not_bound():
    bench = Bench(16)
    bench.add(pod("a", 0))
    with pytest.raises(RequestError):
        await bench.bind(pod("a", 0))
    assert bench.held == [(0, 0)]
    assert not bench.kube.bindings


async def test_an_unknown_node_is_refused():
    bench = Bench(16)
    bench.add(pod("a", 1))
    with pytest.raises(NoRoom, match="nowhere"):
        await bench.bind(pod("a", 1), "nowhere")


async def test_on_an_older_plugins_node_the_decision_is_the_minor_number():
    bench = Bench(16)
    bench.cluster.node_changed(legacy_node("old", "32", "2"))
    bench.add(pod("a", 8), pod("b", 12))
    await bench.bind(pod("a", 8), "old")
    await bench.bind(pod("b", 12), "old")
    written = [annotations for _, _, annotations in bench.kube.bindings]
    assert [(w[ANNOTATION_INDEX], w[ANNOTATION_CARDS]) for w in written] == [("0", ""), ("1", "")]
    bench.watch_catches_up()
    assert [e.used for e in bench.cluster.ledger.account("old").cards] == [8, 12]


async def test_a_pod_that_is_gone_when_its_write_conflicts_holds_nothing():
    bench = Bench(16)
    bench.cluster.pod_changed(pod("a", 10))
    bench.kube.outcomes, bench.kube.lands = [Conflict("precondition", code=409)], False
    with pytest.raises(BindRefused, match="is deleted"):
        await bench.bind(pod("a", 10))
    assert bench.held == [(0, 0)]
