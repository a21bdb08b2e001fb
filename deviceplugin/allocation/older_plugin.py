"""Follows the kubelet's checkpoint: which device IDs are held, and which of an older plugin's."""

import asyncio
import contextlib
import logging
from typing import Final

from deviceplugin.cards.foreign_ids import inherited
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.errors import CheckpointError
from deviceplugin.kubelet.checkpoint import Entry
from deviceplugin.kubelet.checkpoint_file import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0  # a look costs one stat while nothing has changed


class Inheritance:
    def __init__(self, cards: NodeCards, pods: NodePods, checkpoint: CheckpointFile) -> None:
        self._cards = cards
        self._pods = pods
        self._checkpoint = checkpoint
        self._stirred = pods.subscribe()
        self._seen: object = None

    async def run(self) -> None:
        """Until cancelled. The first look is before anything else can happen."""
        while True:
            self._stirred.clear()
            self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._stirred.wait()

    def look(self) -> None:
        """Have listed what containers hold now; nothing changes while that cannot be told."""
        inventory = self._cards.inventory
        if inventory is None:
            return
        try:
            entries = [entry for entry in self._checkpoint.read() if self._may_live(entry)]
        except CheckpointError as err:
            log.info("which devices are inherited cannot be told", extra={"why": str(err)})
            return
        seen = entries, [(card.uuid, card.units, card.tag, card.minor) for card in inventory.cards]
        if seen != self._seen:
            self._seen = seen
            self._cards.hold(frozenset().union(*(entry.device_ids for entry in entries)))
            self._cards.inherit(inherited(entries, inventory, self._cards.inherited))

    def _may_live(self, entry: Entry) -> bool:
        """The checkpoint names a pod that has ended until the kubelet gives devices away again."""
        pod = self._pods.by_uid(entry.pod_uid)
        return not self._pods.is_listed if pod is None else not pod.is_terminal
