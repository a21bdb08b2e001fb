"""Derives the node's inventory from what the driver shows (pure).

Index and tag belong to a UUID: a GPU that was seen once keeps its place when it is gone, until it
is forgotten (``forgetting``). Its index is never given to another. What a check found is judged in
``rules``.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin.cards.device_list import is_tag, tag_of
from deviceplugin.cards.rules import HealthCheckResult, HealthReason, finding_of
from deviceplugin.driver.interface import PhysicalCard, Query, Seen, UnreadableCard
from deviceplugin.settings import RESERVED_BY_DRIVER, MemoryLimitFlag
from gpushare.cards.model import Card, Health, Inventory
from gpushare.cards.reserve import NO_RESERVE, Reserve

MIG: Final = "is in MIG mode, and such GPUs are not shared"
FLUTTER_MIB: Final = 16  # another driver version or setting changes the reserved memory by far more


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings that the inventory depends on or states."""

    unit_mib: int
    reserved_mib: int = RESERVED_BY_DRIVER
    binding: str = ""
    plugin: str = ""
    injection: str = ""
    runtime_classes: frozenset[str] = frozenset()
    memory_limit: MemoryLimitFlag = "auto"
    framework_limits: bool = False
    reserve: Reserve = NO_RESERVE

    def usable_mib(self, card: PhysicalCard) -> int:
        """Return the memory to share; a driver that reports no reserved memory reserves 0."""
        reserved = (
            card.reserved_mib or 0 if self.reserved_mib == RESERVED_BY_DRIVER else self.reserved_mib
        )
        return max(0, card.memory_mib - reserved - self.reserve.of(card.memory_mib))


@dataclass(frozen=True, slots=True)
class Survey:
    """The node's GPUs, in index order, and what a check of them found.

    ``inventory`` says nothing about health; ``findings`` are about its GPUs, except those in MIG
    mode. ``usable_mib`` is the memory that each shares. ``unlisted`` are GPUs that have no place in
    it because they have never answered. ``remarks`` are for the operator, as is ``failing``: texts
    about queries that keep failing, by what they are about.
    """

    inventory: Inventory
    usable_mib: tuple[int, ...] = ()
    findings: Mapping[str, HealthCheckResult] = field(default_factory=dict)
    mig: frozenset[str] = frozenset()
    unlisted: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    failing: Mapping[str, str] = field(default_factory=dict)


def restored(before: Inventory, terms: Terms) -> Survey:
    """Return the inventory as last known, in the unit now in force."""
    usable = tuple(card.units * before.unit_mib for card in before.cards)
    cards = tuple(
        replace(card, units=mib // terms.unit_mib, health=Health.HEALTHY, gone_since=0)
        for card, mib in zip(_tagged(before.cards), usable, strict=True)
    )
    return Survey(_inventory(cards, terms, before.next_index), usable)


def without(before: Survey, uuids: Collection[str]) -> Survey:
    """Return the survey without these GPUs, whose indexes stay unused."""
    places = [
        (card, mib)
        for card, mib in zip(before.inventory.cards, before.usable_mib, strict=True)
        if card.uuid not in uuids
    ]
    inventory = replace(
        before.inventory,
        cards=tuple(card for card, _ in places),
        next_index=_next_index(before.inventory.cards, before.inventory.next_index),
    )
    findings = {uuid: each for uuid, each in before.findings.items() if uuid not in uuids}
    usable = tuple(mib for _, mib in places)
    return replace(before, inventory=inventory, usable_mib=usable, findings=findings)


def _tagged(before: Sequence[Card]) -> tuple[Card, ...]:
    """Return the GPUs with unique valid tags: an annotation may have been edited."""
    cards: list[Card] = []
    for card in before:
        taken = {other.tag for other in cards}
        if is_tag(card.tag) and card.tag not in taken:
            cards.append(card)
        else:
            taken |= {other.tag for other in before}
            cards.append(replace(card, tag=tag_of(card.uuid, taken)))
    return tuple(cards)


def survey(before: Inventory | None, seen: Sequence[Seen], terms: Terms) -> Survey:
    """Return the inventory after the driver has shown ``seen``.

    Known GPUs keep index and tag. New GPUs get the next free indexes in the driver's order; one
    that is in MIG mode from the start has no units.
    """
    known = restored(before, terms) if before is not None else Survey(_inventory((), terms))
    seen = _without_duplicates(seen)
    shown = {card.uuid: card for card in seen if isinstance(card, PhysicalCard)}
    broken = {card.uuid: card for card in seen if isinstance(card, UnreadableCard) and card.uuid}
    nameless = [card for card in seen if isinstance(card, UnreadableCard) and not card.uuid]
    cards: list[Card] = []
    usable: list[int] = []
    findings: dict[str, HealthCheckResult] = {}
    for card, mib in zip(known.inventory.cards, known.usable_mib, strict=True):
        found = shown.get(card.uuid)
        if found is None:
            findings[card.uuid] = _absent(broken.get(card.uuid), nameless)
        elif not found.is_mig:
            findings[card.uuid] = finding_of(found)
        if found is None or found.is_mig:
            cards.append(card)
            usable.append(mib)
        else:
            cards.append(_card(found, card.index, card.tag, terms))
            usable.append(terms.usable_mib(found))
    for new in shown.values():
        if known.inventory.by_uuid(new.uuid) is None:
            index = _next_index(cards, known.inventory.next_index)
            made = _card(new, index, tag_of(new.uuid, {c.tag for c in cards}), terms)
            cards.append(replace(made, units=0) if new.is_mig else made)
            usable.append(0 if new.is_mig else terms.usable_mib(new))
            if not new.is_mig:
                findings[new.uuid] = finding_of(new)
    inventory = _inventory(tuple(cards), terms, known.inventory.next_index)
    is_one_missing = any(uuid not in shown and uuid not in broken for uuid in findings)
    strangers = () if is_one_missing else nameless
    return Survey(
        inventory,
        tuple(usable),
        findings,
        frozenset(card.uuid for card in shown.values() if card.is_mig),
        {uuid: card.why for uuid, card in broken.items() if inventory.by_uuid(uuid) is None}
        | {f"the driver's number {card.position}": card.why for card in strangers},
        _remarks(shown.values(), terms),
    )


def steadied(before: Mapping[str, int], seen: Sequence[Seen]) -> tuple[Seen, ...]:
    """Return the GPUs with decreases of reserved memory below FLUTTER_MIB ignored.

    ``before`` is MiB by UUID. The memory that the driver reserves goes up and down by a MiB on some
    GPUs, and each change would be another inventory and another device list. An increase counts at
    once, because that memory is not there to share.
    """
    return tuple(_steady(before.get(card.uuid), card) for card in seen)


def _steady(before: int | None, card: Seen) -> Seen:
    if isinstance(card, UnreadableCard) or card.reserved_mib is None or before is None:
        return card
    is_flutter = 0 < before - card.reserved_mib < FLUTTER_MIB
    return replace(card, reserved_mib=before) if is_flutter else card


def _without_duplicates(seen: Sequence[Seen]) -> tuple[Seen, ...]:
    """Replace several GPUs with the same UUID by one unreadable GPU.

    A container asks for its GPU by UUID, so none of them can be assigned.
    """
    by_uuid: dict[str, list[PhysicalCard]] = {}
    for card in seen:
        if isinstance(card, PhysicalCard):
            by_uuid.setdefault(card.uuid, []).append(card)
    duplicates = {uuid: cards for uuid, cards in by_uuid.items() if len(cards) > 1}
    kept = tuple(card for card in seen if card.uuid not in duplicates)
    return kept + tuple(
        UnreadableCard(-1, uuid, _same_uuid(cards), is_definite=True, is_duplicate=True)
        for uuid, cards in duplicates.items()
    )


def _same_uuid(cards: Sequence[PhysicalCard]) -> str:
    minors = ", ".join(str(card.minor) for card in cards)
    return (
        f"the driver shows {len(cards)} GPUs with this UUID (minor numbers {minors}), and a "
        f"container that asks for it could get any of them: see nvidia-smi -L, and remove all but "
        f"one from the machine"
    )


def _absent(broken: UnreadableCard | None, nameless: Sequence[UnreadableCard]) -> HealthCheckResult:
    """Return why a known GPU is not shown; one without a readable UUID may be any of these."""
    if broken is not None:
        return finding_of(broken)
    if not nameless:
        why = "the driver no longer shows it"
        return HealthCheckResult(
            why, is_definite=True, is_gone=True, reason=HealthReason.GONE, shows_reset=True
        )
    found = [finding_of(card) for card in nameless]
    first = next((each for each in found if each.is_definite), found[0])
    return replace(first, why="; ".join(dict.fromkeys(card.why for card in nameless)))


def _remarks(shown: Iterable[PhysicalCard], terms: Terms) -> tuple[str, ...]:
    remarks = []
    for card in shown:
        if card.is_mig:
            remarks.append(f"GPU {card.uuid} {MIG}")
        elif (
            card.reserved_mib is None
            and Query.RESERVED not in card.failed
            and terms.reserved_mib == RESERVED_BY_DRIVER
        ):
            remarks.append(
                f"the driver does not report the memory that it reserves of GPU {card.uuid}, which "
                f"counts as none: set --reserved to a number of MiB"
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


def _next_index(cards: Iterable[Card], least: int) -> int:
    return max([least, *(card.index + 1 for card in cards)])


def _inventory(cards: tuple[Card, ...], terms: Terms, next_index: int = 0) -> Inventory:
    return Inventory(
        terms.unit_mib,
        cards,
        plugin=terms.plugin,
        binding=terms.binding,
        injection=terms.injection,
        runtime_classes=terms.runtime_classes,
        next_index=next_index,
        reserve=terms.reserve.text,
    )
