"""What can be read of a node's cards, and why it takes nothing new where that fails (pure)."""

from gpushare import inventory
from gpushare.cards import Inventory
from gpushare.errors import RecordError
from gpushare.objects import Node
from gpushare.placement.reasons import UNREADABLE, UNREADABLE_CORDON, Reason


def cards_of(node: Node, unit_mib: int) -> tuple[Inventory | None, str, Reason | None]:
    """The node's cards, what is wrong with its annotations, and why it takes no pods then."""
    try:
        found = inventory.of_node(node, unit_mib)
    except RecordError as err:
        return None, str(err), UNREADABLE
    try:
        return found and inventory.with_cordons(found, node), "", None
    except RecordError as err:
        return found, str(err), UNREADABLE_CORDON
