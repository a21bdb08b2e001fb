"""What a pod says about its gang, in labels, annotations and its spec."""

import re
from typing import Final

from gpushare import contract
from gpushare.groups import reasons
from gpushare.groups.model import MOST_MEMBERS, GroupKey, Source
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason

# Order of a member: its role, its index, its creation time, name and uid.
Rank = tuple[int, int, str, str, str]

# Roles in Kubeflow's jobs. The master of a PyTorchJob and the launcher of an MPIJob do not exist
# twice, so a gang without them is of no use.
_FIRST_ROLES: Final = frozenset({"master", "launcher"})
# The first that a pod has counts.
_INDEX_LABELS: Final = (
    contract.LABEL_JOB_INDEX,
    contract.LABEL_WORKER_INDEX,
    contract.LABEL_REPLICA_INDEX,
    contract.LABEL_POD_INDEX,
)
_MOST_DIGITS: Final = 9
_NO_INDEX: Final = 10**_MOST_DIGITS

# A label key (apimachinery, IsQualifiedName): a name, and before it optionally a DNS subdomain.
_LABEL_KEY: Final = re.compile(
    r"(?=.{1,317}\Z)"
    r"(?:(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)


def key_of(pod: Pod) -> GroupKey | None:
    """Return the gang that a pod belongs to, by the first source that it has; None without one.

    A group without a name is none. All groups of a LeaderWorkerSet have one pod template, so the
    index of its group is a part of a gang's name: group 1 of ``serve`` is ``serve-1``. Kueue's
    groups that serve are none either: they never complete all at once, and a StatefulSet of Kueue
    creates its pods one after another.
    """
    labels, namespace = pod.labels, pod.metadata.namespace
    if pod.pod_group:
        return GroupKey(namespace, Source.NATIVE, pod.pod_group)
    if name := labels.get(contract.LABEL_POD_GROUP):
        return GroupKey(namespace, Source.POD_GROUP, name)
    if name := labels.get(contract.LABEL_GANG):
        group = labels.get(contract.LABEL_WORKER_GROUP)
        return GroupKey(namespace, Source.LABELS, f"{name}-{group}" if group else name)
    notes = pod.annotations
    name = notes.get(contract.ANNOTATION_KUEUE_GROUP) or labels.get(contract.LABEL_KUEUE_GROUP)
    if name and notes.get(contract.ANNOTATION_KUEUE_SERVING) != "true":
        return GroupKey(namespace, Source.KUEUE, name)
    return None


def minimum_of(pod: Pod, source: Source) -> int | Reason | None:
    """Return how many members a pod says are needed, why that is wrong, or None if it says nothing.

    Only pods of LABELS and KUEUE say it.
    """
    if source is Source.LABELS:
        return _minimum(pod.labels.get(contract.LABEL_GANG_MINIMUM), reasons.WRONG_MINIMUM)
    if source is Source.KUEUE:
        return _minimum(pod.annotations.get(contract.ANNOTATION_KUEUE_COUNT), reasons.WRONG_COUNT)
    return None


def zone_key_of(pod: Pod) -> str | Reason:
    """Return the node label whose value a pod wants all members to share; empty without one."""
    found = pod.annotations.get(contract.ANNOTATION_GANG_ZONE, "")
    return found if not found or _LABEL_KEY.fullmatch(found) else reasons.WRONG_ZONE


def counts(pod: Pod) -> bool:
    """Return whether a live pod counts as a member: it is not being deleted, and nobody gates it.

    gpushare's own gate does not matter.
    """
    return not pod.metadata.deletion_timestamp and not pod.has_foreign_gate


def rank(pod: Pod) -> Rank:
    """Return the order of a member: the most important first, then the lowest index, the oldest."""
    meta, labels = pod.metadata, pod.labels
    role = 0 if labels.get(contract.LABEL_JOB_ROLE) in _FIRST_ROLES else 1
    index = next((labels[each] for each in _INDEX_LABELS if each in labels), "")
    return role, _number(index, _NO_INDEX), meta.creation_timestamp or "", meta.name, meta.uid


def _minimum(stated: str | None, wrong: Reason) -> int | Reason | None:
    if stated is None:
        return None
    found = _number(stated, 0)
    return found if 1 <= found <= MOST_MEMBERS else wrong


def _number(text: str, otherwise: int) -> int:
    """Return a number of at most nine digits; ``otherwise`` for any other text."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else otherwise
