"""The trials call a start wrong when it is, and only then."""

import pytest

from tests.cluster.history import Change
from tests.trials import pods as make
from tests.trials.records import Records, Seen, Start, kinds_of_failure, why_wrong

SEEN = Seen("u", "pod", {"main": 500, "none": 0}, node="n1", cards="GPU-1,GPU-2")


@pytest.mark.parametrize(
    ("container", "visible", "units", "present", "is_wrong"),
    [
        ("main", "GPU-1,GPU-2", "500", "GPU-1,GPU-2", False),
        ("main", "GPU-1,GPU-2", "500", "GPU-1", True),
        ("main", "GPU-1,GPU-2", "500", "GPU-1,GPU-2,GPU-3", True),
        ("main", "GPU-1,GPU-2", "500", None, True),
        ("main", "GPU-1", "500", "GPU-1,GPU-2", True),
        ("main", "GPU-2,GPU-1", "500", "GPU-1,GPU-2", True),
        ("main", "GPU-1,GPU-2", "300", "GPU-1,GPU-2", True),
        ("main", "void", "500", "GPU-1,GPU-2", True),
        ("main", None, None, None, True),
        ("none", None, None, None, False),
        ("none", None, None, "GPU-1", True),
        ("none", "GPU-1,GPU-2", "500", None, True),
    ],
)
def test_what_is_not_on_the_pods_record_is_wrong(container, visible, units, present, is_wrong):
    start = Start("u", container, 0, visible, units, present)
    assert (why_wrong(start, SEEN) is not None) == is_wrong


def test_a_start_without_any_record_is_wrong():
    undecided = Seen("u", "pod", {"main": 500}, node="n1")
    assert why_wrong(Start("u", "main", 0, "GPU-1", "500", "GPU-1"), undecided)
    assert why_wrong(Start("u", "main", 0, None, None, None), undecided)
    assert why_wrong(Start("v", "main", 0, "GPU-1", "500", "GPU-1"), None)


def change(phase: str, *, deleted: bool = False, kind: str = "MODIFIED") -> Change:
    pod = make.several("pod", 1000, 2)
    pod["metadata"] |= {"uid": "u", "annotations": {"gpushare.aliyun.com/cards": "GPU-1,GPU-2"}}
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    pod["status"] = {"phase": phase, "message": "Allocate failed: Available: 0"}
    return Change(kind, pod)


@pytest.mark.parametrize(
    ("changes", "gave_up"),
    [
        ([change("Running"), change("Failed")], True),
        (
            [change("Running"), change("Running", deleted=True), change("Failed", deleted=True)],
            False,
        ),
        ([change("Pending"), change("Failed")], False),
    ],
)
def test_a_pod_is_given_up_if_it_ran_and_nobody_deleted_it(changes, gave_up):
    records = Records(None)
    records.listed([change("Pending", kind="LISTED")])
    for each in changes:
        records.changed(each)
    seen = records.pods["u"]
    assert seen is records.named("pod")
    assert seen.gave_up is gave_up
    assert seen.units == {"first": 1000, "stays": 1000, "a": 1000, "none": 0, "b": 2000}
    assert kinds_of_failure(records.pods) == (
        {} if seen.ran else {"no units left at the kubelet": 1}
    )


def test_a_pod_that_went_while_nobody_watched_is_gone():
    records = Records(None)
    records.listed([change("Running", kind="LISTED")])
    records.listed([])
    assert records.pods["u"].is_over
