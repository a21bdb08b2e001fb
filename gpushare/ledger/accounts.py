"""Add up the units of one node's cards: used, reserved, held, claimed, free (pure).

Free units are always computed from shares, reserves and slots, never incremented or decremented, so
that reordered or repeated events cannot make them drift.

There are tens of thousands of accounts, so Python's garbage collector does not examine them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import force_setattr, replace

from gpushare.cards.model import Card, Inventory, Share
from gpushare.ledger.holds import Hold, Holder, Slot, SlotKey, requests_kept

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_Slots = dict[SlotKey, tuple[Holder, Slot]]


class Reserve(msgspec.Struct, gc=False, frozen=True):
    """``units`` of each card, reserved for a decision whose write may or may not succeed.

    ``attempt`` counts the writes of this decision. Each write makes a different reserve, so that
    the outcome of an earlier write is never taken for that of a later one.
    """

    pod_uid: str
    namespace: str
    name: str
    node: str
    cards: tuple[str, ...]
    units: int
    assume_time_ns: int
    attempt: int = 1


class CardAccount(msgspec.Struct, gc=False, frozen=True):
    """Units of one card. ``free`` is at least 0; ``overcommitted`` is what exceeds the card.

    ``unplaced`` are units of pods that may run on any card of the node, ``reserved`` those of
    reserves and holds, ``claimed`` those of claims, as far as these count against the pod in
    question. ``free`` is computed once because filter reads it for thousands of nodes.
    """

    card: Card
    used: int
    unplaced: int
    reserved: int
    claimed: int = 0
    free: int = 0  # computed

    def __post_init__(self) -> None:
        force_setattr(self, "free", max(0, self.card.units - self.committed))

    @property
    def committed(self) -> int:
        return self.used + self.unplaced + self.reserved + self.claimed

    @property
    def overcommitted(self) -> int:
        return max(0, self.used + self.reserved - self.card.units)


class NodeAccount(msgspec.Struct, gc=False, frozen=True):
    """A node's cards in index order.

    ``open`` are the cards that take new pods, ``largest_free`` their free units, and ``largest``
    the units of all cards, both in falling order.
    """

    inventory: Inventory
    cards: tuple[CardAccount, ...]
    open: tuple[CardAccount, ...]
    largest_free: tuple[int, ...]
    largest: tuple[int, ...]


def used_by_pods(account: NodeAccount, shares: Iterable[Share]) -> int:
    """Return the units that the pods of a node with these ``shares`` use; unplaced ones once."""
    unplaced = sum([each.units for each in shares if each.is_unplaced])
    return unplaced + sum([entry.used for entry in account.cards])


def beside_hold(account: CardAccount, held: int) -> CardAccount:
    """Return a card's account for those for whom holds keep ``held`` units beside what counts.

    A claim is for what others leave. As long as they stay, it would take the room of the holds.
    """
    if not held:
        return account
    left = account.card.units - account.used - account.unplaced - account.reserved - held
    return replace(account, claimed=min(account.claimed, max(0, left)))


def summed(inventory: Inventory, cards: Sequence[CardAccount]) -> NodeAccount:
    """Return the account of a node that has exactly these cards."""
    taking_new = tuple([account for account in cards if account.card.takes_new])
    return NodeAccount(
        inventory,
        tuple(cards),
        taking_new,
        largest_free=_falling([account.free for account in taking_new]),
        largest=_falling(account.card.units for account in cards),
    )


class NodeEntry(msgspec.Struct, gc=False, eq=False):
    """All that the ledger knows of one node.

    ``held`` are the slots of holds here, ``claimed`` those of claims. ``cached`` is the account in
    which all of them count; every change must set it to None.
    """

    inventory: Inventory | None = None
    shares: dict[str, Share] = {}
    reserves: dict[str, Reserve] = {}
    held: _Slots = {}
    claimed: _Slots = {}
    cached: NodeAccount | None = None

    @property
    def is_empty(self) -> bool:
        rest = self.shares or self.reserves or self.held or self.claimed
        return self.inventory is None and not rest

    @property
    def slots(self) -> Iterator[tuple[Holder, Slot]]:
        yield from self.held.values()
        yield from self.claimed.values()

    def copy(self) -> "NodeEntry":
        own = dict(self.shares), dict(self.reserves), dict(self.held), dict(self.claimed)
        return NodeEntry(self.inventory, *own, self.cached)

    def slots_of(self, holder: Holder) -> _Slots:
        return self.held if holder.kind is Hold else self.claimed

    def account(self, besides: str, priority: int | None) -> NodeAccount | None:
        """Return the account for a pod as in ``Ledger.account``; it is cached for most pods."""
        if self.inventory is None:
            return None
        if not self._all_counts(besides, priority):
            return self._computed(self.inventory, besides, priority)
        if self.cached is None:
            self.cached = self._computed(self.inventory, "", None)
        return self.cached

    def kept_resources(self, besides: str, priority: int | None) -> Mapping[str, int]:
        """Return what slots of other pods keep, as in ``Ledger.kept_resources``."""
        if not (self.held or self.claimed):
            return _NOTHING
        sums: dict[str, int] = {}
        for holder, slot in self.slots:
            uid = slot.pod_uid
            if not holder.counts(priority) or (uid and uid == besides):
                continue
            if holder.kind is not Hold and uid in self.held:
                continue  # the pod has these requests once
            for name, amount in requests_kept(holder.kind, slot):
                sums[name] = sums.get(name, 0) + amount
        return sums

    def _all_counts(self, besides: str, priority: int | None) -> bool:
        """Return whether everything here counts against the pod ``besides`` of this priority."""
        if besides in self.reserves or besides in self.held or besides in self.claimed:
            return False
        return priority is None or all(holder.counts(priority) for holder, _ in self.slots)

    def _computed(self, inventory: Inventory, besides: str, priority: int | None) -> NodeAccount:
        used: dict[str, int] = {}
        reserved: dict[str, int] = {}
        claimed: dict[str, int] = {}
        unplaced = 0
        for share in self.shares.values():
            units, uuids = share.units, share.cards
            if not uuids:
                unplaced += share.units_everywhere
            for uuid in uuids:
                used[uuid] = used.get(uuid, 0) + units
        here = {card.uuid for card in inventory.cards}
        for reserve in self.reserves.values():
            if reserve.pod_uid == besides:
                continue
            for uuid in _usable(reserve.cards, here):
                reserved[uuid] = reserved.get(uuid, 0) + reserve.units
        if self.held or self.claimed:
            # Of slots pinned to a pod, only units beyond its reserve count, card by card.
            counted = {
                (reserve.pod_uid, uuid): reserve.units
                for reserve in self.reserves.values()
                for uuid in _usable(reserve.cards, here)
            }
            for slots, sums in ((self.held, reserved), (self.claimed, claimed)):
                mine = (slot for holder, slot in slots.values() if holder.counts(priority))
                _add_units(mine, here, besides, counted, sums)
        cards = [
            CardAccount(
                card,
                used.get(card.uuid, 0),
                unplaced,
                reserved.get(card.uuid, 0),
                claimed.get(card.uuid, 0),
            )
            for card in inventory.cards
        ]
        if claimed and besides in self.held:
            _, own = self.held[besides]
            own_cards = _usable(own.cards, here)
            cards = [
                beside_hold(each, own.units) if each.card.uuid in own_cards else each
                for each in cards
            ]
        return summed(inventory, cards)


def _usable(cards: tuple[str, ...], here: set[str]) -> Collection[str]:
    """Return the cards of ``here`` that a decision for ``cards`` may use."""
    # A decision from before the node renamed its cards may use any of them.
    return cards if here.issuperset(cards) else here


def _add_units(
    slots: Iterable[Slot],
    here: set[str],
    besides: str,
    counted: dict[tuple[str, str], int],
    sums: dict[str, int],
) -> None:
    """Add the units that slots keep of each card to ``sums``; skip those of the pod ``besides``.

    Of slots pinned to a pod, only units beyond ``counted`` (its units by uid and card so far) are
    added: a pod with a slot, then also a reserve, then only the slot again finds the same units
    free each time. ``counted`` grows accordingly.
    """
    for slot in slots:
        uid = slot.pod_uid
        if besides and uid == besides:
            continue
        for uuid in _usable(slot.cards, here):
            more = slot.units
            if uid:
                known = counted.get((uid, uuid), 0)
                more = max(0, more - known)
                counted[uid, uuid] = known + more
            sums[uuid] = sums.get(uuid, 0) + more


def _falling(units: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(units, reverse=True))
