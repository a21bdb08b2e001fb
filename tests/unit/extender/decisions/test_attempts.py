"""A pod whose attempts fail later is offered other nodes, then all; nothing grows without bound."""

from extender.decisions import attempts
from extender.decisions.attempts import Offers, how_many


def test_nodes_of_a_failed_attempt_are_remembered_at_the_next():
    made = Offers()
    assert made.begin("a", 0) == 0
    made.offered("a", ["n1", "n2"], 0)
    assert list(made.tried("a")) == []
    assert made.begin("a", 1) == 1
    assert dict(made.tried("a")) == {"n1": 2, "n2": 1}
    made.offered("a", ["n3", "n1"], 1)
    assert made.begin("a", 2) == 2
    assert dict(made.tried("a")) == {"n1": 2, "n2": 1, "n3": 3}
    assert made.begin("b", 2) == 0


def test_an_attempt_that_was_offered_nothing_is_no_failed_one():
    made = Offers()
    for at in range(5):
        assert made.begin("a", at) == 0


def test_more_nodes_are_offered_after_failed_attempts_and_all_in_the_end():
    assert [how_many(8, failed) for failed in range(5)] == [8, 8, 32, 0, 0]
    assert how_many(0, 0) == 0


def test_a_pod_that_is_bound_gone_or_long_silent_is_forgotten():
    made = Offers()
    for uid in ("bound", "silent", "late"):
        made.begin(uid, 0)
        made.offered(uid, ["n"], 0 if uid != "late" else 500)
    made.forget("bound")
    assert made.begin("bound", 1) == 0
    assert made.begin("silent", attempts.REMEMBERED_SECONDS + 1) == 0
    assert made.begin("late", attempts.REMEMBERED_SECONDS + 1) == 1


def test_memory_is_bounded_in_pods_and_in_nodes_of_one_pod(monkeypatch):
    monkeypatch.setattr(attempts, "MAX_PODS", 10)
    made = Offers()
    for number in range(50):
        made.begin(f"u{number}", 0)
        made.offered(f"u{number}", ["n"], 0)
    assert len(made) <= 11
    for number in range(1000):
        made.begin("u49", 0)
        made.offered("u49", [f"n{number}"], 0)
    assert len(made.tried("u49")) <= attempts.MAX_TRIED + 1
