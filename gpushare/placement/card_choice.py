"""Which cards of one node a pod gets, or why none (pure)."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare.cards.model import Card, Inventory, Request
from gpushare.cards.placement_policy import CardPolicy, PlacementPolicy
from gpushare.contract import BY_CDI, EARLY_BINDING
from gpushare.ledger.ledger import CardAccount, NodeAccount
from gpushare.placement.reasons import (
    CORDONED,
    EXPOSES_CARDS,
    NEEDS_RUNTIME,
    NO_CARDS,
    NO_ROOM,
    NO_ROOM_ON_ENOUGH,
    SETS_CARDS,
    TOO_FEW_CARDS,
    TOO_LARGE,
    UNHEALTHY,
    UNWANTED,
    WRONG_MODEL,
    WRONG_UNIT,
    Reason,
)

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class Place(NamedTuple):
    """A card that takes new pods, and its free units. They sort as binpack wants them."""

    free: int
    number: int  # the card's index
    card: Card

    @property
    def utilisation(self) -> float:
        return 1 - self.free / self.card.units if self.card.units else 1.0


class Room:
    """The cards of a node that take new pods, by rising free units and then by index.

    ``taken`` are units by UUID that count as used here, beside what the account has.
    """

    __slots__ = ("account", "free", "places", "sizes", "units", "used")

    def __init__(self, account: NodeAccount, taken: Mapping[str, int] = NOTHING) -> None:
        self.account = account
        self.places = sorted(
            Place(max(0, each.free - taken.get(each.card.uuid, 0)), each.card.index, each.card)
            for each in account.cards
            if each.card.takes_new
        )
        self.free = [place.free for place in self.places]
        self.sizes = [place.card.units for place in self.places]
        self.units = sum(self.sizes)
        self.used = self.units - sum(self.free)


def why_not(account: NodeAccount | None, request: Request, unit_mib: int) -> Reason | None:
    """Why the pod's card set does not fit on a node now; None if it fits."""
    if account is None:
        return NO_CARDS
    reason = why_unserved(account.inventory, request, unit_mib)
    if reason is not None:
        return reason
    wanted, last = request.units_per_card, request.card_count - 1
    if request.policy.names_cards:
        if pick(Room(account), request, CardPolicy.BINPACK) is not None:
            return None
    elif _has(account.largest_free, last, wanted):
        return None
    return why_no_set(account, request)


def why_no_set(account: NodeAccount, request: Request) -> Reason:
    """Return why no card set of the node fits; the caller knows that none does."""
    wanted, last = request.units_per_card, request.card_count - 1
    if len(account.largest) <= last:
        return TOO_FEW_CARDS
    if not _has(account.largest, last, wanted):
        return TOO_LARGE
    return _why_none_of_enough(account, request)


def why_unserved(inventory: Inventory, request: Request, unit_mib: int) -> Reason | None:
    """Why the node's setup cannot serve the pod, whatever room it has; None if it can."""
    if inventory.unit_mib != unit_mib:
        return WRONG_UNIT
    if request.sets_cards and inventory.binding == EARLY_BINDING:
        return SETS_CARDS
    return why_not_injected(inventory.injection, inventory.runtime_classes, request)


def why_not_injected(
    injection: str, runtime_classes: Collection[str], request: Request
) -> Reason | None:
    """Why containers would see no card, or cards that are not theirs; None if all is right.

    ``injection`` and ``runtime_classes`` are the node's, as its inventory states them. The plugin
    asks here as well, before a container starts.
    """
    if not injection:
        return None  # an older plugin does not say how its node is set up
    is_nvidias = request.runtime_class in runtime_classes
    if injection != BY_CDI and not is_nvidias:
        return NEEDS_RUNTIME
    return EXPOSES_CARDS if is_nvidias and request.exposes_cards else None


def choose(
    account: NodeAccount,
    request: Request,
    default: CardPolicy = CardPolicy.BINPACK,
    taken: Mapping[str, int] = NOTHING,
) -> tuple[Card, ...] | None:
    """The cards that a pod gets, in index order; None if there are too few with room.

    ``default`` applies where the pod sets no card policy. The same state always gives the same
    answer. ``taken`` is as in Room.
    """
    return choose_in(Room(account, taken), request, default)


def choose_in(room: Room, request: Request, default: CardPolicy) -> tuple[Card, ...] | None:
    """The same where the room of a node is known already."""
    chosen = pick(room, request, default)
    if chosen is None:
        return None
    return tuple(sorted((place.card for place in chosen), key=lambda card: card.index))


def pick(room: Room, request: Request, default: CardPolicy) -> Sequence[Place] | None:
    """The places that ``choose`` takes.

    binpack: those with least room that is enough, which keeps large gaps for large pods. spread:
    the least used ones. Among equals the lowest index.
    """
    places, free = room.places, room.free
    policy = request.policy
    if policy.names_cards:
        places = [place for place in places if _is_wanted(place.card, policy)]
        free = [place.free for place in places]
    first, count = bisect_left(free, request.units_per_card), request.card_count
    if len(free) - first < count:
        return None
    if (policy.card_policy or default) is CardPolicy.SPREAD:
        least_used = sorted(places[first:], key=lambda each: (each.utilisation, each.number))
        return least_used[:count]
    return places[first : first + count]


def _why_none_of_enough(account: NodeAccount, request: Request) -> Reason:
    """Why a node whose cards are enough and large enough has none to give."""
    policy, count = request.policy, request.card_count
    left: Sequence[CardAccount] = [
        each for each in account.cards if each.card.units >= request.units_per_card
    ]
    if policy.models:
        left = [each for each in left if each.card.model in policy.models]
        if len(left) < count:
            return WRONG_MODEL
    if policy.names_cards:
        left = [each for each in left if _is_wanted(each.card, policy)]
        if len(left) < count:
            return UNWANTED
    left = [each for each in left if each.card.is_healthy]
    if len(left) < count:
        return UNHEALTHY
    if sum(each.card.takes_new for each in left) < count:
        return CORDONED
    return NO_ROOM if count == 1 else NO_ROOM_ON_ENOUGH


def _is_wanted(card: Card, policy: PlacementPolicy) -> bool:
    return (
        (not policy.models or card.model in policy.models)
        and (not policy.only or card.uuid in policy.only)
        and card.uuid not in policy.never
    )


def _has(falling: tuple[int, ...], place: int, wanted: int) -> bool:
    return len(falling) > place and falling[place] >= wanted
