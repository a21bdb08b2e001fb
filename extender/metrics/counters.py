"""What the extender counts, in Prometheus conventions."""

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.metrics import certificates as certificate_end
from extender.metrics.nodes import NodeMetrics
from extender.watch.cluster import Cluster
from gpushare.kube.informer import CAUSES
from gpushare.placement import reasons

OWN_REQUEST: Final = "the pod's own request"

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

REFUSED_CONNECTIONS: Final = Counter(
    "gpushare_extender_refused_connections",
    "Connections closed at once because a listener had as many as it takes.",
    ("listener",),
)
FORWARDED: Final = Counter(
    "gpushare_extender_forwarded", "Deciding calls handed to the leader, by outcome.", ("outcome",)
)
VIEWERS: Final = Gauge("gpushare_extender_viewers", "Streams of changes to live pages, now.")
WRITES_HELD_BACK: Final = Counter(
    "gpushare_extender_writes_held_back",
    "Writes that were not begun because the lease might have ended before they did.",
)


class LedgerCollector(Collector):
    """Reads the ledger when it is scraped, so that no number can lag behind it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        cluster = self._cluster
        yield GaugeMetricFamily(
            "gpushare_unplaced_pods",
            "Bound pods whose card cannot be told.",
            value=len(cluster.unplaced),
        )
        yield GaugeMetricFamily(
            "gpushare_reserves",
            "Decisions that are not yet on the API server.",
            value=sum(1 for _ in cluster.ledger.reserves()),
        )
        yield GaugeMetricFamily(
            "gpushare_unreadable_inventories",
            "Nodes whose inventory or cordoned-cards annotation cannot be read.",
            value=len(cluster.unreadable),
        )
        yield GaugeMetricFamily(
            "gpushare_changed_decisions",
            "Bound pods whose decision was changed by somebody; the first one is believed.",
            value=len(cluster.notices.changed_decisions),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_cooling_nodes",
            "Nodes that take no pods because they have just failed some at admission.",
            value=cluster.cooling_nodes(),
        )
        yield CounterMetricFamily(
            "gpushare_over_cards",
            "Times that a card came to hold more than it has.",
            value=cluster.over.times,
        )
        yield GaugeMetricFamily(
            "gpushare_extender_waiting_pods",
            "Pods that no offered node would do for when kube-scheduler last asked.",
            value=len(cluster.waiting),
        )
        yield _waiting_by_reason(cluster.waiting.of_reason)
        yield GaugeMetricFamily(
            "gpushare_extender_pending_pods",
            "Pods that have no node yet and no scheduling gate.",
            value=len(cluster.pending),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_pending_least_units",
            "What the smallest of the pending pods asks for; 0 without any.",
            value=cluster.pending.least_units,
        )
        kept = [type(each).__name__.lower() for each in cluster.ledger.kept()]
        plans = GaugeMetricFamily(
            "gpushare_plans", "Holds and claims that keep room on cards.", labels=("what",)
        )
        freed = CounterMetricFamily(
            "gpushare_units_freed_silently",
            "Times that units became free on a node and no pod event shows it.",
            labels=("what",),
        )
        for what in ("hold", "claim"):
            plans.add_metric((what,), kept.count(what))
        for what in ("reserve", "hold", "claim"):
            freed.add_metric((what,), cluster.freed[what])
        yield from (plans, freed)
        yield CounterMetricFamily(
            "gpushare_ledger_differences",
            "What the ledger had otherwise than a fresh count; any is a defect.",
            value=cluster.notices.differences,
        )
        yield CounterMetricFamily(
            "gpushare_ledger_audits",
            "Rounds in which everything in the ledger was compared with a fresh count.",
            value=cluster.audit.rounds,
        )
        yield GaugeMetricFamily(
            "gpushare_ledger_audit_longest_pause_seconds",
            "The longest time for which comparing has held up everything else.",
            value=cluster.audit.longest_pause,
        )


def _waiting_by_reason(of_reason: Mapping[str, int]) -> Metric:
    """The texts about a pod's own request name what it has written: they are one series."""
    counts = dict.fromkeys((*reasons.TEXTS, OWN_REQUEST), 0)
    for text, pods in of_reason.items():
        counts[text if text in counts else OWN_REQUEST] += pods
    family = GaugeMetricFamily(
        "gpushare_extender_waiting_pods_by_reason",
        "Waiting pods for which a reason holds on some offered node.",
        labels=("reason",),
    )
    for text, pods in counts.items():
        family.add_metric((text,), pods)
    return family


class CertificateCollector(Collector):
    """When the certificates of ``files`` end; they are read when it is scraped."""

    def __init__(self, files: dict[str, bool]) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gpushare_extender_certificate_end_timestamp_seconds",
            "When a certificate of the configuration ends.",
            labels=("file",),
        )
        for path, end in certificate_end.ends(self._files):
            family.add_metric((path,), end)
        yield family


class Watch(Protocol):
    """What is told of an informer."""

    restarts: Counts[str]

    @property
    def age(self) -> float: ...


class StateCollector(Collector):
    """What the parts beside the ledger say of themselves.

    ``watches`` by the resource that they are of; ``unknown`` counts the reserves whose write has
    ended without an answer; ``leads`` says whether this replica decides.
    """

    def __init__(
        self,
        watches: Mapping[str, Watch],
        unknown: Callable[[], int],
        leads: Callable[[], bool],
        nodes: NodeMetrics,
    ) -> None:
        self._watches, self._unknown, self._leads, self._nodes = watches, unknown, leads, nodes

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "gpushare_extender_cache_age_seconds",
            "Since the API server was last heard of: by an event, a bookmark or a list.",
            labels=("resource",),
        )
        restarts = CounterMetricFamily(
            "gpushare_extender_watch_restarts",
            "Watches that ended, by cause.",
            labels=("resource", "cause"),
        )
        for resource, watch in self._watches.items():
            age.add_metric((resource,), watch.age)
            for cause in CAUSES:
                restarts.add_metric((resource, cause), watch.restarts[cause])
        yield from (age, restarts)
        yield GaugeMetricFamily(
            "gpushare_unknown_reserves",
            "Reserves whose write has ended without an answer that says what became of it.",
            value=self._unknown(),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_leader", "1 on the replica that decides.", value=self._leads()
        )
        yield GaugeMetricFamily(
            "gpushare_extender_metrics_longest_pause_seconds",
            "The longest time for which rendering these pages has held up everything else.",
            value=self._nodes.longest_pause,
        )


def register(
    cluster: Cluster,
    nodes: NodeMetrics,
    watches: Mapping[str, Watch],
    *,
    unknown: Callable[[], int],
    certificates: dict[str, bool],
    leads: Callable[[], bool] = lambda: True,
) -> None:
    REGISTRY.register(LedgerCollector(cluster))
    REGISTRY.register(StateCollector(watches, unknown, leads, nodes))
    REGISTRY.register(CertificateCollector(certificates))
