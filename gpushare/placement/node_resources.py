"""Compare a pod's requests with the free allocatable resources of a node (pure).

All amounts are in thousandths of a unit, rounded up: of a core for ``cpu``, of a byte for
``memory``.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gpushare.errors import QuantityError, RequestError
from gpushare.ledger.holds import Requests
from gpushare.objects.model import Container, Node, Pod
from gpushare.objects.quantity import parse_quantity

MILLI: Final = 1000
PODS: Final = "pods"

Amounts = dict[str, int]


def requests_of(pod: Pod) -> Amounts:
    """Return the pod's effective requests (KEP-753) with its overhead, and one of ``pods``.

    A limit without a request counts as the request, as the API server defaults it. Raises
    RequestError if an amount cannot be read.
    """
    apps: Amounts = {}
    for container in pod.spec.containers or ():
        _add(apps, _asked(container))
    sidecars: Amounts = {}
    at_start: Amounts = {}
    for container in pod.spec.init_containers or ():
        asked = _asked(container)
        if container.is_sidecar:
            _add(sidecars, asked)
            continue
        for name, amount in asked.items():
            total = sidecars.get(name, 0) + amount
            at_start[name] = max(at_start.get(name, 0), total)
    _add(apps, sidecars)
    found = {name: max(apps.get(name, 0), at_start.get(name, 0)) for name in apps | at_start}
    _add(found, _read(pod.spec.overhead or {}, "overhead"))
    _add(found, {PODS: MILLI})
    return found


def resources_used(pod: Pod) -> Requests | None:
    """Return what a bound pod uses of its node, for ResourceUse; None if it cannot be read."""
    try:
        return tuple(sorted(requests_of(pod).items()))
    except RequestError:
        return None


def free_resources(node: Node, *used: Mapping[str, int]) -> Amounts:
    """Return the node's allocatable less all of ``used``: by its pods, and by holds and claims.

    Raises RequestError if an amount of the node cannot be read.
    """
    left = _read(node.allocatable, f"allocatable of node {node.name}")
    for amounts in used:
        for name in left.keys() & amounts.keys():
            left[name] -= amounts[name]
    return left


def insufficient(free: Mapping[str, int], asked: Mapping[str, int]) -> list[str]:
    """Return the names of the resources of which less is free than requested."""
    return sorted(name for name, amount in asked.items() if amount > max(0, free.get(name, 0)))


def _asked(container: Container) -> Amounts:
    found = container.resources
    if found is None:
        return {}
    return _read({**(found.limits or {}), **(found.requests or {})}, f"container {container.name}")


def _read(amounts: Mapping[str, str | int], where: str) -> Amounts:
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
