"""Only a stuck pod with a controller is ever due to be evicted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deviceplugin.errors
from extender.eviction.rules import AFTER_A_WHILE, AT_ONCE, OF_RUNNING, StuckPods, why_stuck
from gpushare.contract import ANNOTATION_MIRROR, CONDITION_CARD_USABLE
from gpushare.objects.model import ContainerState, ContainerStatus, OwnerReference, PodCondition
from gpushare.objects.scheduling import Present
from tests.unit.extender.scripted import DELETED, bound, changed


def waiting(name="a", reason="CardUnhealthy", *, status="False", runs=False, owned=True, **meta):
    container = ContainerStatus("main", "x://1", ContainerState(Present() if runs else None))
    conditions = (PodCondition(CONDITION_CARD_USABLE, status, reason, "what is wrong"),)
    owners = (OwnerReference(controller=True),) if owned else None
    told = {"conditions": conditions, "container_statuses": (container,)}
    return changed(bound(name, 8), {"owner_references": owners, **meta}, status=told)


def test_the_reasons_are_those_that_the_plugin_gives():
    given_by_plugin = {reason.value for reason in deviceplugin.errors.Reason}
    assert given_by_plugin >= AT_ONCE | AFTER_A_WHILE
    rest = given_by_plugin - AT_ONCE - AFTER_A_WHILE
    same = {"NoDecision", "DecisionUnreadable", "SetsVisibleDevices", "SetsMemoryLimits"}
    assert rest == same | {"NeedsNvidiaRuntime", "ExposesCards"}, "a new pod would be the same"


@pytest.mark.parametrize(
    "changed",
    [
        {"runs": True},
        {"owned": False},
        {"status": "True"},
        {"reason": "NoDecision"},
        {"reason": "DecisionUnreadable"},
        {"reason": "Forged"},
        {"reason": None},
        DELETED,
    ],
    ids=str,
)
def test_it_is_not_stuck_if(changed):
    assert why_stuck(waiting(**({"reason": "AnswerStale"} | changed)), None) == ""


@pytest.mark.parametrize("reason", sorted(OF_RUNNING))
def test_a_pod_that_runs_without_its_limit_is_stuck(reason):
    assert why_stuck(waiting(reason=reason, runs=True, owned=False), None) == reason
    static = {"annotations": {ANNOTATION_MIRROR: "x"}}
    assert why_stuck(waiting(reason=reason, runs=True, **static), None) == ""


def test_an_unbound_pod_or_one_that_has_ended_is_not_stuck():
    unbound = changed(waiting(), spec={"node_name": None})
    ended = changed(waiting(), status={"phase": "Failed"})
    assert (why_stuck(unbound, None), why_stuck(ended, None)) == ("", "")


def test_what_cannot_pass_is_due_at_once_and_what_may_only_later():
    stuck = StuckPods(60)
    pods = [(waiting(reason, reason), None) for reason in (*AT_ONCE, *AFTER_A_WHILE)]
    assert {why for _, why in stuck.due(pods, 100.0)} == AT_ONCE
    assert {why for _, why in stuck.due(pods, 159.9)} == AT_ONCE
    assert {why for _, why in stuck.due(pods, 160.0)} == AT_ONCE | AFTER_A_WHILE


@given(
    st.lists(st.tuples(st.floats(0, 40), st.booleans(), st.booleans()), max_size=20),
)
def test_no_pod_is_due_before_it_has_waited_in_one_piece(steps):
    stuck, now, since = StuckPods(60), 0.0, None
    for passed, is_stuck, runs in steps:
        now += passed
        stands = is_stuck and not runs
        since = (now if since is None else since) if stands else None
        shown = waiting(status="False" if is_stuck else "True", runs=runs)
        assert bool(stuck.due([(shown, None)], now)) == (since is not None and now - since >= 60)
