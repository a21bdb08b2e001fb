"""Which of kube-scheduler's reasons gpushare leaves to it."""

import pytest

from gpushare.answers.pending.scheduler_message import not_judged
from gpushare.placement import reasons

PREEMPTION = "preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("", ""),
        (f"0/5 nodes are available: 5 Insufficient aliyun.com/gpu-mem. {PREEMPTION}", ""),
        (f"0/5 nodes are available: 5 Too many pods. {PREEMPTION}", ""),
        (f"0/0 nodes are available: {PREEMPTION}", ""),
        ("0/5 nodes are available: 2 Insufficient cpu, 3 Insufficient memory.", ""),
        (
            "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had no available volume zone.",
            "3 node(s) had no available volume zone",
        ),
        (
            f'0/5 nodes are available: persistentvolumeclaim "a" not found. {PREEMPTION}',
            'persistentvolumeclaim "a" not found',
        ),
        ("binding rejected: timed out", "binding rejected: timed out"),
    ],
)
def test_reasons_that_are_not_in_the_sentence_are_left(message: str, left: str) -> None:
    assert not_judged(message) == left


def test_no_reason_of_the_extender_is_left() -> None:
    texts = sorted(f"1 {text}" for text in reasons.TEXTS)
    assert not_judged(f"0/20 nodes are available: {', '.join(texts)}. {PREEMPTION}") == ""
