"""What a pod says about its gang: labels, annotations and spec of the pod."""

from gpushare.groups.model import GroupKey, Source
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason


def key_of(pod: Pod) -> GroupKey | None:
    """Return the gang that a pod belongs to, by the first source that it has; None without one."""
    raise NotImplementedError


def minimum_of(pod: Pod, source: Source) -> int | Reason | None:
    """Return how many members a pod says are needed, why that is wrong, or None if it says nothing.

    Only LABELS and KUEUE are stated by pods.
    """
    raise NotImplementedError


def zone_key_of(pod: Pod) -> str | Reason:
    """Return the node label whose value a pod wants all members to share; empty without one."""
    raise NotImplementedError


def counts(pod: Pod) -> bool:
    """Return whether a live pod counts as a member: it does not end and has no gate of others."""
    raise NotImplementedError


def rank(pod: Pod) -> tuple[int, str, str, str]:
    """Return the order of members: the most important first, then the oldest."""
    raise NotImplementedError
