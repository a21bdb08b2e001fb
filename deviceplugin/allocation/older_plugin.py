"""Follows which devices containers hold by the kubelet's checkpoint, also Aliyun gpushare's."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from deviceplugin.allocation import allocate_response
from deviceplugin.cards import device_list
from deviceplugin.cards.held_devices import HeldDevices, Inherited
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.errors import CheckpointError, PluginError
from deviceplugin.kubelet.checkpoint import CheckpointFile, Entry
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.cards.model import Inventory

log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 1.0  # a check costs one stat while nothing has changed


class Inheritance:
    """Lists the devices of Aliyun gpushare's plugin while a container holds them."""

    def __init__(self, cards: NodeCards, pods: NodePods, checkpoint: CheckpointFile) -> None:
        self._cards = cards
        self._pods = pods
        self._checkpoint = checkpoint
        self._wake = pods.subscribe()
        self._seen: object = None

    async def run(self) -> None:
        """Check until cancelled; the first time before anything else can happen."""
        while True:
            self._wake.clear()
            self.check()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._wake.wait()

    def check(self) -> None:
        """List what containers hold now; change nothing while that is not known."""
        inventory = self._cards.inventory
        if inventory is None:
            return
        try:
            entries = [entry for entry in self._checkpoint.read() if self._may_live(entry)]
        except CheckpointError as err:
            log.info("the inherited devices are not known", extra={"why": str(err)})
            return
        seen = entries, [(card.uuid, card.units, card.tag, card.minor) for card in inventory.cards]
        if seen != self._seen:
            self._seen = seen
            ids = frozenset[str]().union(*(entry.device_ids for entry in entries))
            found = inherited(entries, inventory, self._cards.held.inherited)
            self._cards.set_held(HeldDevices(ids, found))

    def _may_live(self, entry: Entry) -> bool:
        """The checkpoint names an ended pod until the kubelet gives its devices to another."""
        pod = self._pods.by_uid(entry.pod_uid)
        return not self._pods.is_listed if pod is None else not pod.is_terminal


def inherited(
    entries: Iterable[Entry], inventory: Inventory, before: Mapping[str, Inherited]
) -> dict[str, Inherited]:
    """Return the inherited devices by the UUID of their GPU; of the first GPU if it is unknown.

    Own IDs that were omitted ``before`` stay omitted while they suffice: the kubelet may be giving
    out any other one right now. No ID that the checkpoint names is omitted, even if the GPU's list
    becomes longer than its units.
    """
    own: set[str] = set()
    others: dict[str, set[str]] = {}
    for entry in entries:
        unknown = device_list.unknown(entry.device_ids, inventory)
        own |= entry.device_ids.difference(unknown)
        if unknown:
            others.setdefault(_card_of(entry, inventory), set()).update(unknown)
    found = {}
    for card in inventory.cards:
        if ids := others.get(card.uuid):
            units = {device_list.device_id(card.tag, unit): unit for unit in range(card.units)}
            free = units.keys() - own
            kept = before[card.uuid].left_out if card.uuid in before else frozenset()
            best = sorted(free, key=lambda text: (text not in kept, -units[text]))
            found[card.uuid] = Inherited(frozenset(ids), frozenset(best[: len(ids)]))
    return found


def _card_of(entry: Entry, inventory: Inventory) -> str:
    """Return the GPU that the entry's container was given.

    Late binding has not named one yet, and the answer of Aliyun gpushare's plugin may name none.
    """
    try:
        given = allocate_response.read(entry.answer, inventory).cards
    except PluginError:
        given = frozenset()
    usable = [card.uuid for card in inventory.cards if card.units]
    return next((uuid for uuid in usable if uuid in given), usable[0] if usable else "")
