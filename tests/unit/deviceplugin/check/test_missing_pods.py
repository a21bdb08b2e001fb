"""A pod that is missing in the checkpoint is reported; one that starts or ends is not."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.check.rules import PATIENCE_SECONDS, Missing, MissingPods
from gpushare.contract import ANNOTATION_ASSIGNED
from gpushare.objects.model import Pod
from tests.fakes.pods import pod

LATER = PATIENCE_SECONDS


def running(name: str = "a", **words) -> Pod:
    return pod(name, started=True, annotations={ANNOTATION_ASSIGNED: "true"}, **words)


def holds(*pods: Pod) -> set[tuple[str, str]]:
    return {(each.uid, container.name) for each in pods for container in each.containers}


def twice(wanted: Pod, held: set[tuple[str, str]]) -> Missing:
    """What is named after it has been so for long enough."""
    forgotten = MissingPods()
    assert forgotten.check([wanted], held, 0) == Missing(), "never at the first check"
    return forgotten.check([wanted], held, LATER)


def test_a_running_pod_that_the_checkpoint_lacks_is_named() -> None:
    wanted = running()
    assert twice(wanted, {("other", "app-0")}) == Missing(forgotten=[wanted])
    assert twice(wanted, holds(wanted)) == Missing()


def test_a_running_pod_that_the_plugin_was_never_asked_about_is_named_as_such() -> None:
    silent = pod("silent", cards=("GPU-1",), started=True)
    assert twice(silent, set()) == Missing(never_asked_for=[silent])
    assert twice(silent, holds(silent)) == Missing()


def test_it_stays_so_when_another_container_of_it_is_served_later() -> None:
    silent, forgotten = pod("silent", [4, 4], started=True), MissingPods()
    forgotten.check([silent], set(), 0)
    assert forgotten.check([silent], set(), LATER) == Missing(never_asked_for=[silent])
    silent.annotations[ANNOTATION_ASSIGNED] = "true"
    only_second = {(silent.uid, "app-1")}
    assert forgotten.check([silent], only_second, LATER) == Missing(never_asked_for=[silent])
    assert forgotten.check([silent], holds(silent), LATER) == Missing()


def test_a_pod_that_does_not_run_with_a_share_is_not_missing() -> None:
    ended = running()
    ended = msgspec.structs.replace(
        ended, status=msgspec.structs.replace(ended.status, phase="Succeeded")
    )
    for other in (
        pod("being-admitted", annotations={ANNOTATION_ASSIGNED: "true"}),
        pod("let-start", annotations={ANNOTATION_ASSIGNED: "false"}),
        running("asks-for-none", units=0),
        pod("asks-for-nothing", 0, started=True),
        running("being-deleted", deleted="2026-11-21T10:00:00Z"),
        ended,
    ):
        assert twice(other, set()) == Missing()


def test_a_moment_is_not_enough_and_neither_are_two() -> None:
    wanted, forgotten = running(), MissingPods()
    assert forgotten.check([wanted], set(), 0) == Missing()
    assert forgotten.check([wanted], holds(wanted), LATER) == Missing()
    assert forgotten.check([wanted], set(), LATER + 1) == Missing()
    assert forgotten.check([wanted], set(), LATER + 2) == Missing()


def test_while_the_checkpoint_cannot_be_read_nothing_is_missing() -> None:
    wanted, forgotten = running(), MissingPods()
    forgotten.check([wanted], set(), 0)
    forgotten.reset()
    assert forgotten.check([wanted], set(), LATER) == Missing()
    assert forgotten.check([wanted], set(), 2 * LATER) == Missing(forgotten=[wanted])


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=30))
def test_it_is_named_exactly_when_it_was_missing_all_the_time(steps) -> None:
    wanted, forgotten, now, since = running(), MissingPods(), 0.0, None
    for step, is_held in steps:
        now += step
        named = forgotten.check([wanted], holds(wanted) if is_held else set(), now)
        since = None if is_held else now if since is None else since
        is_due = since is not None and now - since >= LATER
        assert named == Missing(forgotten=[wanted] if is_due else [])
