"""The current state of this node's GPUs, with a version that rises at each change.

What the kubelet and the extender see of a GPU is its own health, unless something about the whole
node overrides it: a driver that does not answer, or a block. Neither changes a GPU's own health.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from deviceplugin import metrics
from deviceplugin.cards import device_list
from deviceplugin.cards.health_tracker import HealthTracker
from deviceplugin.cards.held_devices import HeldDevices, listed_ids, message
from deviceplugin.cards.leaving import Leaving
from deviceplugin.cards.metrics import show_cards, show_failing, show_list
from deviceplugin.cards.notices import LIMIT_BLOCK, LIST, UNIT_BLOCK, Notices, notices
from deviceplugin.cards.queries import Failures, completed, counted, texts
from deviceplugin.cards.state_file import Kept, Saved
from deviceplugin.cards.survey import Survey, Terms, restored, steadied, survey, without
from deviceplugin.driver.interface import CardEvent, PhysicalCard, Seen
from deviceplugin.errors import Reason
from deviceplugin.isolation.node_isolation import NodeIsolation
from gpushare.cards.device_list import MAX_MESSAGE_BYTES
from gpushare.cards.model import FORGET_GONE_SECONDS, Card, Health, Inventory
from gpushare.clock import Clock, SystemClock

log = logging.getLogger(__name__)


class NodeCards:
    """Owned by one event loop. ``version`` rises with every change that matters to a reader.

    ``before`` is what was kept on disk, ``load`` is as in HealthTracker. ``is_provisional``:
    indexes were assigned without reading the Node's inventory, so they must not be written yet.
    ``refusal`` says why nothing can be offered at all. ``once_inherited`` are devices of Aliyun
    gpushare's plugin that were ever held. ``notices`` are the Events that the Node should have now.
    """

    def __init__(
        self,
        terms: Terms,
        before: Saved | None,
        *,
        clock: Clock | None = None,
        recover_seconds: float = 60.0,
        load: Callable[[], str] = str,
    ) -> None:
        self._wanted = self._terms = terms
        self.isolation = NodeIsolation(
            terms.memory_limit,
            by_frameworks=terms.framework_limits,
            before=before.inventory if before is not None else None,
        )
        clock = clock or SystemClock()
        self._healths = HealthTracker(clock, recover_seconds, load)
        self._leaving = Leaving(clock)
        self._survey: Survey | None = None
        self._last_seen: Sequence[Seen] | None = None
        self._reserved_mib: dict[str, int] = {}  # by UUID, as the driver has reported it so far
        self._failing: Failures = {}
        self._forgotten: dict[str, str] = {}  # about the last ones, by UUID
        self._silent = ""
        self._blocks: dict[str, str] = {}
        self._unit_notice = ""
        self._published: object = None
        self._change = asyncio.Event()
        self._listed: Inventory | None = None
        self.held = HeldDevices()
        self.once_inherited: frozenset[str] = frozenset()
        self.is_provisional = before is None
        self.inventory: Inventory | None = None
        self.version = 0
        self.refusal = ""
        self.notices: Notices = {}
        if before is not None:
            self._restore(before.inventory)
            self._healths.revive(before.healths)
        self._publish()

    @property
    def message(self) -> bytes | None:
        """The device list for the kubelet; None if no list can be offered."""
        if self._listed is None or self.refusal:
            return None
        kept: dict[str, frozenset[str]] = {}
        if self._blocks and not self._silent:
            cards = self._listed.cards
            healthy = {card.uuid for card in cards if self._healths.is_offered(card.uuid)}
            kept = self.held.of_cards(self._listed, healthy)
        return message(self._listed, self.held.inherited, kept)

    def next_message(self) -> bytes:
        """Return the device list for a kubelet that gets it now; empty if none can be offered.

        IDs that have left the list since another was sent follow as unhealthy, where they fit.
        """
        listed = self.message
        if listed is None or self._listed is None:
            self._leaving.take(())
            listed = b""
        else:
            self._leaving.take(listed_ids(self._listed, self.held.inherited))
        leaving = device_list.one_by_one(sorted(self._leaving.ids), is_healthy=False)
        return listed + leaving if len(listed) + len(leaving) <= MAX_MESSAGE_BYTES else listed

    @property
    def is_suspicious(self) -> bool:
        """Whether a GPU should be checked again soon."""
        return self._healths.is_suspicious

    @property
    def why_blocked(self) -> str:
        """Why the whole node accepts nothing new; empty if it does."""
        return "; ".join(self._blocks.values())

    @property
    def unit_waiting(self) -> tuple[int, int] | None:
        """MiB of the unit in force and of the one that was set; None if they agree."""
        if self._terms.unit_mib == self._wanted.unit_mib:
            return None
        return self._terms.unit_mib, self._wanted.unit_mib

    def trouble(self, card: Card, *, at_start: bool = False) -> tuple[Reason, str] | None:
        """Return why a container must not have the GPU now; None if it may.

        ``at_start``: it is about to start, so the driver must have shown the GPU, and it must not
        be suspect. A block rejects new pods, and keeps no container from starting.
        """
        if self._silent:
            return Reason.CARD_UNHEALTHY, self._silent
        return self._healths.trouble(card.uuid, at_start=at_start)

    def set_why_no_limit(self, why: str) -> None:
        """Set why containers get no memory limits from now on; empty if they do."""
        self.isolation.why_no_limit = why
        self._publish_if_changed()
        self._close_without_limits()

    def doubt_limits(self, about: str, why: str) -> None:
        """Promise no limits because of ``why``; empty to end the doubt."""
        self.isolation.doubts[about] = why
        self._publish_if_changed()
        self._close_without_limits()

    def _close_without_limits(self) -> None:
        cards = self._survey.inventory.cards if self._survey is not None else ()
        offered = (card for card in cards if self._healths.is_offered(card.uuid))
        self.set_block(LIMIT_BLOCK, self.isolation.why_closed(offered))

    def saved(self, *, exactly: bool = False) -> Saved | None:
        """Return what should be on disk; None while there is nothing to keep.

        ``exactly``: with the seconds to recovery as of now, which change all the time.
        """
        if self.is_provisional or self._survey is None:
            return None
        known = self._survey.inventory
        stated = replace(known, cards=tuple(map(self.isolation.stated, known.cards)))
        return Saved(stated, self._healths.kept(exactly=exactly))

    def set_binding(self, binding: str) -> None:
        """Set when containers are assigned their GPU from now on; part of the inventory."""
        self._restate(binding=binding)

    def set_injection(self, injection: str) -> None:
        """Set how containers get access to GPUs from now on; part of the inventory."""
        self._restate(injection=injection)

    def set_cordoned(
        self, uuids: Collection[str] | None, by_people: Collection[str] | None = None
    ) -> None:
        """Set which GPUs the Node's annotation cordons, as in HealthTracker."""
        self._healths.set_cordoned(uuids, by_people)
        self._publish_if_changed()

    def forget_gone(self, used: Collection[str]) -> None:
        """Forget the GPUs that have been gone for long, except those that pods have: ``used``."""
        if self._survey is None or self.is_provisional or self._silent:
            return
        known = {card.uuid: card for card in self._survey.inventory.cards}
        gone = (self._healths.forgettable & known.keys()) - set(used)
        if not gone:
            return
        self._forgotten = {
            uuid: f"GPU {known[uuid].index} ({uuid}) was forgotten: the driver has not shown it "
            f"for {FORGET_GONE_SECONDS // 86400} days, and no pod uses it"
            for uuid in sorted(gone)
        }
        self._healths.forget(gone)
        self.isolation.forget(gone)
        for uuid in gone:
            self._reserved_mib.pop(uuid, None)
        self._survey = without(self._survey, gone)
        self._publish()

    def _restate(self, **stated: Any) -> None:
        """Change the inventory's statements about the node; publish an inventory that differs."""
        self._wanted = replace(self._wanted, **stated)
        self._terms = replace(self._terms, **stated)
        if self._survey is None:
            return
        inventory = replace(self._survey.inventory, **stated)
        if inventory != self._survey.inventory:
            self._survey = replace(self._survey, inventory=inventory)
            self._publish()

    def adopt(self, published: Inventory | None) -> None:
        """Continue with the inventory on the Node, where nothing else is remembered."""
        if not self.is_provisional:
            return
        self.is_provisional = False
        if published is not None:
            self._restore(published)
            self._healths.revive(
                {c.uuid: Kept(gone_since=c.gone_since) for c in published.cards if not c.is_healthy}
            )
            if self._last_seen is not None:
                self._update(self._last_seen)
        self._publish()

    def seen(self, cards: Sequence[Seen], events: Iterable[CardEvent] = ()) -> None:
        """Take over what the driver has shown, after ``events`` had come."""
        self._silent = ""
        self._update(cards, events)
        self._publish_if_changed()
        self._close_without_limits()

    def take(self, event: CardEvent, *, alone: bool = False) -> bool:
        """Judge an event by itself if no further check can help; return whether that was done.

        ``alone``: a check was tried and does not show the event's effect.
        """
        known = self._survey.inventory if self._survey is not None else None
        is_taken = bool(known and known.by_uuid(event.uuid)) and self._healths.take(
            event, alone=alone
        )
        self._publish_if_changed()
        return is_taken

    def driver_is_silent(self, why: str) -> None:
        """The driver has not answered for too long: nothing can start on any GPU."""
        if self._survey is None or self._silent == why:
            return
        self._silent = why
        self._healths.confirmed = frozenset()
        log.warning("all GPUs are unhealthy", extra={"why": why})
        self._publish()

    def set_block(self, name: str, why: str) -> None:
        """List every device as unhealthy for a reason of the whole node; empty ``why`` ends it."""
        if self._blocks.get(name, "") == why:
            return
        if why:
            self._blocks[name] = why
            log.warning("node accepts nothing new", extra={"block": name, "why": why})
        else:
            del self._blocks[name]
            log.info("node accepts pods again", extra={"block": name})
        metrics.BLOCKED.labels(name).set(bool(why))
        self._publish()

    def set_held(self, held: HeldDevices) -> None:
        """Set which devices containers of live pods hold, and list those that are inherited."""
        before, self.held = self.held, held
        if held.inherited != before.inherited:
            amounts = {uuid: len(each.ids) for uuid, each in held.inherited.items()}
            self.once_inherited = self.once_inherited.union(
                *(each.ids for each in held.inherited.values())
            )
            log.info("devices of Aliyun gpushare are listed", extra={"by_card": amounts})
            self._publish()
        elif self._blocks and held.ids != before.ids:
            self._publish()

    def hold_unit(self, why: str) -> None:
        """Keep the old unit because of the pods that ``why`` names."""
        self._unit_notice = self._unit_notice or why
        self.set_block(UNIT_BLOCK, why)

    def take_new_unit(self) -> None:
        """Use the unit that was set: no pod uses the old one any longer."""
        if self._survey is None or self.unit_waiting is None:
            return
        self._terms = self._wanted
        failing = self._survey.failing
        self._survey = restored(self._survey.inventory, self._terms)
        if self._last_seen is not None:
            found = survey(self._survey.inventory, self._last_seen, self._terms)
            self._survey = replace(found, failing=failing)
        self._unit_notice = ""
        log.info("the new memory unit is in force", extra={"unit_mib": self._terms.unit_mib})
        self.set_block(UNIT_BLOCK, "")

    async def changed(self, since: int) -> int:
        """Return the version once it differs from ``since``."""
        while self.version == since:
            await self._change.wait()
        return self.version

    def _restore(self, inventory: Inventory) -> None:
        """Continue with these GPUs, in their own unit until no pod uses it any longer."""
        self._terms = replace(self._wanted, unit_mib=inventory.unit_mib)
        self._survey = restored(inventory, self._terms)
        if self.unit_waiting is not None:
            old, new = self.unit_waiting
            self._blocks[UNIT_BLOCK] = (
                f"the memory unit was changed from {old} to {new} MiB, and it is not known yet "
                f"whether pods of this node still use the old one"
            )
            metrics.BLOCKED.labels(UNIT_BLOCK).set(1)

    def _update(self, cards: Sequence[Seen], events: Iterable[CardEvent] = ()) -> None:
        before = self._survey
        known = before.inventory if before is not None else None
        cards = completed(cards, known, mig=self._healths.mig, reserved_mib=self._reserved_mib)
        cards = self._last_seen = steadied(self._reserved_mib, cards)
        self.isolation.seen(cards)
        self._failing = counted(self._failing, cards)
        self._reserved_mib |= {
            card.uuid: card.reserved_mib
            for card in cards
            if isinstance(card, PhysicalCard) and card.reserved_mib is not None
        }
        found = survey(known, cards, self._terms)
        self._survey = replace(found, failing=texts(self._failing, cards))
        self._healths.update(self._survey, cards, events)
        for card, why in self._survey.unlisted.items():
            if before is None or card not in before.unlisted:
                log.warning("GPU cannot be read", extra={"card": card, "why": why})
        for remark in self._survey.remarks:
            if before is None or remark not in before.remarks:
                log.warning(remark)

    def _offer(self) -> Inventory | None:
        if self._survey is None:
            return None
        is_closed = bool(self._silent or self._blocks)
        cards = (
            replace(card, health=Health.UNHEALTHY, gone_since=self._healths.gone_since(card.uuid))
            if is_closed or not self._healths.is_offered(card.uuid)
            else card
            for card in map(self.isolation.stated, self._survey.inventory.cards)
        )
        return replace(self._survey.inventory, cards=tuple(cards))

    def _publish_if_changed(self) -> None:
        if self._state(self._offer()) != self._published:
            self._publish()

    def _state(self, offer: Inventory | None) -> object:
        return offer, self._survey, self._healths.noticeable(), self._leaving.ids

    def _publish(self) -> None:
        self.inventory = self._offer()
        if self._survey is not None and self.inventory is not None:
            self._list(self._survey, self.inventory)
        self._published = self._state(self.inventory)
        self.version += 1
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _list(self, survey: Survey, inventory: Inventory) -> None:
        """Derive the device list, its notices and metrics from the inventory.

        GPUs that are gone get no devices where the list is too long with them: a replaced GPU must
        not close a node. They keep their place in the inventory.
        """
        gone: frozenset[str] = frozenset()
        if device_list.worst_bytes(inventory) > MAX_MESSAGE_BYTES:
            gone = frozenset(c.uuid for c in inventory.cards if self._healths.is_gone(c.uuid))
        cards = (replace(c, units=0) if c.uuid in gone else c for c in inventory.cards)
        self._listed = replace(inventory, cards=tuple(cards))
        unhealthy, before = self._healths.unhealthy, self.notices
        self.notices = notices(
            survey,
            self._listed,
            unhealthy=unhealthy,
            blocks=self._blocks,
            unit_notice=self._unit_notice,
            unlisted=gone,
            forgotten=self._forgotten,
        )
        for about in self.notices.keys() - before.keys() - unhealthy.keys():
            reason, text = self.notices[about]
            log.warning("Event for the Node", extra={"reason": reason, "why": text})
        self.refusal = self.notices.get(LIST, ("", ""))[1]
        show_list(self._listed, is_refused=bool(self.refusal), warnings=self.notices.keys())
        states = {
            c.uuid: (self._healths.shown(c.uuid), self._healths.reason(c.uuid))
            for c in inventory.cards
        }
        show_failing(survey.failing)
        show_cards(inventory, states, len(survey.unlisted))
