"""The sums of every node and namespace for Prometheus, rendered in slices of time.

Thousands of nodes are rendered between other answers: unchanged nodes are kept as text, and a
filter call waits for one slice at most.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.metrics import queue
from extender.metrics.namespaces import OF_NAMESPACES, NamespaceSums, series
from gpushare.answers.queue.entries import NO_QUEUE, QueueFigures
from gpushare.cards.model import Share
from gpushare.ledger.accounts import NodeAccount, used_by_pods
from gpushare.ledger.ledger import Ledger
from gpushare.placement.fragmentation import fragmentation

SLICE_SECONDS: Final = 0.002
# Nodes of one family between two checks of the clock.
_JOINED_AT_ONCE: Final = 500

OF_NODES: Final = {
    "gpushare_node_unit_bytes": "Bytes of one unit on a node.",
    "gpushare_node_units": "Units of all GPUs of a node.",
    "gpushare_node_used_units": (
        "Units used by the bound pods of a node, as many as they requested."
    ),
    "gpushare_node_reserved_units": (
        "Units reserved by decisions whose pods are not yet bound on the API server."
    ),
    "gpushare_node_free_units": "Free units on the healthy GPUs of a node.",
    "gpushare_node_over_units": "Units used beyond the capacity of the GPUs of a node.",
    "gpushare_node_largest_request_units": (
        "The largest request for one GPU that fits on a node now, in units."
    ),
}
OF_ALL: Final = {
    "gpushare_cluster_largest_request_units": (
        "The largest request for one GPU that fits in the cluster now, in units."
    ),
    "gpushare_cluster_fragmentation_ratio": (
        "Fragmentation, 0 to 1: the fraction of the free units where a pod would not fit, as "
        "the mean over all running pods."
    ),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    account: NodeAccount
    lines: tuple[str, ...]
    free: tuple[int, ...]
    wanted: Counter[int]
    namespaces: NamespaceSums
    gone: Collection[str]


class NodeMetrics:
    """``pending`` returns the number of pending pods by namespace, ``queue`` counts what waits.

    ``let_go`` returns the pods (uids) on a node that count for no namespace.

    ``longest_pause``: seconds for which rendering has blocked everything else so far.
    """

    def __init__(
        self,
        ledger: Ledger,
        pending: Callable[[], Mapping[str, int]] = dict,
        queue: Callable[[], Generator[None, None, QueueFigures]] = NO_QUEUE.figures,
        let_go: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._ledger, self._pending, self._queue = ledger, pending, queue
        self._let_go = let_go
        self._entries: dict[str, _Entry] = {}
        self._free: Counter[int] = Counter()
        self._wanted: Counter[int] = Counter()
        self._namespaces = NamespaceSums()
        self._one_at_a_time = asyncio.Lock()
        self._slice_began = 0.0
        self.longest_pause = 0.0

    async def render(self) -> bytes:
        """Return all series of nodes, the cluster, namespaces and the queue.

        Each node is read at its own moment.
        """
        async with self._one_at_a_time:
            self._slice_began = time.perf_counter()
            names = sorted(self._ledger.nodes())
            for name in self._entries.keys() - set(names):
                self._forget(name)
            for name in names:
                self._update(name)
                await self._pause()
            text = await self._join()
            self._note_pause()
            return text

    def _update(self, name: str) -> None:
        account = self._ledger.account(name)
        if account is None:
            self._forget(name)
            return
        before = self._entries.get(name)
        gone = self._let_go(name)
        if before is not None and before.account is account and before.gone == gone:
            return
        self._forget(name)
        shares = list(self._ledger.shares(name))
        wanted = Counter(share.units for share in shares if not share.is_unplaced)
        counted = (share for share in shares if share.pod_uid not in gone)
        namespaces = NamespaceSums.of(counted, account.inventory.unit_mib)
        made = _Entry(
            account, _lines(name, account, shares), account.largest_free, wanted, namespaces, gone
        )
        self._entries[name] = made
        self._free.update(made.free)
        self._wanted.update(wanted)
        self._namespaces.add(namespaces)

    def _forget(self, name: str) -> None:
        before = self._entries.pop(name, None)
        if before is None:
            return
        self._free.subtract(before.free)
        self._wanted.subtract(before.wanted)
        self._namespaces.remove(before.namespaces)

    async def _join(self) -> bytes:
        entries = list(self._entries.values())
        parts = []
        for place, (name, text) in enumerate(OF_NODES.items()):
            parts.append(_head(name, text).encode())
            for first in range(0, len(entries), _JOINED_AT_ONCE):
                some = entries[first : first + _JOINED_AT_ONCE]
                parts.append("".join([entry.lines[place] for entry in some]).encode())
                await self._pause()
        self._free, self._wanted = +self._free, +self._wanted
        largest = max(self._free, default=0)
        for (name, text), value in zip(
            OF_ALL.items(), (largest, fragmentation(self._free, self._wanted)), strict=True
        ):
            parts.append(f"{_head(name, text)}{name} {value}\n".encode())
        await self._pause()
        found = series(self._namespaces, self._pending())
        for (name, text), values in zip(OF_NAMESPACES.items(), found, strict=True):
            parts.append(_of_namespaces(name, text, values))
        return b"".join([*parts, *await self._join_queue()])

    async def _join_queue(self) -> list[bytes]:
        found, steps = QueueFigures(), self._queue()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
                break
            await self._pause()
        parts = []
        for (name, text), value in zip(queue.OF_QUEUE.items(), queue.sums(found), strict=True):
            parts.append(f"{_head(name, text)}{name} {value:.16g}\n".encode())
        every = zip(queue.OF_QUEUED_NAMESPACES.items(), queue.series(found), strict=True)
        for (name, text), values in every:
            await self._pause()
            parts.append(_of_namespaces(name, text, values))
        return parts

    async def _pause(self) -> None:
        if time.perf_counter() - self._slice_began >= SLICE_SECONDS:
            self._note_pause()
            await asyncio.sleep(0)
            self._slice_began = time.perf_counter()

    def _note_pause(self) -> None:
        self.longest_pause = max(self.longest_pause, time.perf_counter() - self._slice_began)


def _head(name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n"


def _of_namespaces(name: str, text: str, values: Mapping[str, float]) -> bytes:
    lines = [f'{name}{{namespace="{each}"}} {value:.16g}\n' for each, value in values.items()]
    return (_head(name, text) + "".join(lines)).encode()


def _lines(node: str, account: NodeAccount, shares: Sequence[Share]) -> tuple[str, ...]:
    """Return a line for each of OF_NODES. Names of nodes never need escaping."""
    cards = account.cards
    values = (
        account.inventory.unit_mib * 2**20,
        sum(entry.card.units for entry in cards),
        used_by_pods(account, shares),
        sum(entry.reserved for entry in cards),
        sum(account.largest_free),
        sum(entry.overcommitted for entry in cards),
        account.largest_free[0] if account.largest_free else 0,
    )
    return tuple(
        f'{name}{{node="{node}"}} {value}\n' for name, value in zip(OF_NODES, values, strict=True)
    )
