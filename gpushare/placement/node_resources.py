"""Compare a pod's requests with the free allocatable resources of a node (pure).

All amounts are in thousandths, as in ``pod_requests``.
"""

from collections.abc import Mapping

from gpushare.demand.scarcity import Left
from gpushare.objects.model import Node
from gpushare.objects.pod_requests import MOST_AMOUNT, Amounts, read_amounts


def free_resources(node: Node, *used: Mapping[str, int]) -> Amounts:
    """Return the node's allocatable less all of ``used``: by its pods, and by holds and claims.

    Raises RequestError if an amount of the node cannot be read.
    """
    left = read_amounts(node.allocatable, f"allocatable of node {node.name}")
    for amounts in used:
        for name in left.keys() & amounts.keys():
            left[name] -= amounts[name]
    return left


def left_of(free: Mapping[str, int] | None) -> Left | None:
    """Return the CPU and memory of what is free on a node; None if that is not known.

    Amounts beyond what Kubernetes accepts are limited, so that they can be compared as floats.
    """
    if free is None or "cpu" not in free:
        return None
    return limited(free["cpu"]), limited(free.get("memory", 0))


def limited(amount: int) -> int:
    return max(-MOST_AMOUNT, min(MOST_AMOUNT, amount))


def insufficient(free: Mapping[str, int], asked: Mapping[str, int]) -> list[str]:
    """Return the names of the resources of which less is free than requested."""
    return sorted(name for name, amount in asked.items() if amount > max(0, free.get(name, 0)))
