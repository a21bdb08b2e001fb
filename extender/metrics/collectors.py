"""What is measured when Prometheus scrapes, so that no number can lag behind."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.metrics import certificates
from extender.metrics.nodes import NodeMetrics
from gpushare.kube.informer import CAUSES, Informer
from gpushare.placement import reasons
from gpushare.quota.reasons import TEXTS as OF_QUOTAS

OWN_REQUEST: Final = "the pod's own request"
GANG: Final = "the pod's gang"


# By name. A Mapping has a value for each value of the label.
Figures = Mapping[str, float | Mapping[str, float]]

_GAUGES: Final = {
    "gpushare_unplaced_pods": "Bound pods whose GPU is unknown.",
    "gpushare_reserves": "Decisions that are not yet on the API server.",
    "gpushare_unreadable_inventories": (
        "Nodes whose inventory or cordoned-cards annotation cannot be read."
    ),
    "gpushare_changed_decisions": (
        "Bound pods whose decision somebody changed; the first decision still counts."
    ),
    "gpushare_extender_cooling_nodes": (
        "Nodes that take no pods because they have just failed some at admission."
    ),
    "gpushare_extender_waiting_pods": (
        "Pods that fitted no offered node when kube-scheduler last asked."
    ),
    "gpushare_extender_waiting_pods_by_reason": (
        "Pending pods for which a reason holds on some offered node."
    ),
    "gpushare_extender_pending_pods": "Pods without a node and without a scheduling gate.",
    "gpushare_extender_pending_least_units": (
        "The least that a pending pod asks for; 0 without any."
    ),
    "gpushare_gangs": "Groups of pods that start together, by phase.",
    "gpushare_gang_waiting_members": "Members without a node of gangs that are not placed yet.",
    "gpushare_gang_longest_incomplete_seconds": (
        "How long members of a gang have been bound although its minimum never was; the longest."
    ),
    "gpushare_plans": "Holds and claims that keep units on GPUs.",
    "gpushare_queue_claimed_idle_units": (
        "Units that are kept idle until the first pod or gang of the queue has all of its room."
    ),
    "gpushare_extender_preemptors": "Pods and gangs for which pods are being evicted now.",
    "gpushare_ledger_audit_longest_pause_seconds": (
        "The longest time for which comparing has blocked everything else."
    ),
}
_COUNTERS: Final = {
    "gpushare_over_cards": "Times that a GPU came to have more units used than it has.",
    "gpushare_units_freed_silently": "Times that units became free on a node without a pod event.",
    "gpushare_ledger_differences": (
        "Differences between the ledger and a fresh count; any is a defect."
    ),
    "gpushare_ledger_audits": "Rounds in which the whole ledger was compared with a fresh count.",
}
_LABELS: Final = {
    "gpushare_extender_waiting_pods_by_reason": "reason",
    "gpushare_gangs": "phase",
    "gpushare_plans": "what",
    "gpushare_units_freed_silently": "what",
}


def by_reason(of_reason: Mapping[str, int], of_gangs: Collection[str] = ()) -> Counter[str]:
    """Count each text about a pod's own request, which contains what it asks for, as one reason.

    The texts ``of_gangs`` are one reason too.
    """
    counts = Counter(dict.fromkeys((*reasons.TEXTS, *OF_QUOTAS, GANG, OWN_REQUEST), 0))
    for text, pods in of_reason.items():
        other = GANG if text in of_gangs else OWN_REQUEST
        counts[text if text in counts else other] += pods
    return counts


class LedgerCollector(Collector):
    """Shows numbers about the ledger and the pods; ``figures`` is called at every scrape."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures()
        for made, texts in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text in texts.items():
                value = found[name]
                if not isinstance(value, Mapping):
                    yield made(name, text, value=value)
                    continue
                family = made(name, text, labels=(_LABELS[name],))
                for label, number in value.items():
                    family.add_metric((label,), number)
                yield family


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


class StateCollector(Collector):
    """The state of the parts around the ledger.

    ``watches`` by the resource that they watch; ``unknown`` counts the reservations whose write has
    ended without an answer; ``leads`` says whether this replica decides.
    """

    def __init__(
        self,
        watches: Mapping[str, Informer[Any]],
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
    watches: Mapping[str, Informer[Any]],
    *,
    unknown: Callable[[], int],
    certificate_files: dict[str, bool],
    leads: Callable[[], bool] = lambda: True,
) -> None:
    REGISTRY.register(LedgerCollector(figures))
    REGISTRY.register(StateCollector(watches, unknown, leads, nodes))
    REGISTRY.register(CertificateCollector(certificate_files))
