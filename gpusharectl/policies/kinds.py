"""Group pods by the GPU memory that they request, and name each kind as users know it (pure)."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from gpushare.annotations.pod_annotations import amounts_of
from gpushare.cards.model import Request
from gpushare.errors import RequestError
from gpushare.objects.model import Pod

COMMONEST: Final = 3
_NUMBER: Final = re.compile(r"-\d+$")
# A CronJob's controller adds minutes since 1970 to the name (pkg/controller/cronjob/utils.go).
_MINUTES: Final = re.compile(r"-\d{8}$")


class Kind(msgspec.Struct, rename="camel", frozen=True):
    """``pods`` that request ``units_per_card`` of each of ``cards`` GPUs of a node.

    ``namespace`` and ``name`` are those of the workload that has most of them; ``others`` is the
    number of other workloads.
    """

    namespace: str
    name: str
    others: int
    units_per_card: int
    cards: int
    pods: int


def kinds_of(pods: Iterable[Pod]) -> tuple[Kind, ...]:
    """Return all kinds, the commonest first. Pods whose request no node can grant have none."""
    found: dict[tuple[int, int], Counter[tuple[str, str]]] = {}
    for pod in pods:
        request = valid_amounts(pod)
        if request is not None:
            size = request.units_per_card, request.card_count
            workload = pod.metadata.namespace, workload_of(pod)
            found.setdefault(size, Counter())[workload] += 1
    return _sorted(_kind(*size, workloads) for size, workloads in found.items())


def shown(found: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return the commonest kinds in falling order of pods, the largest, and that with least.

    Less than that of a GPU is of no use to any of the pods.
    """
    kinds = _sorted(found)
    largest = max(kinds, key=_units, default=None)
    least = min(kinds, key=lambda kind: (kind.units_per_card, kind.cards), default=None)
    chosen = list(kinds[:COMMONEST])
    for each in (largest, least):
        if each is not None and each not in chosen:
            chosen.append(each)
    return tuple(chosen)


def valid_amounts(pod: Pod) -> Request | None:
    """Return the amounts that a pod requests; None if no node can grant them."""
    try:
        return amounts_of(pod)
    except RequestError:
        return None


def workload_of(pod: Pod) -> str:
    """Return the name of the workload that created the pod, or the pod's without a number.

    Of a ReplicaSet and a Job it is that of the Deployment and the CronJob.
    """
    owners = pod.metadata.owner_references or ()
    owner = next((each for each in owners if each.controller), None)
    if owner is None:
        return _NUMBER.sub("", pod.metadata.name)
    if owner.kind == "ReplicaSet":
        return owner.name.removesuffix(f"-{pod.labels.get('pod-template-hash', '')}")
    return _MINUTES.sub("", owner.name) if owner.kind == "Job" else owner.name


def _sorted(found: Iterable[Kind]) -> tuple[Kind, ...]:
    return tuple(sorted(found, key=lambda kind: (-kind.pods, -_units(kind), kind.cards)))


def _kind(units_per_card: int, cards: int, workloads: Counter[tuple[str, str]]) -> Kind:
    namespace, name = min(workloads, key=lambda each: (-workloads[each], each))
    return Kind(namespace, name, len(workloads) - 1, units_per_card, cards, workloads.total())


def _units(kind: Kind) -> int:
    return kind.units_per_card * kind.cards
