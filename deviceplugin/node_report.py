"""Publishes the node's cards: the inventory annotation and ``aliyun.com/gpu-count``.

Both in one patch of the node's status, so that one right, ``patch nodes/status``, is enough. What
stands on the Node is watched and put right only where it differs: a kubelet that registers its
node anew sets resources that are not its own to zero.
"""

import asyncio
import logging
from typing import Any, Final

from deviceplugin.node_cards import NodeCards
from deviceplugin.slots import SlotFile
from gpushare import inventory
from gpushare.cards import Inventory
from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_COUNT
from gpushare.errors import ApiError, QuantityError, RecordError
from gpushare.kube import events
from gpushare.kube.backoff import Backoff
from gpushare.kube.client import Kube
from gpushare.objects import Node
from gpushare.quantity import parse_units

log = logging.getLogger(__name__)

COMPONENT: Final = "gpushare-deviceplugin"


class NodeReport:
    """The handler of an informer on this very Node, and the loop that puts it right."""

    def __init__(
        self, kube: Kube, name: str, cards: NodeCards, slots: SlotFile, clock: Clock
    ) -> None:
        self._kube = kube
        self._name = name
        self._cards = cards
        self._slots = slots
        self._clock = clock
        self._node: Node | None = None
        self._stirred = asyncio.Event()
        self._kept: Inventory | None = None
        self._told: dict[str, str] = {}  # reason of an Event to what was told last

    def replaced(self, items: list[Node]) -> None:
        self._node = next(iter(items), None)
        self._stirred.set()

    def changed(self, item: Node) -> None:
        self._node = item
        self._stirred.set()

    def deleted(self, _: Node) -> None:
        self._node = None
        self._stirred.set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(0.5, 30.0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_cards())
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                try:
                    is_done = await self._put_right()
                except ApiError as err:
                    log.warning("node not written yet", extra={"why": str(err)})
                    is_done = False
                if is_done:
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next())
                    self._stirred.set()

    async def _follow_cards(self) -> None:
        version = -1
        while True:
            version = await self._cards.changed(version)
            self._stirred.set()

    async def _put_right(self) -> bool:
        """Whether nothing is left to do. Raises ApiError."""
        node = self._node
        if node is None:
            return True
        self._cards.adopt(_published(node))
        known, wanted = self._cards.inventory, self._cards.published
        if known is None or wanted is None:
            return True
        await self._keep(known)
        await self._tell(node, "MemoryUnitTooFine", self._cards.refusal)
        await self._tell(node, "GpushareNodeBlocked", self._cards.why_blocked)
        patch = difference(node, wanted)
        if not patch:
            return True
        node = await self._kube.patch_node(self._name, patch, status=True)
        if self._node is None or self._node.metadata.uid == node.metadata.uid:
            self._node = node
        log.info("node written", extra={"cards": len(wanted.cards)})
        return not difference(node, wanted)

    async def _tell(self, node: Node, reason: str, text: str) -> None:
        if text and self._told.get(reason) != text:
            await events.record(
                self._kube, node, reason, text, component=COMPONENT, clock=self._clock
            )
        self._told[reason] = text

    async def _keep(self, wanted: Inventory) -> None:
        """Remember indexes and tags before anyone is told of them."""
        if wanted == self._kept:
            return
        try:
            await asyncio.to_thread(self._slots.write, wanted)
            self._kept = wanted
        except OSError as err:
            log.warning("inventory not kept on disk", extra={"why": str(err)})


def difference(node: Node, wanted: Inventory) -> dict[str, Any]:
    """The patch that makes the node state ``wanted``; empty if it does."""
    patch: dict[str, Any] = {}
    text = inventory.encode(wanted)
    if node.annotations.get(ANNOTATION_INVENTORY) != text:
        patch["metadata"] = {"annotations": {ANNOTATION_INVENTORY: text}}
    count = len(wanted.cards)
    states = {"capacity": node.capacity, "allocatable": node.allocatable}
    wrong = {
        name: {RESOURCE_COUNT: str(count)}
        for name, state in states.items()
        if _count(state.get(RESOURCE_COUNT)) != count
    }
    if wrong:
        patch["status"] = wrong
    return patch


def _count(written: str | int | None) -> int | None:
    if written is None:
        return None
    try:
        return parse_units(written)
    except QuantityError:
        return None  # differs from any count, so it is written over


def _published(node: Node) -> Inventory | None:
    text = node.annotations.get(ANNOTATION_INVENTORY)
    if text is None:
        return None
    try:
        return inventory.decode(text)
    except RecordError as err:
        log.warning("the node's inventory is unreadable, written anew", extra={"why": str(err)})
        return None
