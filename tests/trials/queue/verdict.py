"""Compare each Binding with the quota of its namespace, from the watch alone (pure)."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gpushare.quota.quota import Quota
from tests.trials.queue.history import Moment

# A pod may be bound so long after its room was kept: it has been admitted before the quota sank.
ADMITTED_SECONDS: Final = 35.0
_NEARLY: Final = 0.9


@dataclass
class QuotaLog:
    """Each quota that a namespace has ever had; None for no limit."""

    _found: dict[str, list[tuple[int, float, Quota | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def put(self, namespace: str, revision: int, at: float, quota: Quota | None) -> None:
        """Take note of a quota since a revision of the API server, and a monotonic time."""
        self._found[namespace].append((revision, at, quota))

    def changes(self) -> int:
        """Return how often a quota was changed."""
        return sum(len(each) - 1 for each in self._found.values())

    def at(self, namespace: str, revision: int) -> Quota | None:
        """Return the quota at a revision."""
        found = self._found.get(namespace, [])
        place = bisect_right(found, revision, key=lambda each: each[0])
        return found[place - 1][2] if place else None

    def lately(self, namespace: str, revision: int, at: float) -> list[Quota | None]:
        """Return each quota that was in force in the ADMITTED_SECONDS before a moment."""
        found = [each for each in self._found.get(namespace, []) if each[0] <= revision]
        begun = at - ADMITTED_SECONDS
        return [
            quota
            for number, (_, _, quota) in enumerate(found)
            if number + 1 == len(found) or found[number + 1][1] >= begun
        ] or [None]


@dataclass
class Verdict:
    """``late`` are Bindings above the quota of that moment but not above one shortly before."""

    bindings: int = 0
    nearly_full: int = 0
    late: int = 0
    over: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.bindings} Bindings judged, {self.nearly_full} of them to above "
            f"{_NEARLY:.0%} of a quota, {self.late} admitted before a quota was lowered"
        )


def judged(moments: Iterable[Moment], quotas: QuotaLog, models: Mapping[str, str]) -> Verdict:
    """Sum what the bound pods of each namespace use, and compare at each Binding.

    ``models`` are those of the GPUs, by UUID.
    """
    used: dict[str, Counter[str]] = defaultdict(Counter)
    verdict = Verdict()
    for moment in sorted(moments, key=lambda each: each.revision):
        pod, sign = moment.pod, 1 if moment.is_binding else -1
        own = used[pod.namespace]
        for card in pod.cards:
            own[models.get(card, "?")] += sign * pod.units // len(pod.cards)
        if not moment.is_binding:
            continue
        verdict.bindings += 1
        quota = quotas.at(pod.namespace, moment.revision)
        got = {models.get(card, "?") for card in pod.cards}
        verdict.nearly_full += _part(quota, own, got) > _NEARLY
        if _part(quota, own, got) <= 1:
            continue
        before = quotas.lately(pod.namespace, moment.revision, pod.bound_at)
        if any(_part(each, own, got) <= 1 for each in before):
            verdict.late += 1
        else:
            verdict.over.append(f"{pod.name}: {pod.namespace} uses {dict(own)} of {quota}")
    return verdict


def _part(quota: Quota | None, used: Counter[str], got: Collection[str]) -> float:
    """Return which part of a quota is used, of the limit that is reached first.

    Of limits for models, only those for the GPUs that a pod has ``got`` count.
    """
    if quota is None:
        return 0.0
    limits = [(used[model], most) for model, most in quota.models.items() if model in got]
    if quota.units is not None:
        limits.append((used.total(), quota.units))
    return max((each / most if most else inf for each, most in limits), default=0.0)
