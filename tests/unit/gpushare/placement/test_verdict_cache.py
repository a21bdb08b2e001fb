"""Verdicts are kept until something changes, within limits."""

from gpushare.cards.model import ContainerRequest, Request
from gpushare.ledger.changes import Changes
from gpushare.placement import verdict_cache
from gpushare.placement.verdict_cache import LEAST_CLASSES, VerdictCache
from tests.builders import run_to_end


def request(units):
    return Request((ContainerRequest("main", units),))


def test_all_classes_are_judged_again_when_something_concerns_all_nodes():
    worth = {"a": 1.0, "b": 2.0}
    cache = VerdictCache(Changes(), lambda: worth, lambda name, _: (0, 0.0, worth[name], name))
    for units in range(4):
        assert [rank[3] for rank in cache.of(request(units)).ranks] == ["a", "b"]
    worth["a"] = 3.0
    run_to_end(cache.renewing())
    for units in range(4):
        assert [rank[3] for rank in cache.of(request(units)).ranks] == ["b", "a"]


def test_a_class_that_is_dropped_meanwhile_is_not_judged_again(monkeypatch):
    monkeypatch.setattr(verdict_cache, "MOST_BYTES", 0)
    judged = []

    def judge(name, asked):
        judged.append(asked.units)
        return (0, 0.0, 0.0, name)

    cache = VerdictCache(Changes(), lambda: [f"n{i}" for i in range(100)], judge)
    for units in range(LEAST_CLASSES):
        cache.of(request(units))
    steps = cache.renewing()
    next(steps)
    for units in range(LEAST_CLASSES, 2 * LEAST_CLASSES):
        cache.of(request(units))
    judged.clear()
    run_to_end(steps)
    assert judged == []
