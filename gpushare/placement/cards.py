"""Which cards of one node a pod gets, or why none (pure)."""

from gpushare.cards import Card, Inventory, Request
from gpushare.ledger import NodeAccount
from gpushare.placement.reasons import (
    NO_CARDS,
    NO_ROOM,
    NO_ROOM_ON_ENOUGH,
    TOO_FEW_CARDS,
    TOO_LARGE,
    UNHEALTHY,
    WRONG_UNIT,
    Reason,
)


def why_not(account: NodeAccount | None, request: Request, unit_mib: int) -> Reason | None:
    """Why the pod's card set does not fit on a node now; None if it fits."""
    if account is None:
        return NO_CARDS
    inventory, wanted, count = account.inventory, request.units_per_card, request.card_count
    if inventory.unit_mib != unit_mib:
        return WRONG_UNIT
    free = account.largest_free
    if len(free) >= count and free[count - 1] >= wanted:
        return None
    if len(inventory.cards) < count:
        return TOO_FEW_CARDS
    if _large_enough(inventory, wanted, healthy=False) < count:
        return TOO_LARGE
    if _large_enough(inventory, wanted, healthy=True) < count:
        return UNHEALTHY
    return NO_ROOM if count == 1 else NO_ROOM_ON_ENOUGH


def choose(account: NodeAccount, request: Request) -> tuple[Card, ...] | None:
    """The tightest cards that are large enough, in index order; None if there are too few.

    Best fit keeps large gaps for large pods; on a tie the lowest index wins, so that the same
    state always gives the same answer.
    """
    fitting = sorted(
        (entry.free, entry.card.index, entry.card)
        for entry in account.cards
        if entry.card.is_healthy and entry.free >= request.units_per_card
    )
    if len(fitting) < request.card_count:
        return None
    chosen = (card for _, _, card in fitting[: request.card_count])
    return tuple(sorted(chosen, key=lambda card: card.index))


def _large_enough(inventory: Inventory, wanted: int, *, healthy: bool) -> int:
    return sum(
        card.units >= wanted and (card.is_healthy or not healthy) for card in inventory.cards
    )
