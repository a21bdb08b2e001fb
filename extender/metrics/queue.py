"""What waits in the queue, and the quotas of namespaces, as series for Prometheus (pure)."""

from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from typing import Final

from extender.metrics.namespaces import MOST, OTHERS
from gpushare.answers.queue.entries import QueueFigures

OF_QUEUED_NAMESPACES: Final = {
    "gpushare_namespace_quota_units": (
        "The quota of a namespace for all GPUs. (others): the sum of all namespaces after "
        "500, of times the longest."
    ),
    "gpushare_namespace_quota_used_units": "Units that count against the quota of a namespace.",
    "gpushare_namespace_waiting_pods": "Pods of a namespace that wait in the queue.",
    "gpushare_namespace_waiting_units": "Units that the waiting pods of a namespace request.",
    "gpushare_namespace_oldest_waiting_seconds": (
        "How long the oldest waiting pod of a namespace has waited."
    ),
}
OF_QUEUE: Final = {
    "gpushare_queue_entries": "Pods and gangs that have a position in the queue.",
    "gpushare_queue_first_seconds": "How long the same pod or gang has been first without room.",
    "gpushare_unreadable_quotas": "Namespaces whose quota cannot be read: their pods wait.",
}

Values = Mapping[str, float]
_Fold = Callable[[float, float], float]


def series(found: QueueFigures, most: int = MOST) -> Iterator[Values]:
    """Yield the values of OF_QUEUED_NAMESPACES by namespace.

    Of more than ``most`` namespaces, those are together OTHERS that wait for the fewest units and
    use the fewest: sums, of times the longest.
    """
    units, used = found.units, found.used
    names = {*found.quotas, *found.pods}
    named = nlargest(most, names, key=lambda name: (units.get(name, 0), used.get(name, 0), name))
    kept = frozenset(named)
    for values in (found.quotas, used, found.pods, units):
        yield _folded(values, kept, float.__add__)
    yield _folded(found.oldest_seconds, kept, max)


def sums(found: QueueFigures) -> tuple[float, ...]:
    """Return the values of OF_QUEUE."""
    return found.entries, found.first_seconds, found.unreadable


def _folded(values: Values, kept: frozenset[str], fold: _Fold) -> Values:
    result: dict[str, float] = {}
    for name in sorted(values):
        shown = name if name in kept else OTHERS
        value = float(values[name])
        result[shown] = fold(result[shown], value) if shown in result else value
    return result
