"""Find which PodDisruptionBudgets guard which pods, as the API server does (pure)."""

from collections.abc import Iterable, Mapping

from gpushare.objects.disruption_budget import UNGUARDED, DisruptionBudget, guards_of
from gpushare.objects.model import Pod
from gpushare.placement.node_constraints import is_met
from gpushare.preemption.model import Budgets


def budgets_of(pods: Iterable[Pod], budgets: Iterable[DisruptionBudget]) -> Budgets:
    """Return the budgets that guard the pods, which must have all of their labels."""
    by_namespace: dict[str, list[DisruptionBudget]] = {}
    for budget in budgets:
        by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
    of = {}
    for pod in pods:
        if pod.status.phase == UNGUARDED:
            continue
        here = by_namespace.get(pod.metadata.namespace, ())
        selecting = [each for each in here if _selects(each, pod.labels)]
        mine = guards_of(selecting, is_ready=pod.is_ready)
        if mine:
            of[pod.uid] = mine
    return Budgets(of, {each.key: each.allowed for some in by_namespace.values() for each in some})


def _selects(budget: DisruptionBudget, labels: Mapping[str, str]) -> bool:
    """Return whether a budget selects a pod; an operator that is not known may select any pod."""
    selector, found = budget.selector, budget.spec.selector
    if found is None or not selector:
        return selector == ""  # all of the namespace; None selects no pod
    return all(labels.get(key) == value for key, value in (found.match_labels or {}).items()) and (
        all(is_met(labels, each) for each in found.match_expressions or ())
    )
