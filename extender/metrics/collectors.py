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
    "gpushare_unplaced_pods": "Bound pods without a readable decision: their GPU is unknown.",
    "gpushare_reserves": "Reservations: decisions whose pods are not yet bound on the API server.",
    "gpushare_unreadable_inventories": (
        "Nodes whose annotation with the inventory or the cordoned GPUs cannot be read."
    ),
    "gpushare_changed_decisions": (
        "Bound pods whose annotations were changed after the decision, which still counts."
    ),
    "gpushare_extender_cooling_nodes": (
        "Nodes that get no pods for a while because they have just rejected some."
    ),
    "gpushare_extender_waiting_pods": (
        "Pending pods that fitted on no node when kube-scheduler last called the extender."
    ),
    "gpushare_extender_waiting_pods_by_reason": (
        "Pods of gpushare_extender_waiting_pods by reason, each under all of its reasons."
    ),
    "gpushare_extender_pending_pods": (
        "Pods without node and without scheduling gate, also if kube-scheduler never asked for "
        "them."
    ),
    "gpushare_extender_pending_least_units": (
        "Units of the smallest request of a pending pod about which kube-scheduler calls the "
        "extender."
    ),
    "gpushare_gangs": (
        "Gangs by phase. Only the leader knows plans: on other replicas, a gang that starts may be "
        "WaitingForRoom."
    ),
    "gpushare_gang_waiting_members": "Members without node of the gangs that are not Placed.",
    "gpushare_gang_longest_incomplete_seconds": (
        "The longest time for which members of a gang have been bound without its minimum."
    ),
    "gpushare_plans": (
        "Holds (reserved for a gang or gated pod) and claims (its when others have ended)."
    ),
    "gpushare_queue_claimed_idle_units": (
        "Units that stay idle until all that the first of the queue has claimed is free."
    ),
    "gpushare_extender_preemptors": "Pods and gangs for which other pods are being evicted now.",
    "gpushare_ledger_audit_longest_pause_seconds": (
        "The longest time for which an audit has blocked everything else."
    ),
}
_COUNTERS: Final = {
    "gpushare_over_cards": "Times that the pods of a GPU came to use more units than it has.",
    "gpushare_units_freed_silently": (
        "Times that units became free without a pod event, because a reserve, hold or claim "
        "expired."
    ),
    "gpushare_ledger_differences": (
        "Differences that audits found between the extender's counts and the pods: each is a bug."
    ),
    "gpushare_ledger_audits": "Audits, in which all counts are compared with the pods.",
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
            "When a certificate in the configuration expires, in seconds since 1970.",
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
            "Seconds since the API server last sent an event, a bookmark or a list of the "
            "resource.",
            labels=("resource",),
        )
        restarts = CounterMetricFamily(
            "gpushare_extender_watch_restarts",
            "Watches that ended. ended and expired are normal; silent: nothing came for 90 s; "
            "behind: a known change is missing for 5 s.",
            labels=("resource", "cause"),
        )
        for resource, watch in self._watches.items():
            age.add_metric((resource,), watch.age)
            for cause in CAUSES:
                restarts.add_metric((resource, cause), watch.restarts[cause])
        yield from (age, restarts)
        yield GaugeMetricFamily(
            "gpushare_unknown_reserves",
            "Reservations whose write to the API server got no answer.",
            value=self._unknown(),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_leader",
            "1 on the leader, which decides, and 0 on other replicas.",
            value=self._leads(),
        )
        yield GaugeMetricFamily(
            "gpushare_extender_metrics_longest_pause_seconds",
            "The longest time for which rendering metrics has blocked everything else.",
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
