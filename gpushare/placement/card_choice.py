"""Choose the cards of one node for a pod, or state why it gets none (pure)."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from operator import eq
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from gpushare.cards.model import Card, Inventory, Request
from gpushare.cards.placement_policy import CardPolicy, PlacementPolicy
from gpushare.contract import BY_CDI, BY_DRIVER, EARLY_BINDING
from gpushare.demand.scarcity import Left
from gpushare.ledger.accounts import CardAccount, NodeAccount, summed
from gpushare.placement.reasons import (
    CORDONED,
    EXPOSES_CARDS,
    NEEDS_RUNTIME,
    NO_CARDS,
    NO_ROOM,
    NO_ROOM_ON_ENOUGH,
    NOT_LIMITED,
    SETS_CARDS,
    SETS_LIMITS,
    TOO_FEW_CARDS,
    TOO_LARGE,
    UNHEALTHY,
    UNWANTED,
    WRONG_MODEL,
    WRONG_UNIT,
    Reason,
)

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class FreeCard(msgspec.Struct, gc=False, frozen=True, order=True):
    """A card that takes new pods, with its free units. The order is that of binpack."""

    free: int
    number: int  # the card's index
    card: Card

    @property
    def utilization(self) -> float:
        return 1 - self.free / self.card.units if self.card.units else 1.0


class FreeCards:
    """The cards of a node that take new pods, ordered by free units and then by index.

    ``expected`` are units by UUID that count as used in addition to those of ``account``. ``left``
    is what the node has besides; None if it is not known. ``empty`` counts entirely free cards;
    ``model`` is that of all cards, None if they differ.
    """

    __slots__ = ("account", "empty", "free", "left", "model", "places", "sizes", "units", "used")

    def __init__(
        self,
        account: NodeAccount,
        expected: Mapping[str, int] = NOTHING,
        left: Left | None = None,
    ) -> None:
        self.account, self.left = account, left
        places = [FreeCard(each.free, each.card.index, each.card) for each in account.open]
        if expected:
            places = [
                replace(each, free=max(0, each.free - expected.get(each.card.uuid, 0)))
                for each in places
            ]
        places.sort()
        self.places = places
        self.free = [place.free for place in self.places]
        self.sizes = [place.card.units for place in self.places]
        self.units = sum(self.sizes)
        self.used = self.units - sum(self.free)
        models = {place.card.model for place in places}
        self.model = models.pop() if len(models) == 1 else None
        self.empty = sum(map(eq, self.free, self.sizes))

    def use(self, place: FreeCard, units: int) -> None:
        """Use units of one of ``places``, which must have as many free."""
        at = bisect_left(self.places, place)
        del self.places[at], self.free[at], self.sizes[at]
        now = FreeCard(place.free - units, place.number, place.card)
        at = bisect_left(self.places, now)
        self.empty -= place.free == place.card.units and units > 0
        self.places.insert(at, now)
        self.free.insert(at, now.free)
        self.sizes.insert(at, now.card.units)
        self.used += units


def why_not(account: NodeAccount | None, request: Request, unit_mib: int) -> Reason | None:
    """Return why the pod does not fit on a node's cards now; None if it fits."""
    if account is None:
        return NO_CARDS
    reason = why_unserved(account.inventory, request, unit_mib)
    if reason is not None:
        return reason
    wanted, last = request.units_per_card, request.card_count - 1
    if request.policy.names_cards:
        if select(FreeCards(account), request, CardPolicy.BINPACK) is not None:
            return None
    elif _has(account.largest_free, last, wanted):
        return None
    return why_no_set(account, request)


def why_no_set(account: NodeAccount, request: Request) -> Reason:
    """Return why the pod does not fit on the node's cards; call it only if that is so."""
    wanted, last = request.units_per_card, request.card_count - 1
    if len(account.largest) <= last:
        return TOO_FEW_CARDS
    if not _has(account.largest, last, wanted):
        return TOO_LARGE
    return _why_none_of_enough(account, request)


def why_unserved(inventory: Inventory, request: Request, unit_mib: int) -> Reason | None:
    """Return why the node's setup cannot serve the pod at all; None if it can."""
    if inventory.unit_mib != unit_mib:
        return WRONG_UNIT
    if request.sets_cards and inventory.binding == EARLY_BINDING:
        return SETS_CARDS
    if request.sets_limits:
        return SETS_LIMITS
    return why_not_injected(inventory.injection, inventory.runtime_classes, request)


def why_not_injected(
    injection: str, runtime_classes: Collection[str], request: Request
) -> Reason | None:
    """Return why containers would see no card, or cards of other pods; None if neither.

    ``injection`` and ``runtime_classes`` come from the node's inventory. The device plugin also
    checks this, before a container starts.
    """
    if not injection:
        return None  # older versions of the plugin do not state the setup
    has_nvidia_runtime = request.runtime_class in runtime_classes
    if injection != BY_CDI and not has_nvidia_runtime:
        return NEEDS_RUNTIME
    return EXPOSES_CARDS if has_nvidia_runtime and request.exposes_cards else None


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
    return why_not(summed(account.inventory, [entry]), part_of(request), unit_mib)


def choose(
    account: NodeAccount,
    request: Request,
    default: CardPolicy = CardPolicy.BINPACK,
    expected: Mapping[str, int] = NOTHING,
) -> tuple[Card, ...] | None:
    """Return the cards that a pod gets, in index order; None if too few have enough free units.

    ``default`` applies if the pod sets no card policy, ``expected`` is as in FreeCards. The same
    state always gives the same answer.
    """
    chosen = select(FreeCards(account, expected), request, default)
    if chosen is None:
        return None
    return tuple(sorted((place.card for place in chosen), key=lambda card: card.index))


def select(cards: FreeCards, request: Request, default: CardPolicy) -> Sequence[FreeCard] | None:
    """Select the cards for a pod as ``choose`` does, in no particular order.

    binpack takes the cards with the fewest free units that are enough, which keeps large gaps for
    large pods. spread takes the least used cards. Equal cards are taken in index order.
    """
    places, free = cards.places, cards.free
    policy = request.policy
    if policy.names_cards:
        places = [place for place in places if is_wanted(place.card, policy)]
        free = [place.free for place in places]
    first, count = bisect_left(free, request.units_per_card), request.card_count
    if len(free) - first < count:
        return None
    if (policy.card_policy or default) is CardPolicy.SPREAD:
        least_used = sorted(places[first:], key=lambda each: (each.utilization, each.number))
        return least_used[:count]
    return places[first : first + count]


def _why_none_of_enough(account: NodeAccount, request: Request) -> Reason:
    """Return why a node with enough cards that are large enough has none for the pod."""
    policy, count = request.policy, request.card_count
    if not policy.names_cards and len(account.open) == len(account.cards):
        return NO_ROOM if count == 1 else NO_ROOM_ON_ENOUGH  # the usual reason, without lists
    left: Sequence[CardAccount] = [
        each for each in account.cards if each.card.units >= request.units_per_card
    ]
    if policy.models:
        left = [each for each in left if each.card.model in policy.models]
        if len(left) < count:
            return WRONG_MODEL
    if policy.needs_limit:
        left = [each for each in left if each.card.enforces == BY_DRIVER]
        if len(left) < count:
            return NOT_LIMITED
    if policy.names_cards:
        left = [each for each in left if is_wanted(each.card, policy)]
        if len(left) < count:
            return UNWANTED
    left = [each for each in left if each.card.is_healthy]
    if len(left) < count:
        return UNHEALTHY
    if sum(each.card.takes_new for each in left) < count:
        return CORDONED
    return NO_ROOM if count == 1 else NO_ROOM_ON_ENOUGH


def is_wanted(card: Card, policy: PlacementPolicy) -> bool:
    return (
        (not policy.models or card.model in policy.models)
        and (not policy.only or card.uuid in policy.only)
        and card.uuid not in policy.never
        and (not policy.needs_limit or card.enforces == BY_DRIVER)
    )


def _has(falling: tuple[int, ...], place: int, wanted: int) -> bool:
    return len(falling) > place and falling[place] >= wanted
