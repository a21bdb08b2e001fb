"""The pod of an Allocate is found in the cases that were measured on a real kubelet."""

import pytest

from deviceplugin.allocation.admission import How, find
from deviceplugin.errors import NoMatch
from deviceplugin.kubelet.node_pod import NodePod
from tests.fakes.pods import pod, too_large


def seen(milliseconds: float) -> str:
    return f"2026-11-21T10:00:{milliseconds / 1000:012.9f}+00:00"


def created(seconds: int) -> str:
    return f"2026-11-21T09:{seconds // 60:02d}:{seconds % 60:02d}Z"


def test_pods_that_run_or_have_ended_are_no_candidates() -> None:
    running = pod("running", 4, started=True)
    waiting = pod("waiting", 4)
    match = find([running, waiting], {}, 4, None)
    assert match.pod is waiting
    assert match.how is How.ONLY


def test_the_container_after_the_first_belongs_to_the_same_pod() -> None:
    several = pod("several", [4, 4], init=[4])
    first = find([several], {}, 4, None)
    assert first.container == "init-0"
    second = find([several], {several.uid: {"init-0"}}, 4, first.admission)
    assert (second.container, second.how) == ("app-0", How.CONTINUED)
    third = find([several], {}, 4, second.admission)
    assert third.container == "app-1", "also where the checkpoint is behind"


def test_a_newer_arrival_ends_the_admission_of_the_pod_before() -> None:
    rejected = pod("rejected", [4, 4], created=created(1))
    first = find([rejected], {}, 4, None)
    newer = pod("newer", 4, created=created(0))
    match = find([rejected, newer], {rejected.uid: {"app-0"}}, 4, first.admission)
    assert match.pod is newer


def test_a_restarted_kubelet_starts_a_new_admission() -> None:
    before, after = seen(1), seen(5000)
    waiting = pod("waiting", 4, seen=before, created=created(5))
    match = find([waiting, pod("later", 4, seen=before)], {}, 4, None)
    again = [
        pod("waiting", 4, uid=waiting.uid, seen=after, created=created(5)),
    ]
    assert find(again, {}, 4, match.admission).container == "app-0"


def test_over_capacity_pods_of_other_amounts_do_not_matter() -> None:
    pods = [pod("large", 90), pod("small", 4), pod("larger", 91)]
    assert find(pods, {}, 4, None).pod.metadata.name == "small"


def test_the_last_arrival_group_wins_then_the_last_created() -> None:
    pods = [
        pod("old", 4, seen=seen(0), created=created(9)),
        pod("new-a", 4, seen=seen(1000), created=created(7)),
        pod("new-b", 4, seen=seen(997), created=created(8)),
    ]
    match = find(pods, {}, 4, None)
    assert match.pod.metadata.name == "new-b"
    assert match.how is How.NEWEST
    assert len(match.candidates) == 3


def test_a_pod_that_is_being_deleted_ranks_last_and_is_not_dropped() -> None:
    leaving = pod("leaving", 4, created=created(9), deleted="2026-11-21T10:00:09Z")
    staying = pod("staying", 4, created=created(1))
    assert find([leaving, staying], {}, 4, None).pod is staying
    assert find([leaving], {}, 4, None).pod is leaving


def test_assume_time_decides_only_what_nothing_else_does() -> None:
    pods = [pod("a", 4, assume_time=1, cards=("x",)), pod("b", 4, assume_time=2, cards=("x",))]
    assert find(pods, {}, 4, None).pod.metadata.name == "b"
    earlier = pod("c", 4, assume_time=99, cards=("x",), created=created(0))
    assert find([*pods, earlier], {}, 4, None).pod.metadata.name == "b"


@pytest.mark.parametrize("stamp", ["", "yesterday", "2026-13-45", "2026-11-21T10:00:00", "9" * 99])
def test_an_arrival_without_a_valid_timestamp_is_ordered_by_creation(stamp: str) -> None:
    pods = [
        pod("a", 4, seen=stamp, created=created(1)),
        pod("b", 4, seen=stamp, created=created(2)),
    ]
    assert find(pods, {}, 4, None).pod.metadata.name == "b"


def test_no_match_names_the_request_and_the_nearest_misses() -> None:
    served, other, broken = pod("served", 4), pod("other", 5), pod("broken", 4)
    limits = broken.spec.containers[0].resources.limits
    limits["aliyun.com/gpu-mem"] = "4.5"
    broken = NodePod.of(broken)
    holders = {each.uid: {"app-0"} for each in (served, broken)}
    with pytest.raises(NoMatch) as missed:
        find([served, other, broken, pod("none", 0)], holders, 4, None)
    text = str(missed.value)
    assert "waits for 4 units of aliyun.com/gpu-mem" in text
    assert "default/served has all its devices" in text
    assert "default/other waits for 5 in container app-0" in text
    assert "default/broken is invalid: container app-0" in text


def test_a_pod_whose_amounts_cannot_be_read_may_be_meant_by_any_number_of_units() -> None:
    wanted = too_large("large", 4)
    assert wanted.asked is None
    for units in (1, 4, 1000):
        assert find([wanted, pod("other", 5)], {}, units, None).pod is wanted


def test_it_is_meant_by_no_call_once_it_was_refused_or_has_devices() -> None:
    wanted, other = too_large("large", 4), pod("other", 4)
    with pytest.raises(NoMatch):
        find([wanted], {wanted.uid: {"app-0"}}, 4, None)
    refused = find([wanted], {}, 4, None).admission
    assert find([wanted, other], {}, 4, refused).pod is other
    with pytest.raises(NoMatch):
        find([wanted], {}, 4, refused)


def test_of_two_that_arrived_together_the_one_that_can_be_read_is_meant() -> None:
    wanted = pod("a", 4)
    for pods in ([wanted, too_large("z", 4)], [too_large("z", 4), wanted]):
        match = find(pods, {}, 4, None)
        assert match.pod is wanted
        assert len(match.candidates) == 2
