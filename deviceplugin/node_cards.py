"""What is known of this node's cards right now; whoever publishes it waits here for a change."""

import asyncio
import logging
from collections.abc import Sequence

from deviceplugin import devices, metrics
from deviceplugin.driver import Seen
from deviceplugin.errors import ListTooLong
from deviceplugin.inventory import Survey, Terms, restored, survey, without_driver
from gpushare.cards import Card, Inventory

log = logging.getLogger(__name__)


class NodeCards:
    """Owned by one event loop. ``version`` rises with every change that someone could notice.

    ``is_provisional``: indexes were given without having seen what the node was told before, so
    they must not be written down yet.
    """

    def __init__(self, terms: Terms, before: Inventory | None) -> None:
        self._terms = terms
        self._survey = restored(before, terms) if before is not None else None
        self._confirmed: frozenset[str] = frozenset()
        self._last_seen: Sequence[Seen] | None = None
        self._change = asyncio.Event()
        self.is_provisional = before is None
        self.version = 0
        self.refusal = ""
        self._blocks: dict[str, str] = {}
        self._publish()

    @property
    def inventory(self) -> Inventory | None:
        """None until cards are known, from the driver or from before."""
        return self._survey.inventory if self._survey is not None else None

    @property
    def published(self) -> Inventory | None:
        """What everyone is told: the inventory, with no healthy card while the node is blocked."""
        if self._survey is None or not self._blocks:
            return self.inventory
        return without_driver(self._survey, "").inventory

    @property
    def message(self) -> bytes | None:
        """The device list for the kubelet; None if there is none that could be offered."""
        if self.published is None or self.refusal:
            return None
        return devices.message(self.published)

    @property
    def why_blocked(self) -> str:
        """Why the whole node takes nothing new; empty if it does."""
        return "; ".join(self._blocks.values())

    def set_block(self, name: str, why: str) -> None:
        """Offer nothing on this node for a reason that no card has; an empty ``why`` lifts it.

        Containers that were given a card before may still start on it.
        """
        if self._blocks.get(name, "") == why:
            return
        self._blocks = {key: value for key, value in self._blocks.items() if key != name}
        if why:
            self._blocks[name] = why
            log.error("the node offers nothing", extra={"block": name, "why": why})
        else:
            log.info("the node offers its cards again", extra={"block": name})
        metrics.BLOCKED.labels(name).set(bool(why))
        self._publish()

    def why_unhealthy(self, card: Card) -> str:
        """Empty if the card can be promised to a container."""
        if self._survey is None or card.is_healthy:
            return ""
        return self._survey.reasons.get(card.uuid, "unhealthy")

    def why_unusable(self, card: Card) -> str:
        """Empty if a container may start on the card now: it is healthy, and the driver said so."""
        if reason := self.why_unhealthy(card):
            return reason
        if card.uuid not in self._confirmed:
            return "the driver has not confirmed it since the plugin started"
        return ""

    def adopt(self, published: Inventory | None) -> None:
        """Take over what the node was told before, where nothing else is remembered."""
        if not self.is_provisional:
            return
        self.is_provisional = False
        if published is not None:
            self._survey = restored(published, self._terms)
            if self._last_seen is not None:
                self._survey = survey(self._survey.inventory, self._last_seen, self._terms)
        self._publish()

    def seen(self, cards: Sequence[Seen]) -> None:
        """The driver has shown these cards."""
        before = self._survey
        self._last_seen = cards
        self._survey = survey(self.inventory, cards, self._terms)
        confirmed = frozenset(c.uuid for c in self._survey.inventory.cards if c.is_healthy)
        newly_confirmed = confirmed != self._confirmed
        self._confirmed = confirmed
        self._log_changes(before)
        if before is None or newly_confirmed or before.inventory != self._survey.inventory:
            self._publish()

    def driver_is_silent(self, why: str) -> None:
        """The driver has been silent for too long: nothing can start on any card."""
        if self._survey is None or not any(c.is_healthy for c in self._survey.inventory.cards):
            return
        before = self._survey
        self._survey = without_driver(self._survey, why)
        self._confirmed = frozenset()
        self._log_changes(before)
        self._publish()

    async def changed(self, since: int) -> int:
        """Return the version once it differs from ``since``."""
        while self.version == since:
            await self._change.wait()
        return self.version

    def _publish(self) -> None:
        self.refusal = ""
        if self._survey is not None:
            inventory = self._survey.inventory
            try:
                devices.check_size(inventory, self._survey.usable_mib)
            except ListTooLong as err:
                self.refusal = str(err)
                log.error("device list refused", extra={"why": self.refusal})  # noqa: TRY400
            metrics.show_list(inventory, is_refused=bool(self.refusal))
        self.version += 1
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _log_changes(self, before: Survey | None) -> None:
        if self._survey is None:
            return
        old = before.reasons if before is not None else {}
        new = self._survey.reasons
        for uuid in sorted(new.keys() - old.keys()):
            log.warning("card is unhealthy", extra={"card": uuid, "why": new[uuid]})
        for uuid in sorted(old.keys() - new.keys()):
            log.info("card is healthy again", extra={"card": uuid})
        for remark in self._survey.remarks:
            if before is None or remark not in before.remarks:
                log.warning(remark)
