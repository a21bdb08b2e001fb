"""The queue and the quotas on /metrics, with no more series than allowed."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from extender.metrics.namespaces import OTHERS
from extender.metrics.nodes import NodeMetrics
from extender.metrics.queue import series
from gpushare.answers.queue.entries import QueueFigures
from tests.unit.extender.queue.scene import Scene


def rendered(made: Scene):
    metrics = NodeMetrics(made.state.ledger, queue=made.state.queue.figures)
    text = asyncio.run(metrics.render()).decode()
    return {
        (sample.name, sample.labels.get("namespace", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_quotas_and_what_waits_are_shown_by_namespace():
    made = Scene({"n": (16,)})
    made.namespace("team", "10")
    made.namespace("wrong", "x")
    made.running("r", 8)
    made.pod("p", 4, age=70)
    asyncio.run(made.round())
    found = rendered(made)
    assert found["gpushare_namespace_quota_units", "team"] == 10
    assert found["gpushare_namespace_quota_used_units", "team"] == 8
    assert found["gpushare_namespace_waiting_pods", "team"] == 1
    assert found["gpushare_namespace_waiting_units", "team"] == 4
    assert found["gpushare_namespace_oldest_waiting_seconds", "team"] == 70
    assert found["gpushare_queue_entries", ""] == 1
    assert found["gpushare_unreadable_quotas", ""] == 1


def test_a_replica_that_does_not_decide_shows_quotas_and_nothing_that_waits():
    made = Scene({"n": (16,)})
    made.namespace("team", "10")
    made.pod("p", 4)
    found = rendered(made)
    assert found["gpushare_namespace_quota_units", "team"] == 10
    assert found["gpushare_queue_entries", ""] == 0
    assert ("gpushare_namespace_waiting_pods", "team") not in found


def test_namespaces_beyond_the_limit_are_summed_up_and_the_longest_wait_is_kept():
    found = QueueFigures(
        pods={"a": 1, "b": 2, "c": 3},
        units={"a": 30, "b": 2, "c": 3},
        oldest_seconds={"a": 5.0, "b": 70.0, "c": 60.0},
        quotas={"a": 40, "b": 10},
        used={"a": 4, "b": 1},
    )
    assert list(series(found, most=1)) == [
        {"a": 40, OTHERS: 10},
        {"a": 4, OTHERS: 1},
        {"a": 1, OTHERS: 5},
        {"a": 30, OTHERS: 5},
        {"a": 5, OTHERS: 70},
    ]
