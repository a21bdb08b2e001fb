"""Decide whether the quota of a namespace leaves room for a pod or a gang (pure)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import accumulate
from math import inf

from gpushare.cards.model import Card, Request
from gpushare.errors import RequestError
from gpushare.ledger.holds import Slot
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask
from gpushare.quota.namespaces import Namespaces
from gpushare.quota.reasons import NAMESPACE_ENDS, OVER_MODEL_QUOTA, OVER_QUOTA, WRONG_QUOTA
from gpushare.quota.use import NamespaceUse

RequestOf = Callable[[Pod], Request]


@dataclass(frozen=True, slots=True)
class Left:
    """What a namespace may still use: ``units`` in all, and units by model where one is limited."""

    units: float
    models: Mapping[str, int]

    def full_models(self, units: int) -> frozenset[str]:
        """Return the models of which so many units are not left."""
        return frozenset(model for model, left in self.models.items() if left < units)


class Quotas:
    """What a pod uses already, or has a slot for, never counts against itself."""

    def __init__(
        self, namespaces: Namespaces, ledger: Ledger, use: NamespaceUse, request_of: RequestOf
    ) -> None:
        self._namespaces, self._ledger = namespaces, ledger
        self._use, self._request_of = use, request_of

    def left(self, namespace: str, besides: Iterable[str] = ()) -> Left | Reason | None:
        """Return what is left without the pods ``besides``; None without a quota.

        A reason is returned if nothing of this namespace may be placed at all.
        """
        found = self._namespaces.get(namespace)
        if found.is_ending:
            return NAMESPACE_ENDS
        if found.problem:
            return WRONG_QUOTA
        if found.quota is None:
            return None
        used, quota = self._use.used(namespace, besides=besides), found.quota
        # Nothing is left, and not less, of a quota that was lowered: other models may be used.
        units = inf if quota.units is None else max(0, quota.units - used.total())
        models = {model: max(0, most - used[model]) for model, most in quota.models.items()}
        return Left(units, models)

    def why_not(self, pod: Pod, request: Request, *, promised: int = 0) -> Reason | frozenset[str]:
        """Return why a pod may not be placed, or else the models of GPUs that it may not get.

        A pod for which a slot is kept has been admitted to GPUs of the models of its slot.
        ``promised`` are units that other pods of the namespace will use, and that are not in the
        ledger yet.
        """
        slot = self._ledger.slot_of(pod.uid)
        left = self.left(pod.metadata.namespace, (pod.uid,))
        if not isinstance(left, Left):
            return left if left is not None and slot is None else frozenset()
        if slot is not None:
            own = self._use.models_of(slot.node, slot.cards)
            return left.full_models(request.units).difference(own)
        units = request.units + promised
        return left.full_models(units) if units <= left.units else OVER_QUOTA

    def why_not_on(self, pod: Pod, request: Request, cards: Iterable[Card]) -> Reason | None:
        """Return why a pod may not be placed on these cards."""
        found = self.why_not(pod, request)
        if isinstance(found, Reason):
            return found
        is_over = any(card.model in found for card in cards)
        return OVER_MODEL_QUOTA if is_over else None

    def limited(self, ask: Ask) -> Ask | Reason:
        """Return an ask without members and nodes for which the quota leaves nothing.

        The first members stay, or the smallest ones if too few of the first fit into it. A reason
        is returned if these are too few as well.
        """
        units = [self.units_of(pod) for pod in ask.members]
        if not any(units):
            return ask
        left = self.left(_namespace(ask), [pod.uid for pod in ask.members])
        if not isinstance(left, Left):
            return ask if left is None else left
        least = max(1, ask.least)
        chosen = _within(left.units, units, range(len(units)))
        if len(chosen) < least:
            smallest_first = sorted(range(len(units)), key=units.__getitem__)
            chosen = _within(left.units, units, smallest_first)
        if len(chosen) < least:
            return OVER_QUOTA
        if len(chosen) < len(ask.members):
            ask = replace(ask, members=tuple([ask.members[each] for each in sorted(chosen)]))
        return self.without(ask, left.full_models(min(filter(None, units), default=0)))

    def may_ever_permit(self, ask: Ask) -> bool:
        """Return whether an ask could be permitted if its namespace used nothing."""
        quota = self._namespaces.get(_namespace(ask)).quota
        if quota is None or quota.units is None:
            return True
        return self.least_units(ask.members, ask.least) <= quota.units

    def least_units(self, members: Iterable[Pod], least: int) -> int:
        """Return the units that so many members request at least, or one if that is 0."""
        return sum(nsmallest(max(1, least), map(self.units_of, members)))

    def exceeding(self, ask: Ask, slots: Sequence[Slot]) -> Reason | frozenset[str]:
        """Return why these slots may not be taken for the members, or the models to leave out.

        Nothing is left out if all of them may be taken.
        """
        used = Counter[str]()
        for slot in slots:
            for model in self._use.models_of(slot.node, slot.cards):
                used[model] += slot.units
        if not used:
            return frozenset()
        left = self.left(_namespace(ask), [pod.uid for pod in ask.members])
        if not isinstance(left, Left):
            return left or frozenset()
        if used.total() > left.units:
            return OVER_QUOTA
        return frozenset(model for model, most in left.models.items() if used[model] > most)

    def without(self, ask: Ask, models: frozenset[str]) -> Ask:
        """Return an ask whose members get no GPU memory on nodes with GPUs of these models."""
        return replace(ask, cooling=ask.cooling | self._use.nodes_with(models)) if models else ask

    def share(self, namespace: str, more: int = 0) -> float:
        """Return which part of its quota a namespace uses; without a quota, of the cluster.

        It is taken to use so many units ``more``, of GPUs of any model.
        """
        quota, used = self._namespaces.get(namespace).quota, self._use.used(namespace)
        models = {} if quota is None else quota.models
        # A model that it may not use is no part of its quota.
        limits = [(used[each], most) for each, most in models.items() if most or used[each]]
        whole = None if quota is None else quota.units
        limits.append((used.total() + more, self._use.capacity if whole is None else whole))
        return max(each / most if most else inf for each, most in limits)

    def units_of(self, pod: Pod) -> int:
        """Return what a pod requests in all; 0 if that is nothing, or no node could satisfy it."""
        try:
            return self._request_of(pod).units
        except RequestError:
            return 0


def _within(most: float, units: Sequence[int], order: Sequence[int]) -> Sequence[int]:
    """Return the first places of this order whose units are not more than ``most`` together."""
    totals = accumulate(units[each] for each in order)
    return order[: sum(total <= most for total in totals)]


def _namespace(ask: Ask) -> str:
    return ask.members[0].metadata.namespace
