"""Compare a pod's requests with the free allocatable resources of a node (pure).

All amounts are in thousandths, as in ``pod_requests``. A node's free resources list every foreign
resource that is judged, with 0 where the node offers none of it. What they do not list is no
obstacle: kube-scheduler decides about it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpushare.demand.scarcity import Left
from gpushare.errors import RequestError
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import (
    MOST_AMOUNT,
    Amounts,
    foreign_resources,
    is_foreign,
    read_amounts,
)

_NONE: Final[frozenset[str]] = frozenset()
_LEFT: Final[tuple[str, ...]] = ("cpu", "memory")


class OfferedResources:
    """The foreign resources of which any node has some allocatable: only these are judged.

    Of one that no node offers, kube-scheduler may still find enough: its configuration may say that
    it ignores the resource (NodeResourcesFitArgs, and ``ignoredByScheduler`` of an extender), or a
    DRA driver may serve it (KEP-5004). Its plugin NodeResourcesFit treats an allocatable 0 as if
    the node did not name the resource (fit.go, shouldDelegateResourceToDRA).
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._of: dict[str, frozenset[str]] = {}
        self._nodes: Counter[str] = Counter()  # how many offer it, by resource
        for node in nodes:
            self.put(node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def has_all(self, resources: Iterable[str]) -> bool:
        return all(name in self._nodes for name in resources)

    def put(self, node: Node) -> bool:
        """Take a node or its new version; return whether other resources are judged now."""
        found = [name for name, much in node.allocatable.items() if is_foreign(name) and _any(much)]
        return self._set(node.name, frozenset(found))

    def drop(self, node: str) -> bool:
        """Forget a node; return whether other resources are judged now."""
        return self._set(node, _NONE)

    def _set(self, node: str, now: frozenset[str]) -> bool:
        before = self._of.pop(node, _NONE)
        if now:
            self._of[node] = now
        if now == before:
            return False
        known = self._nodes.keys()
        self._nodes = self._nodes + Counter(now)
        self._nodes -= Counter(before)  # drops those of which none is left
        return self._nodes.keys() != known


def free_resources(node: Node, *used: Mapping[str, int], offered: Iterable[str] = ()) -> Amounts:
    """Return the node's allocatable less all of ``used``: by its pods, and by holds and claims.

    ``offered`` are the foreign resources of all nodes. Raises RequestError if an amount of the node
    cannot be read.
    """
    left = dict.fromkeys(offered, 0)
    found = read_amounts(node.allocatable, f"allocatable of node {node.name}")
    left |= {name: much for name, much in found.items() if much or not is_foreign(name)}
    for amounts in used:
        for name in left.keys() & amounts.keys():
            left[name] -= amounts[name]
    return left


def left_of(free: Mapping[str, int] | None, every: Left | None) -> Left | None:
    """Return the CPU and memory of a node of which so much is free; None if that is not known.

    ``every`` is that of ``every_of``. Amounts beyond what Kubernetes accepts are limited, so that
    they can be compared as floats.
    """
    if free is None or every is None or "cpu" not in free:
        return None
    return every._replace(cpu=limited(free["cpu"]), memory=limited(free.get("memory", 0)))


def every_of(node: Node | None) -> Left | None:
    """Return a node's CPU and memory as if all were free; None if they cannot be read."""
    if node is None:
        return None
    stated = {name: node.allocatable[name] for name in _LEFT if name in node.allocatable}
    if "cpu" not in stated:
        return None
    try:
        every = read_amounts(stated, f"allocatable of node {node.name}")
    except RequestError:
        return None
    cpu, memory = (limited(every.get(name, 0)) for name in _LEFT)
    return Left(cpu, memory, max(1, cpu), max(1, memory), node.takes_any)


def limited(amount: int) -> int:
    return max(-MOST_AMOUNT, min(MOST_AMOUNT, amount))


def free_of(free: Mapping[str, int], resource: str) -> int:
    """Return how much of a resource is free; as much as there can be of one that is not judged."""
    found = free.get(resource)
    if found is None:
        return MOST_AMOUNT if is_foreign(resource) else 0
    return found


def judges(free: Mapping[str, int] | None, pod: Pod) -> bool:
    """Return whether all resources that a pod requests are judged."""
    return all(name in (free or ()) for name in foreign_resources(pod))


def take(free: Amounts, amounts: Iterable[tuple[str, int]]) -> None:
    """Take amounts away from what is free, except what is not judged."""
    for name, amount in amounts:
        if name in free:
            free[name] -= amount


def insufficient(free: Mapping[str, int], asked: Mapping[str, int]) -> list[str]:
    """Return the names of the resources of which less is free than requested."""
    return sorted(name for name, amount in asked.items() if amount > max(0, free_of(free, name)))


def _any(amount: str | int) -> bool:
    return str(amount) != "0"
