"""Say what is not simulated of a scenario, and may change what its pods get (pure)."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from gpushare.objects.pod_requests import foreign_resources
from gpushare.placement.node_resources import OfferedResources
from gpushare.text.counted import counted
from gpushare.text.listed import listed
from gpusharectl.simulate.scenario import Scenario

CLAIM_SECONDS: Final = 1800  # the default of queue.reserveAfterSeconds
BUDGETS: Final = "PodDisruptionBudgets, which keep pods from eviction"
QUOTAS: Final = (
    "quotas of namespaces that are not in the files (kubectl get nodes,pods,namespaces -A)"
)


def of(scenario: Scenario) -> Iterator[str]:
    """Yield what is known before the scenario runs."""
    yield from scenario.not_read.lines()
    offered = OfferedResources(event.node for event in scenario.nodes)
    pods = (foreign_resources(event.pod) for event in scenario.pods if not event.pod.node)
    unknown = sum(not offered.has_all(resources) for resources in pods)
    named = scenario.named + Counter({"resources that no node offers": unknown})
    for text, number in sorted(named.items()):
        yield f"{text} ({counted(number, 'pod')})"
    priorities = {event.pod.priority for event in scenario.pods}
    if scenario.has_budgets and len(priorities) > 1:
        yield BUDGETS
    if scenario.lacks_namespaces:
        yield QUOTAS


def claims(passed: Collection[str]) -> Iterator[str]:
    """Yield whom a claim would have helped: ``passed`` are the pods and gangs."""
    if passed:
        names, after = listed(sorted(passed)), f"after {CLAIM_SECONDS // 60} min"
        yield f"claims ({after}, GPUs would be reserved as they become free: {names})"
