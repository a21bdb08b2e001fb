"""A pod that the kubelet has forgotten is named; one that comes or goes never is."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.forgotten import PATIENCE_SECONDS, Forgotten
from gpushare.contract import ANNOTATION_ASSIGNED
from gpushare.objects import Pod
from tests.fakes.pods import pod

LATER = PATIENCE_SECONDS


def running(name: str = "a", **words) -> Pod:
    return pod(name, started=True, annotations={ANNOTATION_ASSIGNED: "true"}, **words)


def twice(wanted: Pod, held: set[str]) -> list[Pod]:
    """What is named after it has been so for long enough."""
    forgotten = Forgotten()
    assert forgotten.look([wanted], held, 0) == [], "never at the first look"
    return forgotten.look([wanted], held, LATER)


def test_a_running_pod_that_the_checkpoint_lacks_is_named() -> None:
    wanted = running()
    assert twice(wanted, {"other"}) == [wanted]
    assert twice(wanted, {wanted.uid}) == []


def test_a_pod_that_is_not_running_with_a_share_is_none() -> None:
    ended = running()
    ended = msgspec.structs.replace(
        ended, status=msgspec.structs.replace(ended.status, phase="Succeeded")
    )
    for other in (
        pod("being-admitted", annotations={ANNOTATION_ASSIGNED: "true"}),
        pod("not-reported-yet", started=True),
        running("asks-for-none", units=0),
        running("being-deleted", deleted="2026-11-21T10:00:00Z"),
        ended,
    ):
        assert twice(other, set()) == []


def test_a_moment_is_not_enough_and_neither_are_two() -> None:
    wanted, forgotten = running(), Forgotten()
    assert forgotten.look([wanted], set(), 0) == []
    assert forgotten.look([wanted], {wanted.uid}, LATER) == []
    assert forgotten.look([wanted], set(), LATER + 1) == []
    assert forgotten.look([wanted], set(), LATER + 2) == []


def test_while_the_checkpoint_cannot_be_read_nothing_is_missing() -> None:
    wanted, forgotten = running(), Forgotten()
    forgotten.look([wanted], set(), 0)
    forgotten.cannot_tell()
    assert forgotten.look([wanted], set(), LATER) == []
    assert forgotten.look([wanted], set(), 2 * LATER) == [wanted]


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=30))
def test_it_is_named_exactly_when_it_was_missing_all_the_time(steps) -> None:
    wanted, forgotten, now, since = running(), Forgotten(), 0.0, None
    for step, is_held in steps:
        now += step
        named = forgotten.look([wanted], {wanted.uid} if is_held else set(), now)
        since = None if is_held else now if since is None else since
        assert named == ([wanted] if since is not None and now - since >= LATER else [])
