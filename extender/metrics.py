"""What the extender counts, in Prometheus conventions."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.cluster import Cluster

REQUESTS: Final = Counter(
    "gpushare_extender_requests", "Calls of a verb by outcome.", ("verb", "outcome")
)
SECONDS: Final = Histogram(
    "gpushare_extender_request_duration_seconds",
    "Time to answer a call of a verb.",
    ("verb",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)

EVICTIONS: Final = Counter(
    "gpushare_extender_evictions",
    "Pods evicted because their decision could not be kept, by reason.",
    ("reason",),
)

LEADER: Final = Gauge("gpushare_extender_leader", "1 while this replica decides.")
FORWARDED: Final = Counter(
    "gpushare_extender_forwarded", "Deciding calls handed to the leader, by outcome.", ("outcome",)
)
WRITES_HELD_BACK: Final = Counter(
    "gpushare_extender_writes_held_back",
    "Writes that were not begun because the lease might have ended before they did.",
)


class LedgerCollector(Collector):
    """Reads the ledger when it is scraped, so that no number can lag behind it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        ledger = self._cluster.ledger
        labels = ("node", "card", "uuid")
        units = GaugeMetricFamily("gpushare_card_units", "Units of a card.", labels=labels)
        used = GaugeMetricFamily("gpushare_card_used_units", "Units held by pods.", labels=labels)
        reserved = GaugeMetricFamily(
            "gpushare_card_reserved_units",
            "Units held for decisions that are not yet on the API server.",
            labels=labels,
        )
        healthy = GaugeMetricFamily("gpushare_card_healthy", "1 if usable.", labels=labels)
        over = GaugeMetricFamily(
            "gpushare_card_over_units",
            "Units held beyond what the card has: it shrank under its pods, or a write slipped by.",
            labels=labels,
        )
        for node in sorted(ledger.nodes()):
            account = ledger.account(node)
            for entry in account.cards if account is not None else ():
                names = (node, str(entry.card.index), entry.card.uuid)
                units.add_metric(names, entry.card.units)
                used.add_metric(names, entry.used)
                reserved.add_metric(names, entry.reserved)
                healthy.add_metric(names, entry.card.is_healthy)
                over.add_metric(names, entry.over)
        yield from (units, used, reserved, healthy, over)
        unplaced = sum(share.is_unplaced for share in ledger.shares())
        yield GaugeMetricFamily(
            "gpushare_unplaced_pods", "Bound pods whose card cannot be told.", value=unplaced
        )
        yield GaugeMetricFamily(
            "gpushare_reserves",
            "Decisions that are not yet on the API server.",
            value=sum(1 for _ in ledger.reserves()),
        )
        yield GaugeMetricFamily(
            "gpushare_unreadable_inventories",
            "Nodes whose inventory annotation cannot be read.",
            value=len(self._cluster.unreadable),
        )
        yield GaugeMetricFamily(
            "gpushare_changed_decisions",
            "Bound pods whose decision was changed by somebody; the first one is believed.",
            value=len(self._cluster.changed_decisions),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_cooling_nodes",
            "Nodes that take no pods because they have just failed some at admission.",
            value=self._cluster.cooling_nodes(),
        )
        yield CounterMetricFamily(
            "gpushare_ledger_differences",
            "Shares that the ledger had otherwise than a fresh count; any is a defect.",
            value=self._cluster.differences,
        )


def register(cluster: Cluster) -> None:
    REGISTRY.register(LedgerCollector(cluster))
