"""What each card of a node is worth for a pod, by the same decision as the node's (pure)."""

from dataclasses import replace

from gpushare.cards.model import Request
from gpushare.ledger.ledger import CardAccount, NodeAccount, summed
from gpushare.placement import card_choice
from gpushare.placement.reasons import Reason


def part_of(request: Request) -> Request:
    """What the pod asks of each of its cards, as a request of one card."""
    if request.card_count == 1:
        return request
    containers = tuple(replace(c, units=c.units // request.card_count) for c in request.containers)
    return replace(request, containers=containers, card_count=1)


def why_not_card(
    account: NodeAccount, entry: CardAccount, request: Request, unit_mib: int
) -> Reason | None:
    """Why one card could not be among the pod's: the reason of a node that had this one alone."""
    return card_choice.why_not(summed(account.inventory, [entry]), part_of(request), unit_mib)
