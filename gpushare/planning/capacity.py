"""Compute how many members of one shape a node takes, and which cards each gets (pure)."""

from collections.abc import Mapping, Sequence

from gpushare.cards.model import Request
from gpushare.cards.placement_policy import CardPolicy
from gpushare.ledger.accounts import NodeAccount
from gpushare.objects.pod_requests import Requests
from gpushare.placement.card_choice import FreeCard, FreeCards, is_wanted, select
from gpushare.placement.node_resources import free_of
from gpushare.placement.rank import Policies, Rank, rank
from gpushare.planning.shapes import Shape


def sets_of_cards(free: Sequence[int], units: int, count: int) -> int:
    """Return how many members fit that each use ``units`` of ``count`` different cards.

    ``free`` are the cards' free units. With one card a member, it is the sum of what each card
    takes. With M cards, k members fit exactly if sum(min(k, what the card takes)) >= k * M: deal
    out the cards in turn, a card at most once to each member.
    """
    if count == 1:
        return sum([each // units for each in free])
    takes = [each // units for each in free]
    most = sum(takes) // count
    while True:
        fewer = sum([min(most, each) for each in takes]) // count
        if fewer == most:
            return most
        most = fewer


def by_resources(free: Mapping[str, int], amounts: Requests) -> int:
    """Return how many members the free resources are enough for; each takes one of ``pods``."""
    # Of each node and shape: a call for each resource, of which most are there, would cost twice.
    takes = [
        (free[name] if name in free else free_of(free, name)) // amount for name, amount in amounts
    ]
    return max(0, min(takes))


def members_on(shape: Shape, cards: FreeCards | None, free: Mapping[str, int]) -> int:
    """Return how many members an eligible node takes. ``cards`` may be None without GPU memory."""
    most = by_resources(free, shape.amounts)
    if shape.need.is_apart:
        most = min(most, 1)
    request = shape.request
    if request is None or most == 0:
        return most
    if cards is None:
        return 0
    need = shape.need
    return min(most, sets_of_cards(wanted_free(cards, request), need.units, need.card_count))


def may_fit(shape: Shape, account: NodeAccount) -> bool:
    """Return whether the cards have room for a member, if its policy allows all of them."""
    need = shape.need
    free = account.largest_free
    return not need.card_count or (
        len(free) >= need.card_count and free[need.card_count - 1] >= need.units
    )


def wanted_free(cards: FreeCards, request: Request) -> list[int]:
    """Return the free units of the cards that the pod's policy allows."""
    if not request.policy.names_cards:
        return cards.free
    return [each.free for each in cards.places if is_wanted(each.card, request.policy)]


def cards_for_one(
    request: Request, cards: FreeCards, default: CardPolicy, left: int
) -> Sequence[FreeCard]:
    """Return the cards of one more member, which must fit.

    They are those that the pod would get by itself, unless fewer than ``left`` members would fit
    after it: then those that take most members.
    """
    chosen = select(cards, request, default) or ()
    count, units = request.card_count, request.units_per_card
    if count == 1 or left == 0:
        return chosen
    numbers = {each.number for each in chosen}
    wanted = [each for each in cards.places if is_wanted(each.card, request.policy)]
    after = [each.free - (units if each.number in numbers else 0) for each in wanted]
    if sets_of_cards(after, units, count) >= left:
        return chosen
    return sorted(wanted, key=lambda each: (-(each.free // units), each.number))[:count]


def rank_of(
    policies: Policies, shape: Shape, cards: FreeCards | None, takes: int, name: str
) -> Rank | None:
    """Return the rank of a node that takes at least one member.

    Members without GPU memory prefer nodes without GPUs, and then those that take the fewest.
    """
    if shape.request is not None and cards is not None:
        return rank(cards, shape.request, policies, name)
    return (0, 0.0 if cards is None else 1.0, float(takes), name)
