"""The metrics of both programs: names, types, labels and help texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

from prometheus_client import REGISTRY, Metric

import deviceplugin.metrics  # noqa: F401 - registers its metrics
from deviceplugin.usage.card_metrics import CardCollector
from extender.metrics import collectors, namespaces, nodes, queue
from extender.metrics import counters as _counters  # noqa: F401 - registers them
from extender.watch.cluster import ClusterWatch
from gpushare.clock import SystemClock
from reference.markdown import table

_OF_PLUGIN: Final = ("gpushare_deviceplugin_", "gpushare_card_")


@dataclass(frozen=True, slots=True)
class Described:
    name: str
    type: str
    labels: tuple[str, ...]
    help: str

    @property
    def is_of_plugin(self) -> bool:
        return self.name.startswith(_OF_PLUGIN)


def of_program(program: str) -> str:
    """Return the metrics of ``extender`` or ``deviceplugin``."""
    rows = [("metric", "meaning")]
    for each in described():
        if each.is_of_plugin == (program == "deviceplugin"):
            labels = f"{{{','.join(each.labels)}}}" if each.labels else ""
            kind = " (histogram)" if each.type == "histogram" else ""
            rows.append((f"`{each.name}{labels}`{kind}", each.help))
    return table(*rows)


def described() -> list[Described]:
    """Return every metric, also those without series, by name."""
    return sorted({*_collected(), *_written()}, key=lambda each: each.name)


def _collected() -> Iterator[Described]:
    cluster = ClusterWatch(1, lambda *_: None, SystemClock())
    figures = nodes.NodeMetrics(cluster.ledger)
    without_cards = cast("Any", SimpleNamespace(inventory=None))
    every = [
        *{id(each): each for each in REGISTRY._names_to_collectors.values()}.values(),  # noqa: SLF001
        collectors.LedgerCollector(cluster.figures),
        collectors.StateCollector({}, lambda: 0, lambda: True, figures),
        collectors.CertificateCollector({}),
        CardCollector("", without_cards, []),
    ]
    for collector in every:
        for family in collector.collect():
            if family.name.startswith("gpushare_"):
                yield _described(collector, family)


def _described(collector: object, family: Metric) -> Described:
    labels: tuple[str, ...] = (
        getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ()) or ()
    )
    name = family.name + ("_total" if family.type == "counter" else "")
    return Described(name, family.type, tuple(labels), family.documentation)


def _written() -> Iterator[Described]:
    """Yield the gauges that the extender writes as text."""
    for labels, gauges in (
        (("node",), nodes.OF_NODES),
        (("namespace",), namespaces.OF_NAMESPACES),
        (("namespace",), queue.OF_QUEUED_NAMESPACES),
        ((), nodes.OF_ALL),
        ((), queue.OF_QUEUE),
    ):
        for name, text in gauges.items():
            yield Described(name, "gauge", labels, text)
