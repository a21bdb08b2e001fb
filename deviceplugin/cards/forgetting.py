"""Forgets GPUs that are gone for good: replaced ones, or those of another virtual machine.

A GPU is forgotten when the driver has not shown it for ``FORGET_GONE_SECONDS``, no live pod uses it
and no administrator has cordoned it. Its index is not given to another GPU.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.cards.model import Inventory

CHECK_SECONDS: Final = 60.0


class Forgetting:
    def __init__(self, cards: NodeCards, pods: NodePods) -> None:
        self._cards = cards
        self._pods = pods

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def check(self) -> None:
        """Forget what can be forgotten; nothing while it is not known which pods live."""
        inventory = self._cards.inventory
        if inventory is not None and self._pods.is_listed:
            self._cards.forget_gone(used_cards(self._pods, inventory))


def used_cards(pods: Iterable[NodePod], inventory: Inventory) -> frozenset[str]:
    """Return the UUIDs of the GPUs that live pods may use; all if those of one are not known."""
    used: set[str] = set()
    for pod in pods:
        share = None if pod.is_terminal else pod.share(inventory)
        if share is not None:
            used.update(share.cards or (card.uuid for card in inventory.cards))
    return frozenset(used)
