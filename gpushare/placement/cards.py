"""Which cards of one node a pod gets, or why none (pure)."""

from gpushare.cards import Card, Request
from gpushare.contract import EARLY_BINDING
from gpushare.ledger import NodeAccount
from gpushare.placement.reasons import (
    NO_CARDS,
    NO_ROOM,
    NO_ROOM_ON_ENOUGH,
    SETS_CARDS,
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
    wanted, last = request.units_per_card, request.card_count - 1
    if account.inventory.unit_mib != unit_mib:
        return WRONG_UNIT
    if request.sets_cards and account.inventory.binding == EARLY_BINDING:
        return SETS_CARDS
    if _has(account.largest_free, last, wanted):
        return None
    if len(account.largest) <= last:
        return TOO_FEW_CARDS
    if not _has(account.largest, last, wanted):
        return TOO_LARGE
    if not _has(account.largest_healthy, last, wanted):
        return UNHEALTHY
    return NO_ROOM if last == 0 else NO_ROOM_ON_ENOUGH


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


def _has(falling: tuple[int, ...], place: int, wanted: int) -> bool:
    return len(falling) > place and falling[place] >= wanted
