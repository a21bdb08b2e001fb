"""Publishes the node's GPUs: the inventory annotation and ``aliyun.com/gpu-count``.

Both are in one patch of the node's status, so that one permission, ``patch nodes/status``, is
enough. The Node is watched and corrected only where it differs: a kubelet that registers its node
again sets resources of others to zero.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import StateFile
from deviceplugin.settings import NAME
from gpushare.annotations import inventory
from gpushare.cards import placement_policy
from gpushare.cards.model import Inventory
from gpushare.clock import Clock
from gpushare.contract import (
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INVENTORY,
    CORDONED_BY_DEFRAGMENT,
    RESOURCE_COUNT,
)
from gpushare.errors import ApiError, QuantityError, RecordError
from gpushare.kube import events
from gpushare.kube.backoff import Backoff
from gpushare.kube.client import Kube
from gpushare.objects.model import Node
from gpushare.objects.quantity import parse_units

log = logging.getLogger(__name__)


class NodeReport:
    """The handler of an informer on this Node, and the loop that corrects it.

    ``seen`` is called with the Node whenever the informer shows it.
    """

    def __init__(
        self,
        kube: Kube,
        name: str,
        cards: NodeCards,
        state: StateFile,
        clock: Clock,
        *,
        seen: Callable[[Node], None] = lambda _: None,
    ) -> None:
        self._kube = kube
        self._name = name
        self._cards = cards
        self._state = state
        self._clock = clock
        self._seen = seen
        self._node: Node | None = None
        self._wake = asyncio.Event()
        self._is_there = asyncio.Event()
        self._recorded: set[str] = set()
        self._is_leaving: bool | None = None  # None: as on the Node

    @property
    def node(self) -> Node | None:
        """The Node as it was last seen; None before that, and when it is deleted."""
        return self._node

    def replaced(self, items: list[Node]) -> None:
        if items:
            self.changed(items[0])
        else:
            self._lost()

    def changed(self, item: Node) -> None:
        self._node = item
        self._seen(item)
        cordoned = placement_policy.parse_names(item.annotations.get(ANNOTATION_CORDONED_CARDS, ""))
        reasons = inventory.cordon_reasons(item)
        by_tool = {u for u in cordoned if reasons.get(u) == CORDONED_BY_DEFRAGMENT}
        self._cards.set_cordoned(cordoned, by_people=cordoned - by_tool)
        self._is_there.set()
        self._wake.set()

    def deleted(self, _: Node) -> None:
        self._lost()

    def serves(self) -> None:
        """Let the node accept pods again after a plugin has left: the kubelet reads our list."""
        self._is_leaving = False
        self._wake.set()

    async def announce_leaving(self) -> bool:
        """Stop new pods until a plugin serves again; return whether that was written.

        ``run`` has ended. Raises ApiError.
        """
        self._is_leaving = True
        return self._node is not None and await self._correct()

    async def run(self) -> None:
        """Keep the Node correct until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_cards())
                tasks.create_task(self._follow_node())
                tasks.create_task(self._follow_notices())
        finally:
            await self._state.keep(self._cards.saved(exactly=True))

    async def _follow_cards(self) -> None:
        version = -1
        while True:
            version = await self._cards.changed(version)
            await self._state.keep(self._cards.saved())
            self._wake.set()

    async def _follow_node(self) -> None:
        backoff = Backoff(0.5, 30.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                is_done = await self._correct()
            except ApiError as err:
                log.warning("node not written yet", extra={"why": str(err)})
                is_done = False
            if is_done:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next())
                self._wake.set()

    async def _follow_notices(self) -> None:
        """Record Events apart from the Node's patches, which must not wait for them."""
        version = -1
        while True:
            version = await self._cards.changed(version)
            await self._is_there.wait()
            if self._node is not None:
                await self._record_notices(self._node)

    def _lost(self) -> None:
        self._node = None
        self._cards.set_cordoned(None)
        self._is_there.clear()
        self._wake.set()

    async def _correct(self) -> bool:
        """Correct the Node; return whether nothing is left to do. Raises ApiError."""
        node = self._node
        if node is None:
            return True
        published = _published(node)
        self._cards.adopt(published)
        wanted = self._cards.inventory
        if wanted is None:
            return True
        if self._is_leaving is None:
            is_leaving = published is not None and published.is_leaving
        else:
            is_leaving = self._is_leaving
        wanted = replace(wanted, is_leaving=is_leaving)
        # Indexes and tags are saved before they are published.
        await self._state.keep(self._cards.saved())
        patch = difference(node, wanted)
        if not patch:
            return True
        node = await self._kube.patch_node(self._name, patch, status=True)
        if self._node is None or self._node.metadata.uid == node.metadata.uid:
            self._node = node
        log.info("node written", extra={"cards": len(wanted.cards)})
        return not difference(node, wanted)

    async def _record_notices(self, node: Node) -> None:
        """Record one Event for each notice while it lasts."""
        notices = dict(self._cards.notices)
        self._recorded &= notices.keys()
        for about in notices.keys() - self._recorded:
            self._recorded.add(about)
            reason, text = notices[about]
            await events.record(self._kube, node, reason, text, component=NAME, clock=self._clock)


def difference(node: Node, wanted: Inventory) -> dict[str, Any]:
    """Return the patch that makes the Node show ``wanted``; empty if it does."""
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
        return None  # differs from any count, so it is overwritten


def _published(node: Node) -> Inventory | None:
    text = node.annotations.get(ANNOTATION_INVENTORY)
    if text is None:
        return None
    try:
        return inventory.decode(text)
    except RecordError as err:
        log.warning("the node's inventory is invalid, overwriting it", extra={"why": str(err)})
        return None
