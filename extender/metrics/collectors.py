"""What is measured when Prometheus scrapes, so that no number can lag behind."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.metrics import certificates
from extender.metrics.nodes import NodeMetrics
from gpushare.kube.informer import CAUSES
from gpushare.placement import reasons

OWN_REQUEST: Final = "the pod's own request"


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers about the ledger and the pods, as they are now."""

    unplaced_pods: int
    reserves: int
    unreadable_inventories: int
    changed_decisions: int
    cooling_nodes: int
    over_cards: int
    waiting_pods: int
    waiting_by_reason: Mapping[str, int]
    pending_pods: int
    pending_least_units: int
    plans: Mapping[str, int]
    freed: Mapping[str, int]
    differences: int
    audits: int
    longest_audit_pause: float


class LedgerCollector(Collector):
    """``figures`` is called at every scrape."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures()
        yield GaugeMetricFamily(
            "gpushare_unplaced_pods", "Bound pods whose GPU is unknown.", value=found.unplaced_pods
        )
        yield GaugeMetricFamily(
            "gpushare_reserves",
            "Decisions that are not yet on the API server.",
            value=found.reserves,
        )
        yield GaugeMetricFamily(
            "gpushare_unreadable_inventories",
            "Nodes whose inventory or cordoned-cards annotation cannot be read.",
            value=found.unreadable_inventories,
        )
        yield GaugeMetricFamily(
            "gpushare_changed_decisions",
            "Bound pods whose decision somebody changed; the first decision still counts.",
            value=found.changed_decisions,
        )
        yield GaugeMetricFamily(
            "gpushare_extender_cooling_nodes",
            "Nodes that take no pods because they have just failed some at admission.",
            value=found.cooling_nodes,
        )
        yield CounterMetricFamily(
            "gpushare_over_cards",
            "Times that a GPU came to have more units used than it has.",
            value=found.over_cards,
        )
        yield GaugeMetricFamily(
            "gpushare_extender_waiting_pods",
            "Pods that fitted no offered node when kube-scheduler last asked.",
            value=found.waiting_pods,
        )
        yield _waiting_by_reason(found.waiting_by_reason)
        yield GaugeMetricFamily(
            "gpushare_extender_pending_pods",
            "Pods without a node and without a scheduling gate.",
            value=found.pending_pods,
        )
        yield GaugeMetricFamily(
            "gpushare_extender_pending_least_units",
            "The least that a pending pod asks for; 0 without any.",
            value=found.pending_least_units,
        )
        plans = GaugeMetricFamily(
            "gpushare_plans", "Holds and claims that keep units on GPUs.", labels=("what",)
        )
        freed = CounterMetricFamily(
            "gpushare_units_freed_silently",
            "Times that units became free on a node without a pod event.",
            labels=("what",),
        )
        for family, counts in ((plans, found.plans), (freed, found.freed)):
            for what, count in counts.items():
                family.add_metric((what,), count)
            yield family
        yield CounterMetricFamily(
            "gpushare_ledger_differences",
            "Differences between the ledger and a fresh count; any is a defect.",
            value=found.differences,
        )
        yield CounterMetricFamily(
            "gpushare_ledger_audits",
            "Rounds in which the whole ledger was compared with a fresh count.",
            value=found.audits,
        )
        yield GaugeMetricFamily(
            "gpushare_ledger_audit_longest_pause_seconds",
            "The longest time for which comparing has blocked everything else.",
            value=found.longest_audit_pause,
        )


def _waiting_by_reason(of_reason: Mapping[str, int]) -> Metric:
    """Texts about a pod's own request contain what it asks for: they are one series."""
    counts = Counter(dict.fromkeys((*reasons.TEXTS, OWN_REQUEST), 0))
    for text, pods in of_reason.items():
        counts[text if text in counts else OWN_REQUEST] += pods
    family = GaugeMetricFamily(
        "gpushare_extender_waiting_pods_by_reason",
        "Pending pods for which a reason holds on some offered node.",
        labels=("reason",),
    )
    for text, pods in counts.items():
        family.add_metric((text,), pods)
    return family


class CertificateCollector(Collector):
    """When the certificates in ``files`` end; the files are read at every scrape."""

    def __init__(self, files: dict[str, bool]) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gpushare_extender_certificate_end_timestamp_seconds",
            "When a certificate of the configuration ends.",
            labels=("file",),
        )
        for path, end in certificates.ends(self._files):
            family.add_metric((path,), end)
        yield family


class Watch(Protocol):
    """What is read from an informer."""

    restarts: Counter[str]

    @property
    def age(self) -> float: ...


class StateCollector(Collector):
    """The state of the parts around the ledger.

    ``watches`` by the resource that they watch; ``unknown`` counts the reservations whose write has
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
            "Seconds since the API server last sent an event, a bookmark or a list.",
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
            "Reservations whose write has ended without an answer that shows its outcome.",
            value=self._unknown(),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_leader", "1 on the replica that decides.", value=self._leads()
        )
        yield GaugeMetricFamily(
            "gpushare_extender_metrics_longest_pause_seconds",
            "The longest time for which rendering these pages has blocked everything else.",
            value=self._nodes.longest_pause,
        )


def register(
    figures: Callable[[], Figures],
    nodes: NodeMetrics,
    watches: Mapping[str, Watch],
    *,
    unknown: Callable[[], int],
    certificate_files: dict[str, bool],
    leads: Callable[[], bool] = lambda: True,
) -> None:
    REGISTRY.register(LedgerCollector(figures))
    REGISTRY.register(StateCollector(watches, unknown, leads, nodes))
    REGISTRY.register(CertificateCollector(certificate_files))
