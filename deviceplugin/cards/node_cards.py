"""What is known of this node's cards right now; whoever publishes it waits here for a change.

What the kubelet and the extender are told of a card is its own health, unless something about the
whole node lies above it: a driver that is silent, or a block. Neither touches a card's own health.
Under a block the devices that containers hold stay healthy for the kubelet: when a node restarts it
rejects a pod for good whose devices are not (allocateContainerResources in
pkg/kubelet/cm/devicemanager/manager.go), and a block is meant for new pods alone.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from deviceplugin import metrics
from deviceplugin.cards import device_list
from deviceplugin.cards.foreign_ids import Inherited, all_ids, message
from deviceplugin.cards.health_tracker import CardStates
from deviceplugin.cards.state_file import Kept, Saved
from deviceplugin.cards.survey import Survey, Terms, restored, steadied, survey
from deviceplugin.driver.interface import CardEvent, PhysicalCard, Seen
from deviceplugin.errors import ListTooLong, Reason
from gpushare.cards.device_list import MAX_MESSAGE_BYTES
from gpushare.cards.model import Card, Health, Inventory
from gpushare.clock import Clock, SystemClock

log = logging.getLogger(__name__)

UNIT_BLOCK: Final = "unit"


class NodeCards:
    """Owned by one event loop. ``version`` rises with every change that someone could notice.

    ``before`` is what was kept on disk. ``is_provisional``: indexes were given without having seen
    what the node was told before, so they must not be written down yet. ``refusal`` says why
    nothing can be offered at all. ``inherited`` are devices of an older plugin, by the card whose
    units they stand for; ``once_inherited`` have been. ``notices`` are the Events that the Node
    should have had while they are here: what they are about, to reason and text.
    """

    def __init__(
        self,
        terms: Terms,
        before: Saved | None,
        *,
        clock: Clock | None = None,
        recover_seconds: float = 60.0,
    ) -> None:
        self._wanted = self._terms = terms
        self._states = CardStates(clock or SystemClock(), recover_seconds)
        self._survey: Survey | None = None
        self._last_seen: Sequence[Seen] | None = None
        self._reserved_mib: dict[str, int] = {}  # by UUID, as the driver has told it in this life
        self._silent = ""
        self._blocks: dict[str, str] = {}
        self._unit_notice = ""
        self._published: object = None
        self._change = asyncio.Event()
        self._listed: Inventory | None = None
        self._held: frozenset[str] = frozenset()
        self.is_provisional = before is None
        self.inventory: Inventory | None = None
        self.inherited: Mapping[str, Inherited] = {}
        self.once_inherited: frozenset[str] = frozenset()
        self.version = 0
        self.refusal = ""
        self.notices: dict[str, tuple[str, str]] = {}
        if before is not None:
            self._restore(before.inventory)
            self._states.revive(before.healths)
        self._publish()

    @property
    def message(self) -> bytes | None:
        """The device list for the kubelet; None if there is none that could be offered."""
        if self._listed is None or self.refusal:
            return None
        return message(self._listed, self.inherited, self._kept_healthy())

    @property
    def is_suspicious(self) -> bool:
        """Whether a card should be looked at again quickly."""
        return self._states.is_suspicious

    @property
    def why_blocked(self) -> str:
        """Why the whole node takes nothing new; empty if it does."""
        return "; ".join(self._blocks.values())

    @property
    def unit_waiting(self) -> tuple[int, int] | None:
        """MiB of the unit that still holds and of the one that was set; None if they agree."""
        if self._terms.unit_mib == self._wanted.unit_mib:
            return None
        return self._terms.unit_mib, self._wanted.unit_mib

    def trouble(self, card: Card, *, at_start: bool = False) -> tuple[Reason, str] | None:
        """Why a container must not have the card now; None if it may.

        ``at_start``: it is about to start, so the driver must have shown the card, and it must not
        be under suspicion. A block keeps new pods away, and no container from starting.
        """
        if self._silent:
            return Reason.CARD_UNHEALTHY, self._silent
        return self._states.trouble(card.uuid, at_start=at_start)

    def saved(self, *, exactly: bool = False) -> Saved | None:
        """What should be on disk; None while there is nothing to keep.

        ``exactly``: with the seconds that each card still owes now, which change all the time.
        """
        if self.is_provisional or self._survey is None:
            return None
        return Saved(self._survey.inventory, self._states.kept(exactly=exactly))

    def set_binding(self, binding: str) -> None:
        """When containers get their card from now on; part of the inventory."""
        self._restate(binding=binding)

    def set_injection(self, injection: str) -> None:
        """What opens cards to containers from now on; part of the inventory."""
        self._restate(injection=injection)

    def _restate(self, **stated: Any) -> None:
        """Change what terms and inventory say of the node; publish an inventory that differs."""
        self._wanted = replace(self._wanted, **stated)
        self._terms = replace(self._terms, **stated)
        if self._survey is None:
            return
        inventory = replace(self._survey.inventory, **stated)
        if inventory != self._survey.inventory:
            self._survey = replace(self._survey, inventory=inventory)
            self._publish()

    def adopt(self, published: Inventory | None) -> None:
        """Take over what the node was told before, where nothing else is remembered."""
        if not self.is_provisional:
            return
        self.is_provisional = False
        if published is not None:
            self._restore(published)
            self._states.revive({c.uuid: Kept() for c in published.cards if not c.is_healthy})
            if self._last_seen is not None:
                self._look(self._last_seen)
        self._publish()

    def seen(self, cards: Sequence[Seen], events: Iterable[CardEvent] = ()) -> None:
        """The driver has shown these cards, after ``events`` had come."""
        self._silent = ""
        self._look(cards, events)
        self._publish_if_changed()

    def take(self, event: CardEvent, *, alone: bool = False) -> bool:
        """Take an event for what it says, if no look can make it better: whether it was.

        ``alone``: a look was tried, and says nothing of it.
        """
        known = self._survey.inventory if self._survey is not None else None
        is_taken = bool(known and known.by_uuid(event.uuid)) and self._states.take(
            event, alone=alone
        )
        self._publish_if_changed()
        return is_taken

    def driver_is_silent(self, why: str) -> None:
        """The driver has been silent for too long: nothing can start on any card."""
        if self._survey is None or self._silent == why:
            return
        self._silent = why
        self._states.confirmed = frozenset()
        log.warning("all cards are unhealthy", extra={"why": why})
        self._publish()

    def set_block(self, name: str, why: str) -> None:
        """List every device Unhealthy for a reason of the whole node; empty ``why`` lifts it."""
        if self._blocks.get(name, "") == why:
            return
        if why:
            self._blocks[name] = why
            log.warning("node takes nothing new", extra={"block": name, "why": why})
        else:
            del self._blocks[name]
            log.info("node takes pods again", extra={"block": name})
        metrics.BLOCKED.labels(name).set(bool(why))
        self._publish()

    def inherit(self, found: Mapping[str, Inherited]) -> None:
        """List from now on what containers hold of an older plugin's devices."""
        if found != self.inherited:
            self.inherited = found
            self.once_inherited |= all_ids(found)
            amounts = {uuid: len(each.ids) for uuid, each in found.items()}
            log.info("devices of an older plugin are listed", extra={"by_card": amounts})
            self._publish()

    def hold(self, ids: frozenset[str]) -> None:
        """Take note of the device IDs that containers of living pods hold."""
        if ids != self._held:
            self._held = ids
            if self._blocks:
                self._publish()

    def hold_unit(self, why: str) -> None:
        """Go on with the old unit because of the pods that ``why`` names."""
        self._unit_notice = self._unit_notice or why
        self.set_block(UNIT_BLOCK, why)

    def take_new_unit(self) -> None:
        """No pod counts in the old unit any more: the one that was set holds from now on."""
        if self._survey is None or self.unit_waiting is None:
            return
        self._terms = self._wanted
        self._survey = restored(self._survey.inventory, self._terms)
        if self._last_seen is not None:
            self._survey = survey(self._survey.inventory, self._last_seen, self._terms)
        self._unit_notice = ""
        log.info("the new memory unit holds", extra={"unit_mib": self._terms.unit_mib})
        self.set_block(UNIT_BLOCK, "")

    async def changed(self, since: int) -> int:
        """Return the version once it differs from ``since``."""
        while self.version == since:
            await self._change.wait()
        return self.version

    def _restore(self, inventory: Inventory) -> None:
        """Go on with these cards, in their own unit until nobody counts in it any more."""
        self._terms = replace(self._wanted, unit_mib=inventory.unit_mib)
        self._survey = restored(inventory, self._terms)
        if self.unit_waiting is not None:
            old, new = self.unit_waiting
            self._blocks[UNIT_BLOCK] = (
                f"the memory unit was changed from {old} to {new} MiB, and it is not known yet "
                f"whether pods of this node still count in the old one"
            )
            metrics.BLOCKED.labels(UNIT_BLOCK).set(1)

    def _look(self, cards: Sequence[Seen], events: Iterable[CardEvent] = ()) -> None:
        before = self._survey
        cards = self._last_seen = steadied(self._reserved_mib, cards)
        self._reserved_mib |= {
            card.uuid: card.reserved_mib
            for card in cards
            if isinstance(card, PhysicalCard) and card.reserved_mib is not None
        }
        self._survey = survey(before.inventory if before else None, cards, self._terms)
        self._states.look(self._survey, cards, events)
        for card, why in self._survey.unlisted.items():
            if before is None or card not in before.unlisted:
                log.warning("card cannot be read", extra={"card": card, "why": why})
        for remark in self._survey.remarks:
            if before is None or remark not in before.remarks:
                log.warning(remark)

    def _offer(self) -> Inventory | None:
        if self._survey is None:
            return None
        is_shut = bool(self._silent or self._blocks)
        cards = (
            replace(card, health=Health.UNHEALTHY)
            if is_shut or not self._states.is_offered(card.uuid)
            else card
            for card in self._survey.inventory.cards
        )
        return replace(self._survey.inventory, cards=tuple(cards))

    def _kept_healthy(self) -> dict[str, frozenset[str]]:
        """What is held of cards that only a block makes unhealthy, by UUID."""
        if not self._blocks or self._silent or self._listed is None:
            return {}
        held: dict[str, set[str]] = {}
        for text in self._held:
            if (parsed := device_list.parse_device_id(text)) is not None:
                held.setdefault(parsed[0], set()).add(text)
        return {
            card.uuid: frozenset(held.get(card.tag, ())) | self._inherited_of(card.uuid)
            for card in self._listed.cards
            if self._states.is_offered(card.uuid)
        }

    def _inherited_of(self, uuid: str) -> frozenset[str]:
        return self.inherited[uuid].ids if uuid in self.inherited else frozenset()

    def _publish_if_changed(self) -> None:
        if (self._offer(), self._survey, self._states.noticeable()) != self._published:
            self._publish()

    def _publish(self) -> None:
        self.inventory = self._offer()
        self._published = self.inventory, self._survey, self._states.noticeable()
        if self._survey is not None and self.inventory is not None:
            gone = self._gone_without_place(self.inventory)
            self._listed = _without(gone, self.inventory)
            told, self.notices = self.notices, self._notices(self._listed, self._survey, gone)
            for about in self.notices.keys() - told.keys() - self._states.ill.keys():
                reason, text = self.notices[about]
                log.warning("to be told on the node", extra={"reason": reason, "why": text})
            self.refusal = self.notices.get("list", ("", ""))[1]
            metrics.show_list(
                self._listed, is_refused=bool(self.refusal), warnings=self.notices.keys()
            )
            states = {
                c.uuid: (self._states.shown(c.uuid), self._states.reason(c.uuid))
                for c in self.inventory.cards
            }
            metrics.show_cards(self.inventory, states, len(self._survey.unlisted))
        self.version += 1
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _gone_without_place(self, inventory: Inventory) -> frozenset[str]:
        """Cards that are gone, where the list is too long with them: a swap must not shut a node.

        They keep their place in the inventory. Their units could be given to nobody anyway.
        """
        if device_list.worst_bytes(inventory) <= MAX_MESSAGE_BYTES:
            return frozenset()
        return frozenset(c.uuid for c in inventory.cards if self._states.is_gone(c.uuid))

    def _notices(
        self, listed: Inventory, survey: Survey, gone: Collection[str]
    ) -> dict[str, tuple[str, str]]:
        found = {
            uuid: ("CardUnhealthy", f"card {uuid} is unhealthy: {why}")
            for uuid, why in self._states.ill.items()
        }
        for name, why in self._blocks.items():
            if name != UNIT_BLOCK:
                found[name] = ("GpushareNodeBlocked", why)
        for card, why in survey.unlisted.items():
            found[card] = ("CardUnreadable", f"card {card} cannot be shared: {why}")
        if self._unit_notice:
            found[UNIT_BLOCK] = ("MemoryUnitChanged", self._unit_notice)
        usable = [
            mib
            for card, mib in zip(survey.inventory.cards, survey.usable_mib, strict=True)
            if card.uuid not in gone
        ]
        try:
            device_list.check_size(listed, usable)
        except ListTooLong as err:
            found["list"] = ("MemoryUnitTooFine", str(err))
        else:
            for reason, text in device_list.warnings(listed, usable):
                found[reason] = (reason, text)
        return found


def _without(uuids: Collection[str], inventory: Inventory) -> Inventory:
    cards = tuple(replace(c, units=0) if c.uuid in uuids else c for c in inventory.cards)
    return replace(inventory, cards=cards)
