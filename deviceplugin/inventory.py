"""From what the driver shows to the node's inventory (pure).

Index and tag belong to a UUID for ever: a card that was seen once keeps its place when it is gone,
as unhealthy, and its index is never given to another.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin.devices import tag_of
from deviceplugin.driver import PhysicalCard, Seen, UnreadableCard
from gpushare.cards import Card, Health, Inventory

BY_DRIVER: Final = -1  # of ``reserved_mib``: what the driver says it keeps for itself


@dataclass(frozen=True, slots=True)
class Terms:
    """What the operator set: MiB of a unit, MiB kept back on each card, and who publishes."""

    unit_mib: int
    reserved_mib: int = BY_DRIVER
    binding: str = ""
    plugin: str = ""

    def usable_mib(self, card: PhysicalCard) -> int:
        """What there is to share; a driver that does not tell what it keeps is taken to keep 0."""
        reserved = card.reserved_mib or 0 if self.reserved_mib == BY_DRIVER else self.reserved_mib
        return max(0, card.memory_mib - reserved)


@dataclass(frozen=True, slots=True)
class Survey:
    """An inventory, why cards in it are unhealthy, and the MiB that each card has to share."""

    inventory: Inventory
    reasons: Mapping[str, str] = field(default_factory=dict)
    usable_mib: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()  # what an operator should know about cards that are well


def restored(before: Inventory, terms: Terms) -> Survey:
    """The inventory as last known, in the unit that holds now."""
    usable = tuple(card.units * before.unit_mib for card in before.cards)
    cards = tuple(
        replace(card, units=mib // terms.unit_mib)
        for card, mib in zip(before.cards, usable, strict=True)
    )
    reasons = {c.uuid: "was unhealthy before the plugin started" for c in cards if not c.is_healthy}
    return Survey(_inventory(cards, terms), reasons, usable)


def survey(before: Inventory | None, seen: Sequence[Seen], terms: Terms) -> Survey:
    """The inventory after the driver has shown ``seen``.

    Known cards keep index and tag; one that is not shown, does not answer or is in MIG mode is
    unhealthy. New cards get the next free indexes in the driver's order.
    """
    known = restored(before, terms) if before is not None else Survey(_inventory((), terms))
    shown = {card.uuid: card for card in seen if isinstance(card, PhysicalCard)}
    broken = {card.uuid: card.why for card in seen if isinstance(card, UnreadableCard)}
    silent = "; ".join(
        card.why for card in seen if isinstance(card, UnreadableCard) and not card.uuid
    )
    cards: list[Card] = []
    usable: list[int] = []
    reasons: dict[str, str] = {}
    for card, mib in zip(known.inventory.cards, known.usable_mib, strict=True):
        found = shown.get(card.uuid)
        if found is None:
            reasons[card.uuid] = broken.get(card.uuid) or silent or "the driver no longer shows it"
        elif found.is_mig:
            reasons[card.uuid] = "it is in MIG mode, and such cards are not shared"
        if found is None or found.is_mig:
            cards.append(replace(card, health=Health.UNHEALTHY))
            usable.append(mib)
        else:
            cards.append(_card(found, card.index, card.tag, terms))
            usable.append(terms.usable_mib(found))
    for new in shown.values():
        if known.inventory.by_uuid(new.uuid) is None and not new.is_mig:
            index = max((card.index for card in cards), default=-1) + 1
            cards.append(_card(new, index, tag_of(new.uuid, {c.tag for c in cards}), terms))
            usable.append(terms.usable_mib(new))
    return Survey(
        _inventory(tuple(cards), terms), reasons, tuple(usable), _remarks(shown.values(), terms)
    )


def without_driver(before: Survey, why: str) -> Survey:
    """All cards unhealthy for one reason."""
    cards = tuple(replace(card, health=Health.UNHEALTHY) for card in before.inventory.cards)
    inventory = replace(before.inventory, cards=cards)
    return replace(before, inventory=inventory, reasons=dict.fromkeys((c.uuid for c in cards), why))


def _remarks(shown: Iterable[PhysicalCard], terms: Terms) -> tuple[str, ...]:
    remarks = []
    for card in shown:
        if card.is_mig:
            remarks.append(f"card {card.uuid} is in MIG mode, and such cards are not shared")
        elif card.reserved_mib is None and terms.reserved_mib == BY_DRIVER:
            remarks.append(
                f"the driver does not tell what it keeps of card {card.uuid} for itself, which "
                f"counts as nothing: set --reserved to a number of MiB"
            )
    return tuple(remarks)


def _card(found: PhysicalCard, index: int, tag: str, terms: Terms) -> Card:
    return Card(
        index=index,
        uuid=found.uuid,
        units=terms.usable_mib(found) // terms.unit_mib,
        tag=tag,
        minor=found.minor,
        model=found.model,
        memory_mib=found.memory_mib,
    )


def _inventory(cards: tuple[Card, ...], terms: Terms) -> Inventory:
    return Inventory(terms.unit_mib, cards, plugin=terms.plugin, binding=terms.binding)
