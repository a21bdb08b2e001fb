"""Decide whether a node may take members of a shape at all, whatever is free there (pure).

The rules are those of kube-scheduler's own filters (node_constraints.py) and of the extender's
filter. A node that is not ready or not reachable has taints.
"""

from gpushare.ledger.accounts import NodeAccount
from gpushare.placement import node_constraints
from gpushare.placement.card_choice import why_unserved
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.trial import World
from gpushare.planning.reasons import NODE_GONE, NODE_RULES
from gpushare.planning.shapes import Shape


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
