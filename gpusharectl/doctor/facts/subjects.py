"""What of gpushare is in a cluster, and why a check has nothing to check (pure).

Each reason is a function of the facts: empty if there is something to check.
"""

from collections.abc import Callable, Iterable
from typing import Final

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_MEMORY
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    PLUGIN,
    SECOND_SCHEDULER,
    Facts,
    Program,
    Unknown,
)
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import SHARED, inventories, shared_nodes, units_of

Reason = Callable[[Facts], str]

NOT_INSTALLED: Final = "gpushare is not installed here"


def workload_names(facts: Facts) -> frozenset[str]:
    """Return gpushare's DaemonSets and Deployments; empty if unknown."""
    return frozenset() if isinstance(facts.workloads, Unknown) else frozenset(facts.workloads)


def has_plugin(facts: Facts) -> bool:
    """Return true if the device plugin is installed, even if it does not run.

    A plugin outside of a DaemonSet shows only in what the kubelet offers.
    """
    is_served = any(
        ANNOTATION_INVENTORY in node.annotations and units_of(node.allocatable)
        for node in facts.nodes
    )
    return bool(facts.pods_of(PLUGIN)) or PLUGIN in workload_names(facts) or is_served


def has_extender(facts: Facts) -> bool:
    """Return true if an extender is installed, even if it does not run."""
    pods = facts.pods_of(EXTENDER, SECOND_SCHEDULER)
    return bool(pods or facts.extenders or {EXTENDER, SECOND_SCHEDULER} & workload_names(facts))


def is_installed(facts: Facts) -> bool:
    return has_plugin(facts) or has_extender(facts)


def requests_share(facts: Facts) -> Iterable[SeenPod]:
    return (pod for pod in facts.pods if not pod.is_terminal and asks_for_share(pod))


def first_of(*reasons: Reason) -> Reason:
    """Return a reason that is the first of ``reasons`` to apply."""
    return lambda facts: next((found for each in reasons if (found := each(facts))), "")


def _unless(is_there: Callable[[Facts], object], reason: str) -> Reason:
    return lambda facts: "" if is_there(facts) else reason


installation: Final = _unless(is_installed, NOT_INSTALLED)
shared: Final = _unless(shared_nodes, f"no node is labelled {SHARED}")
plugin_pods: Final = _unless(lambda facts: facts.pods_of(PLUGIN), "no pod of the device plugin")
inventory: Final = _unless(
    lambda facts: any(ANNOTATION_INVENTORY in node.annotations for node in facts.nodes),
    "no node has an inventory of shared GPUs",
)
shared_inventory: Final = _unless(
    lambda facts: inventories(shared_nodes(facts)),
    f"no node labelled {SHARED} has an inventory of its GPUs",
)
extender: Final = _unless(
    lambda facts: facts.pods_of(EXTENDER, SECOND_SCHEDULER) or facts.extenders, "no extender runs"
)
answer: Final = _unless(
    lambda facts: any(
        isinstance(each, Program) or each.lacks_right for each in facts.extenders.values()
    ),
    "no extender answers",
)
second_scheduler: Final = _unless(
    lambda facts: facts.pods_of(SECOND_SCHEDULER), "no second scheduler runs"
)
request: Final = _unless(
    lambda facts: any(True for _ in requests_share(facts)), f"no pod requests {RESOURCE_MEMORY}"
)
bound_request: Final = _unless(
    lambda facts: any(pod.node for pod in requests_share(facts)),
    f"no pod on a node requests {RESOURCE_MEMORY}",
)
pending_request: Final = _unless(
    lambda facts: any(not pod.node for pod in requests_share(facts)),
    f"no pod that requests {RESOURCE_MEMORY} is Pending",
)
