"""The table has every metric, with its type and labels."""

import re
from types import SimpleNamespace

from prometheus_client import REGISTRY

import deviceplugin.metrics
from deviceplugin.usage.card_metrics import CardCollector
from extender.metrics import collectors as extender_collectors
from extender.metrics import counters as extender_counters
from extender.metrics import namespaces, queue
from extender.metrics import nodes as node_metrics
from extender.watch.cluster import ClusterWatch
from gpushare.clock import SystemClock
from tests.metrics_table import DOCUMENT, Row, rows, table


def declared():
    """Return all families with their labels, also without series."""
    cluster = ClusterWatch(1, lambda *_: None, SystemClock())
    nodes = node_metrics.NodeMetrics(cluster.ledger)
    collectors = [
        *{id(each): each for each in REGISTRY._names_to_collectors.values()}.values(),
        extender_collectors.LedgerCollector(cluster.figures),
        extender_collectors.StateCollector({}, lambda: 0, lambda: True, nodes),
        extender_collectors.CertificateCollector({}),
        CardCollector("", SimpleNamespace(inventory=None), []),
    ]
    found = {}
    for collector in collectors:
        for family in collector.collect():
            if family.name.startswith("gpushare_"):
                labels = getattr(family, "_labelnames", None) or getattr(
                    collector, "_labelnames", ()
                )
                name = family.name + ("_total" if family.type == "counter" else "")
                found[name] = Row(family.type, frozenset(labels))
    found |= dict.fromkeys(node_metrics.OF_NODES, Row("gauge", frozenset({"node"})))
    found |= dict.fromkeys(namespaces.OF_NAMESPACES, Row("gauge", frozenset({"namespace"})))
    found |= dict.fromkeys(queue.OF_QUEUED_NAMESPACES, Row("gauge", frozenset({"namespace"})))
    found |= dict.fromkeys((*node_metrics.OF_ALL, *queue.OF_QUEUE), Row("gauge", frozenset()))
    return found


def test_every_metric_is_in_the_table_with_its_type_and_labels_and_nothing_else():
    for counter in (deviceplugin.metrics.CALLS, extender_counters.EVICTIONS):
        assert counter in REGISTRY._collector_to_names
    assert table() == declared()


def test_no_metric_stands_there_twice():
    names = re.findall(r"^\| `(gpu\w+)", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(names) == sorted(rows("Extender") | rows("Device plugin"))
