"""Read kube-scheduler's message about a pod that it could not place (pure)."""

import re
from typing import Final

from gpushare.contract import RESOURCE_MEMORY
from gpushare.groups.reasons import TEXTS as OF_GANGS
from gpushare.objects.model import Pod
from gpushare.placement import reasons
from gpushare.quota.reasons import TEXTS as OF_QUOTAS

_BEGINS: Final = re.compile(r"\d+/\d+ nodes are available: ?")
_EVICTION: Final = re.compile(r"\.? (?:no new claims to deallocate, )?preemption: ")
_NEXT: Final = re.compile(r", (?=\d+ )")  # each reason begins with its number of nodes

_SHORT: Final = f"Insufficient {RESOURCE_MEMORY}"
# kube-scheduler's own words for what the sentence about a Pending pod judges too.
_JUDGED: Final = (
    "Insufficient ",
    "Too many pods",
    "had untolerated",
    "were unschedulable",
    "didn't match Pod's node affinity/selector",
)


def message_of(pod: Pod) -> str:
    """Return why kube-scheduler could not place the pod, in its own words; empty if unknown."""
    condition = pod.condition("PodScheduled")
    if condition is None or condition.status != "False" or pod.spec.scheduling_gates:
        return ""
    return condition.message or ""


def silent_scheduler(pod: Pod) -> str:
    """Return the pod's schedulerName if no scheduler has said anything about it; else empty."""
    return pod.spec.scheduler_name or "" if pod.condition("PodScheduled") is None else ""


def lacks_sum(pod: Pod) -> bool:
    """Return whether nodes have too little GPU memory in all for the pod.

    kube-scheduler knows this itself, and does not ask the extender about these nodes.
    """
    return _SHORT in message_of(pod)


def brief(message: str) -> str:
    """Return a message without what it says about eviction."""
    return _EVICTION.split(message)[0]


def not_judged(message: str) -> str:
    """Return the reasons in a message that gpushare does not judge itself; empty without any."""
    text = _BEGINS.sub("", brief(message), count=1).removesuffix(".")
    judged = (*reasons.TEXTS, *OF_GANGS, *OF_QUOTAS, *_JUDGED)
    return ", ".join(
        each for each in _NEXT.split(text) if not any(known in each for known in judged)
    )
