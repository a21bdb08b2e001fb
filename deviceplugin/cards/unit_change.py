"""Keeps the old memory unit while pods of this node still use it.

A pod's amount is a number of units. With another unit the same number is another amount of memory,
so the two must not meet on one node: no new pods are accepted until the last such pod has ended.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.errors import CheckpointError
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.text.listed import listed

log = logging.getLogger(__name__)

API_SECONDS: Final = 5.0  # for the API server to show the pods, before the checkpoint decides
ROUND_SECONDS: Final = 0.5
_NAMED: Final = 5


class UnitChange:
    def __init__(self, cards: NodeCards, pods: NodePods, checkpoint: CheckpointFile) -> None:
        self._cards = cards
        self._pods = pods
        self._checkpoint = checkpoint
        self._why_unread = ""

    async def run(self) -> None:
        """Apply a changed unit as soon as possible, until cancelled."""
        clock = asyncio.get_running_loop()
        version = -1
        while True:
            version = await self._cards.changed(version)
            api_until = clock.time() + API_SECONDS
            while (units := self._cards.unit_waiting) is not None:
                holders = self._holders(is_api_late=clock.time() >= api_until)
                if holders is not None and not holders:
                    self._cards.take_new_unit()
                elif holders:
                    self._cards.hold_unit(_text(units, holders))
                await asyncio.sleep(ROUND_SECONDS)

    def _holders(self, *, is_api_late: bool) -> Sequence[str] | None:
        """Return the pods that use units of this node; None while they are not known."""
        if self._pods.is_listed:
            return sorted(p.key for p in self._pods if p.asks and not p.is_terminal)
        if not is_api_late:
            return None
        try:
            # Entries of deleted pods stay in it for a while, and keep the unit as long.
            return sorted({f"with uid {entry.pod_uid}" for entry in self._checkpoint.read()})
        except CheckpointError as err:
            if self._why_unread != str(err):
                log.warning("the old memory unit stays", extra={"why": str(err)})
            self._why_unread = str(err)
            return None


def _text(units: tuple[int, int], holders: Sequence[str]) -> str:
    old, new = units
    return (
        f"the memory unit was changed from {old} to {new} MiB, and pods of this node still use "
        f"the old one ({len(holders)}: {listed(holders, _NAMED)}): no new pods are "
        f"accepted until they end, so delete them, or set --memory-unit={old}MiB again"
    )
