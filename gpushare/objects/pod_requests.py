"""Compute what a pod requests of its node, as kube-scheduler does (pure).

All amounts are in thousandths of a unit, rounded up: of a core for ``cpu``, of a byte for
``memory``.
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from gpushare.contract import RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import QuantityError, RequestError
from gpushare.objects.model import ActualResources, Container, Pod, Resizable, Resources
from gpushare.objects.quantity import parse_quantity

MILLI: Final = 1000
MOST_AMOUNT: Final = MILLI * 2**63  # the API server limits quantities to 2**63 - 1
MOST_NAMES: Final = 64  # of resources that a pod uses; those of Kubernetes itself come first
PODS: Final = "pods"
_HUGE_PAGES: Final = "hugepages-"
_RESIZING: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"

Amounts = dict[str, int]  # by the name of the resource
Requests = tuple[tuple[str, int], ...]  # the same, sorted by name, to be shared by equal pods


@lru_cache(maxsize=4096)
def is_foreign(resource: str) -> bool:
    """Return whether a resource is neither one of Kubernetes itself nor one of ours.

    Those of Kubernetes are the ones of which IsExtendedResourceName (pkg/apis/core/v1/helper) is
    false: no device plugin, other extender or DRA driver can offer them.
    """
    is_native = "/" not in resource or "kubernetes.io/" in resource
    is_ours = resource in {RESOURCE_MEMORY, RESOURCE_COUNT}
    return not (is_native or is_ours or resource.startswith("requests."))


def is_gpu(resource: str) -> bool:
    """Return whether a resource is GPUs or parts of them, of any product.

    The component ``avoid-gpu-nodes`` decides the same.
    """
    return resource.startswith("nvidia.com/") or "gpu" in resource


def may_use_gpus(resources: Iterable[str], *, has_claims: bool) -> bool:
    """Return whether a pod that requests these may get GPUs, or parts of them, of any product."""
    return has_claims or any(map(is_gpu, resources))


def foreign_resources(pod: Pod) -> tuple[str, ...]:
    """Return the foreign resources that a pod names, sorted; few pods name any."""
    found = set(filter(is_foreign, pod.spec.overhead or ()))
    for container in pod.all_containers:
        found.update(filter(is_foreign, container.limits), filter(is_foreign, container.requests))
    return tuple(sorted(found))


def requests_of(pod: Pod) -> Amounts:
    """Return the pod's effective requests (KEP-753) with its overhead, and one of ``pods``.

    They are those of ``PodRequests`` in k8s.io/component-helpers/resource: what a pod requests as a
    whole replaces the sum of its containers, and of a container that is being resized the largest
    amount counts. A limit without a request counts as the request, as the API server defaults it.
    Raises RequestError if an amount cannot be read.
    """
    found = requests_of_containers(pod)
    if pod.spec.resources is not None:
        _replace(found, pod)
    _add(found, read_amounts(pod.spec.overhead or {}, "overhead"))
    _add(found, {PODS: MILLI})
    return found


def requests_of_containers(pod: Pod) -> Amounts:
    """Return the effective requests of all containers, as they count in ``requests_of``."""
    actual = _actual(pod)
    apps: Amounts = {}
    for container in pod.spec.containers or ():
        _add(apps, _larger(_asked(container), actual.get(container.name)))
    sidecars: Amounts = {}
    at_start: Amounts = {}
    for container in pod.spec.init_containers or ():
        asked = _asked(container)
        if container.is_sidecar:
            _add(sidecars, _larger(asked, actual.get(container.name)))
            continue
        for name, amount in asked.items():
            total = sidecars.get(name, 0) + amount
            at_start[name] = max(at_start.get(name, 0), total)
    _add(apps, sidecars)
    return {name: max(apps.get(name, 0), at_start.get(name, 0)) for name in apps | at_start}


def resources_used(pod: Pod) -> Requests | None:
    """Return what a bound pod uses of its node, for ResourceUse; None if it cannot be read."""
    try:
        return as_requests(requests_of(pod))
    except RequestError:
        return None


def as_requests(amounts: Mapping[str, int]) -> Requests:
    """Return amounts as ResourceUse keeps them: without zeros, of at most MOST_NAMES resources.

    The API server accepts any number of names, but no node has so many resources.
    """
    found = [each for each in amounts.items() if each[1]]
    if len(found) > MOST_NAMES:
        found = sorted(found, key=lambda each: ("/" in each[0], each))[:MOST_NAMES]
    return tuple(sorted(found))


def _replace(found: Amounts, pod: Pod) -> None:
    """Replace the sums of containers by what the pod requests as a whole."""
    stated, status = pod.spec.resources or Resources(), pod.status
    limits = {name: text for name, text in (stated.limits or {}).items() if name not in found}
    texts = {**limits, **(stated.requests or {})}
    asked = read_amounts(
        {name: texts[name] for name in texts if _is_of_pods(name)}, "spec.resources"
    )
    actual = _most(status.resources, status.allocated_resources) if asked else {}
    found.update(_larger(asked, (actual, _is_infeasible(pod)) if actual else None))


def _is_of_pods(resource: str) -> bool:
    return resource in {"cpu", "memory"} or resource.startswith(_HUGE_PAGES)


_Actual = tuple[Amounts, bool]  # and whether the spec does not count


def _actual(pod: Pod) -> dict[str, _Actual]:
    """Return by container what its status shows to be in use, where that is not in the spec."""
    found: dict[str, _Actual] = {}
    for each in pod.statuses:
        if each.resources is not None or each.allocated_resources is not None:
            found[each.name] = _most(each.resources, each.allocated_resources), _is_infeasible(pod)
    return found


def _is_infeasible(pod: Pod) -> bool:
    condition = pod.condition(_RESIZING)
    return condition is not None and condition.reason == _INFEASIBLE


def _most(*found: ActualResources | Resizable | None) -> Amounts:
    most: Amounts = {}
    for stated in found:
        each = stated.requests if isinstance(stated, ActualResources) else stated
        if each is not None:
            texts = {"cpu": each.cpu, "memory": each.memory}
            there = {name: text for name, text in texts.items() if text is not None}
            for name, amount in read_amounts(there, "status").items():
                most[name] = max(most.get(name, 0), amount)
    return most


def _larger(asked: Amounts, actual: _Actual | None) -> Amounts:
    if actual is None:
        return asked
    amounts, is_infeasible = actual
    if is_infeasible:
        return asked | amounts
    return asked | {name: max(asked.get(name, 0), amounts[name]) for name in amounts}


def _asked(container: Container) -> Amounts:
    found = container.resources
    if found is None:
        return {}
    return read_amounts(
        {**(found.limits or {}), **(found.requests or {})}, f"container {container.name}"
    )


def read_amounts(amounts: Mapping[str, str | int], where: str) -> Amounts:
    """Return quantities in thousandths; raise RequestError, which says ``where`` they are."""
    found = {}
    for name, text in amounts.items():
        try:
            found[name] = _milli(text)
        except QuantityError as err:
            raise RequestError(f"{where}: {name}: {err}") from err
    return found


@lru_cache(maxsize=4096)
def _milli(text: str | int) -> int:
    amount = parse_quantity(text)
    if amount < 0:
        raise QuantityError(f"{text} is negative")
    return math.ceil(amount * MILLI)


def _add(to: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount
