"""Find pods that wait although there is room and quota for them, counted from the watch (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpushare.quota.quota import Quota
from tests.trials.queue.history import Seen


def unplaced(
    pods: Iterable[Seen],
    sizes: Mapping[str, int],
    quotas: Mapping[str, Quota | None],
    models: Mapping[str, str],
) -> str | None:
    """Return what waits although it fits, or that pods are still ending.

    ``sizes`` and ``models`` are by the GPU's UUID, ``quotas`` by namespace.
    """
    present = list(pods)
    if number := sum(each.is_ending for each in present):
        return f"{number} pods end"
    free = dict(sizes)
    used: dict[str, Counter[str]] = {name: Counter() for name in quotas}
    for each in present:
        if each.is_bound and not each.is_gone:
            for card in each.cards:
                free[card] -= each.units // len(each.cards)
                used[each.namespace][models[card]] += each.units // len(each.cards)
    for each in present:
        if not each.is_waiting:
            continue
        group = [e for e in present if e.gang == each.gang] if each.gang else [each]
        if len(group) < each.minimum:
            continue  # some of its members were ended
        bound = sum(e.is_bound for e in group)
        missing = max(1, each.minimum - bound)
        rules = _Rules(models, quotas[each.namespace])
        if rules.fits(each, missing, free, used[each.namespace]):
            who = f"{'gated' if each.is_gated else 'ungated'} {each.name} in {each.namespace}"
            if each.gang:
                who += f", of {len(group)} with {bound} bound and {each.minimum} needed"
            return f"{who}: {missing} x {each.units} units of {each.card_count} GPUs fit"
    return None


class _Rules:
    def __init__(self, models: Mapping[str, str], quota: Quota | None) -> None:
        self._models, self._quota = models, quota or Quota()

    def fits(self, pod: Seen, count: int, free: Mapping[str, int], used: Counter[str]) -> bool:
        """Return whether so many equal pods fit, and the quota permits it on each of their GPUs."""
        left, units, own = dict(free), pod.units // pod.card_count, Counter(used)
        for _ in range(count):
            place = self._place(units, pod.card_count, left, own)
            if place is None:
                return False
            for card in place:
                left[card] -= units
                own[self._models[card]] += units
        return self._quota.units is None or own.total() <= self._quota.units

    def _place(
        self, units: int, cards: int, free: Mapping[str, int], used: Counter[str]
    ) -> list[str] | None:
        nodes: dict[str, list[str]] = {}
        for card, left in free.items():
            model = self._models[card]
            most = self._quota.models.get(model)
            if left >= units and (most is None or used[model] + units * cards <= most):
                nodes.setdefault(card.rpartition("-")[0], []).append(card)
        return next((each[:cards] for each in nodes.values() if len(each) >= cards), None)
