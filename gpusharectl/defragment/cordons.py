"""Keep GPUs closed while pods move, and open them again afterwards."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from gpushare.cards.model import Card
from gpushare.contract import CORDONED_BY_DEFRAGMENT
from gpushare.defragment.model import CardKey
from gpushare.errors import GpushareError
from gpushare.kube.client import Kube
from gpushare.objects.model import Node
from gpusharectl import cordon

SEEN_SECONDS: Final = 2.0  # in which the extender's watch shows a cordon


class Cordons:
    """The GPUs that this program has cordoned. Those that others have cordoned stay so."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._mine: set[CardKey] = set()

    async def keep(self, wanted: frozenset[CardKey]) -> None:
        """Cordon these GPUs, and uncordon the others of this program."""
        for node, uuids in _by_node(wanted - self._mine).items():
            await self._cordon(node, uuids)
        for node, uuids in _by_node(self._mine - wanted).items():
            await self._uncordon(node, uuids)

    async def end(self) -> list[str]:
        """Uncordon all of them; return for each node where that failed what to do."""
        left = []
        for node, uuids in _by_node(self._mine).items():
            try:
                await self._uncordon(node, uuids)
            except GpushareError as err:
                left.append(f"{err}: run `gpushare uncordon-gpu {node} {' '.join(sorted(uuids))}`")
        return left

    def without(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes as they are without these cordons."""
        mine = _by_node(self._mine)
        return [_opened(each, mine[each.name]) if each.name in mine else each for each in nodes]

    async def _cordon(self, node: str, uuids: Collection[str]) -> None:
        keys = {CardKey(node, uuid) for uuid in uuids}
        self._mine |= keys  # also if it is unknown whether the write happened
        _, _, change = await cordon.changed(
            self._kube,
            node,
            lambda cards: _chosen(cards, uuids),
            is_cordon=True,
            reason=CORDONED_BY_DEFRAGMENT,
        )
        self._mine -= {CardKey(node, card.uuid) for card in change.unchanged}
        if change.changed:
            await asyncio.sleep(SEEN_SECONDS)

    async def _uncordon(self, node: str, uuids: Collection[str]) -> None:
        await cordon.changed(self._kube, node, lambda cards: _chosen(cards, uuids), is_cordon=False)
        self._mine -= {CardKey(node, uuid) for uuid in uuids}


def _opened(node: Node, uuids: Collection[str]) -> Node:
    found = cordon.cards_of(node)
    change = cordon.plan(node, found, _chosen(found.cards, uuids), is_cordon=False)
    now = {**node.annotations, **change.annotations}
    annotations = {key: value for key, value in now.items() if value is not None}
    return replace(node, metadata=replace(node.metadata, annotations=annotations))


def _chosen(cards: Sequence[Card], uuids: Collection[str]) -> tuple[Card, ...]:
    """Return the cards of these UUIDs that the node still has."""
    return tuple(card for card in cards if card.uuid in uuids)


def _by_node(keys: Iterable[CardKey]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node, uuid in sorted(keys):
        found.setdefault(node, set()).add(uuid)
    return found
