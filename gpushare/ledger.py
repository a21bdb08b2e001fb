"""Who holds how much of which card (pure).

Shares come from bound pods, reserves from decisions that are not yet on the API server. What is
free is always computed from them, never added up and taken back, so that no order of events and no
repeated event can make it drift; the result is kept per node until something there changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpushare.cards import Card, Inventory, Share


@dataclass(frozen=True, slots=True)
class Reserve:
    """``units`` of each card, held for a decision on a pod that may or may not land.

    ``attempt`` counts the writes of this decision: each makes a reserve that differs from the one
    before, so that what was learnt about an earlier write is never taken for a later one's.
    """

    pod_uid: str
    namespace: str
    name: str
    node: str
    cards: tuple[str, ...]
    units: int
    assume_time_ns: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class CardAccount:
    """What is held of one card, in units. ``free`` saturates at zero, ``over`` says by how much."""

    card: Card
    used: int
    unplaced: int
    reserved: int

    @property
    def free(self) -> int:
        return max(0, self.card.units - self.used - self.unplaced - self.reserved)

    @property
    def over(self) -> int:
        return max(0, self.used + self.reserved - self.card.units)


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """A node's cards in index order, and their units in falling order.

    ``largest_free`` and ``largest_healthy`` are of healthy cards, ``largest`` of all.
    """

    inventory: Inventory
    cards: tuple[CardAccount, ...]
    largest_free: tuple[int, ...]
    largest_healthy: tuple[int, ...]
    largest: tuple[int, ...]


@dataclass(slots=True)
class _Node:
    inventory: Inventory | None = None
    shares: dict[str, Share] = field(default_factory=dict)
    reserves: dict[str, Reserve] = field(default_factory=dict)
    account: NodeAccount | None = None

    @property
    def is_empty(self) -> bool:
        return self.inventory is None and not self.shares and not self.reserves


class Ledger:
    """Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._node_of_share: dict[str, str] = {}
        self._nodes_of_reserve: dict[str, set[str]] = {}

    def set_inventory(self, node: str, inventory: Inventory | None) -> None:
        """State the cards of a node; None takes them away, and keeps what is held there."""
        entry = self._touch(node)
        entry.inventory = inventory
        self._drop_if_empty(node)

    def put_share(self, share: Share) -> None:
        """Count a bound pod. Its reserves end here: the decision is on the API server."""
        self.remove_share(share.pod_uid)
        self._touch(share.node).shares[share.pod_uid] = share
        self._node_of_share[share.pod_uid] = share.node

    def remove_share(self, pod_uid: str) -> None:
        """Forget a pod that has ended or is gone, with all its reserves."""
        for node in tuple(self._nodes_of_reserve.get(pod_uid, ())):
            self.release(pod_uid, node)
        node_name = self._node_of_share.pop(pod_uid, None)
        if node_name is not None:
            del self._touch(node_name).shares[pod_uid]
            self._drop_if_empty(node_name)

    def reserve(self, reserve: Reserve) -> None:
        """Hold units for one pod on one node, replacing what that pod held there."""
        self._touch(reserve.node).reserves[reserve.pod_uid] = reserve
        self._nodes_of_reserve.setdefault(reserve.pod_uid, set()).add(reserve.node)

    def release(self, pod_uid: str, node: str) -> None:
        """Let go of one reserve, if it is still there."""
        held = self._nodes_of_reserve.get(pod_uid, set())
        if node not in held:
            return
        held.discard(node)
        if not held:
            del self._nodes_of_reserve[pod_uid]
        del self._touch(node).reserves[pod_uid]
        self._drop_if_empty(node)

    def share(self, pod_uid: str) -> Share | None:
        node = self._node_of_share.get(pod_uid)
        return self._nodes[node].shares[pod_uid] if node is not None else None

    def reserve_of(self, pod_uid: str, node: str) -> Reserve | None:
        entry = self._nodes.get(node)
        return entry.reserves.get(pod_uid) if entry is not None else None

    def has_reserve(self, pod_uid: str) -> bool:
        return pod_uid in self._nodes_of_reserve

    def reserves(self) -> Iterator[Reserve]:
        for entry in self._nodes.values():
            yield from entry.reserves.values()

    def shares(self, node: str | None = None) -> Iterator[Share]:
        """Shares of one node, or of all."""
        if node is not None:
            entry = self._nodes.get(node)
            yield from entry.shares.values() if entry is not None else ()
            return
        for entry in self._nodes.values():
            yield from entry.shares.values()

    def holders(self) -> list[str]:
        """Uids of the pods that have a share."""
        return list(self._node_of_share)

    def nodes(self) -> Iterator[str]:
        """Names of the nodes that have cards."""
        return (name for name, entry in self._nodes.items() if entry.inventory is not None)

    def account(self, node: str, *, besides: str = "") -> NodeAccount | None:
        """What is held and free on ``node``; None if it has no cards.

        A reserve of the pod ``besides`` is left out: it never stands in that pod's own way.
        """
        entry = self._nodes.get(node)
        if entry is None or entry.inventory is None:
            return None
        if besides and besides in entry.reserves:
            return _account(entry, entry.inventory, besides)
        if entry.account is None:
            entry.account = _account(entry, entry.inventory, "")
        return entry.account

    def _touch(self, node: str) -> _Node:
        entry = self._nodes.setdefault(node, _Node())
        entry.account = None
        return entry

    def _drop_if_empty(self, node: str) -> None:
        if self._nodes[node].is_empty:
            del self._nodes[node]


def _account(entry: _Node, inventory: Inventory, besides: str) -> NodeAccount:
    used: dict[str, int] = {}
    reserved: dict[str, int] = {}
    unplaced = 0
    for share in entry.shares.values():
        if share.is_unplaced:
            unplaced += share.units
        for uuid in share.cards:
            used[uuid] = used.get(uuid, 0) + share.units
    here = {card.uuid for card in inventory.cards}
    for reserve in entry.reserves.values():
        if reserve.pod_uid == besides:
            continue
        # Decided when the node still named its cards otherwise: it may land on any of them.
        for uuid in reserve.cards if here.issuperset(reserve.cards) else here:
            reserved[uuid] = reserved.get(uuid, 0) + reserve.units
    cards = tuple(
        CardAccount(card, used.get(card.uuid, 0), unplaced, reserved.get(card.uuid, 0))
        for card in inventory.cards
    )
    healthy = [account for account in cards if account.card.is_healthy]
    return NodeAccount(
        inventory,
        cards,
        largest_free=_falling(account.free for account in healthy),
        largest_healthy=_falling(account.card.units for account in healthy),
        largest=_falling(account.card.units for account in cards),
    )


def _falling(units: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(units, reverse=True))
