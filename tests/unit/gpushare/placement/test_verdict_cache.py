"""Verdicts are kept until something changes, within limits."""

import pytest

from gpushare.cards.model import ContainerRequest, Request
from gpushare.ledger.changes import Changes
from gpushare.placement import verdict_cache
from gpushare.placement.reasons import NO_CARDS
from gpushare.placement.verdict_cache import LEAST_CLASSES, VerdictCache
from tests.builders import run_to_end


def request(units):
    return Request((ContainerRequest("main", units),))


class Worth:
    """A cache of nodes that are ranked by a number each."""

    def __init__(self, **worth):
        self.worth, self.changes = worth, Changes()
        self.judged = []  # the units of the request and the node
        self.cache = VerdictCache(self.changes, lambda: self.worth, self.judging)

    def judging(self, asked):
        def judge(name):
            self.judged.append((asked.units, name))
            return (0, 0.0, self.worth[name], name) if name in self.worth else NO_CARDS

        return judge

    def best(self, units):
        return [rank[3] for rank in self.cache.of(request(units)).ranks]

    def change(self, name, worth):
        self.worth[name] = worth
        self.changes.add(name)


def test_all_classes_are_ranked_again_when_something_concerns_all_nodes():
    made = Worth(a=1.0, b=2.0)
    for units in range(4):
        assert made.best(units) == ["a", "b"]
    made.worth["a"] = 3.0
    run_to_end(made.cache.renewing())
    for units in range(4):
        assert made.best(units) == ["b", "a"]


@pytest.mark.parametrize("steps", ["renewing", "updating"])
def test_a_class_that_is_dropped_meanwhile_is_not_judged_again(monkeypatch, steps):
    monkeypatch.setattr(verdict_cache, "MOST_BYTES", 0)
    made = Worth(**{f"n{i}": 0.0 for i in range(100)})
    for units in range(LEAST_CLASSES):
        made.best(units)
    for name in made.worth:
        made.changes.add(name)
    going_on = getattr(made.cache, steps)()
    next(going_on)
    for units in range(LEAST_CLASSES, 2 * LEAST_CLASSES):
        made.best(units)
    made.judged.clear()
    run_to_end(going_on)
    assert made.judged == []


def test_what_was_updated_before_costs_a_call_nothing():
    made = Worth(a=1.0, b=2.0)
    made.best(1)
    made.change("a", 3.0)
    run_to_end(made.cache.updating())
    made.judged.clear()
    assert made.best(1) == ["b", "a"]
    assert made.judged == []


def test_what_changes_while_classes_are_updated_counts_at_the_next_call():
    made = Worth(a=1.0, b=2.0)
    made.best(1)
    made.change("a", 3.0)
    steps = made.cache.updating()
    next(steps)
    made.change("b", 4.0)
    run_to_end(steps)
    assert made.best(1) == ["a", "b"]


def test_a_call_while_its_class_is_updated_is_not_undone():
    made = Worth(**{f"n{i}": float(i) for i in range(100)})
    made.best(1)
    for name in list(made.worth):
        made.change(name, -made.worth[name])
    steps = made.cache.updating()
    next(steps)
    made.change("n0", 1.0)
    assert made.best(1)[-1] == "n0"
    run_to_end(steps)
    made.judged.clear()
    assert made.best(1)[-1] == "n0"
    assert made.judged == []


def test_the_classes_that_were_used_last_are_updated_within_a_limit(monkeypatch):
    monkeypatch.setattr(verdict_cache, "MOST_UPDATED", 3)
    made = Worth(a=1.0, b=2.0)
    for units in range(5):
        made.best(units)
    made.change("a", 3.0)
    made.judged.clear()
    run_to_end(made.cache.updating())
    assert made.judged == [(4, "a"), (3, "a"), (2, "a")]
    assert made.best(0) == ["b", "a"]


def test_classes_that_grow_with_the_cluster_are_dropped_with_the_next_update(monkeypatch):
    monkeypatch.setattr(verdict_cache, "MOST_BYTES", 50_000)
    made = Worth(a=1.0)
    for units in range(2 * LEAST_CLASSES):
        made.best(units)
    for number in range(100):
        made.change(f"n{number}", 1.0)
    for _ in range(2):
        run_to_end(made.cache.updating())
    made.judged.clear()
    made.best(0)
    assert len(made.judged) == 101  # it had been dropped


def test_a_class_with_more_changes_than_the_limit_keeps_none_of_the_others_from_their_update(
    monkeypatch,
):
    monkeypatch.setattr(verdict_cache, "MOST_UPDATED", 3)
    made = Worth(**{f"n{i}": 0.0 for i in range(10)})
    made.best(2)
    made.change("n0", 1.0)
    made.best(1)
    for number in range(1, 4):
        made.change(f"n{number}", 1.0)
    made.best(2)
    made.change("n9", 2.0)
    made.judged.clear()
    run_to_end(made.cache.updating())
    assert made.judged == [(2, "n9")]  # of 1, four nodes have changed


def test_no_step_goes_through_many_classes():
    made = Worth()  # no node fits
    for units in range(50):
        made.best(units)
    assert len(list(made.cache.renewing())) == len(list(made.cache.updating())) == 50


def test_there_are_at_most_so_many_classes_however_small_the_cluster_is(monkeypatch):
    monkeypatch.setattr(verdict_cache, "MOST_CLASSES", 10)
    made = Worth(a=1.0)
    for units in range(11):
        made.best(units)
    made.judged.clear()
    made.best(10)
    made.best(1)
    assert made.judged == []
    made.best(0)
    assert made.judged == [(0, "a")]
