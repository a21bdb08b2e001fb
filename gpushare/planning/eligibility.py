"""Decide whether a node may take members of a shape at all, whatever is free there (pure).

The rules are those of kube-scheduler's own filters (node_constraints.py) and of the extender's
filter. A node that is not ready or not reachable has taints.
"""

from collections.abc import Generator, Iterable
from typing import Final

from gpushare.errors import RequestError
from gpushare.ledger.accounts import NodeAccount
from gpushare.objects.model import Pod
from gpushare.placement import node_constraints
from gpushare.placement.card_choice import why_unserved
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.trial import World
from gpushare.planning.reasons import NODE_GONE, NODE_RULES
from gpushare.planning.shapes import Reader, Shape

NODES_A_STEP: Final = 32


def why_not(world: World, name: str, shape: Shape, account: NodeAccount | None) -> Reason | None:
    """Return why the node takes no member of this shape; None if it may."""
    request = shape.request
    if request is not None:
        closed = world.why_closed(name)
        if closed is not None:
            return closed
        if account is None:
            return NO_CARDS
    node = world.node(name)
    if node is None:
        return NODE_GONE
    if node_constraints.why_not(shape.pod, node):
        return NODE_RULES
    if request is None or account is None:
        return None
    return why_unserved(account.inventory, request, world.unit_mib)


def nodes_for(world: World, pods: Iterable[Pod]) -> Generator[None, None, set[str]]:
    """Return the nodes that may take one of the pods, whatever is free there, in short steps.

    Pods without GPU memory do not count.
    """
    reader, shapes, found = Reader(world), dict[object, Shape](), set[str]()
    for pod in pods:
        try:
            shape = reader.shape_of(pod)
        except RequestError:
            continue
        if shape.request is not None:
            shapes[shape.key] = shape
    for shape in shapes.values():
        for number, name in enumerate(world.node_names()):
            if number % NODES_A_STEP == 0:
                yield
            if why_not(world, name, shape, world.ledger.account(name)) is None:
                found.add(name)
    return found
