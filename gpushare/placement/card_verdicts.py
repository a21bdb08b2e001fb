"""Judge each card of a node for a pod by the rules for nodes (pure)."""

from dataclasses import replace

from gpushare.cards.model import Request
from gpushare.ledger.ledger import CardAccount, NodeAccount, summed
from gpushare.placement import card_choice
from gpushare.placement.reasons import Reason


def part_of(request: Request) -> Request:
    """Return a request of one card for what the pod requests of each of its cards."""
    if request.card_count == 1:
        return request
    containers = tuple(replace(c, units=c.units // request.card_count) for c in request.containers)
    return replace(request, containers=containers, card_count=1)


def why_not_card(
    account: NodeAccount, entry: CardAccount, request: Request, unit_mib: int
) -> Reason | None:
    """Return why the pod cannot use a card: the reason for a node that has only this card."""
    return card_choice.why_not(summed(account.inventory, [entry]), part_of(request), unit_mib)
