"""Account for shares, reserves, holds and claims of every card (pure).

Shares come from bound pods, reserves from decisions that are not yet on the API server, holds and
claims from plans (holds.py). Free units are always computed from these, never incremented or
decremented, so that reordered or repeated events cannot make them drift. The result is cached per
node until something there changes.
"""

from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from gpushare.cards.model import Card, Inventory, Share
from gpushare.ledger.changes import Changes
from gpushare.ledger.holds import Claim, Hold, Kept, NodeResources, Slot, add_units, counts, where
from gpushare.ledger.overlay import Overlay


@dataclass(frozen=True, slots=True)
class Reserve:
    """``units`` of each card, reserved for a decision whose write may or may not succeed.

    ``attempt`` counts the writes of this decision. Each write makes a different reserve, so that
    the outcome of an earlier write is never taken for that of a later one.
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
    """Units of one card. ``free`` is at least 0; ``overcommitted`` is what exceeds the card.

    ``reserved`` are units of reserves and holds, ``claimed`` those of claims that count against the
    pod in question. ``free`` is computed once because filter reads it for thousands of nodes.
    """

    card: Card
    used: int
    unplaced: int
    reserved: int
    claimed: int = 0
    free: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "free", max(0, self.card.units - self.committed))

    @property
    def committed(self) -> int:
        return self.used + self.unplaced + self.reserved + self.claimed

    @property
    def overcommitted(self) -> int:
        return max(0, self.used + self.reserved - self.card.units)


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """A node's cards in index order.

    ``open`` are the cards that take new pods, ``largest_free`` their free units, and ``largest``
    the units of all cards, both in falling order.
    """

    inventory: Inventory
    cards: tuple[CardAccount, ...]
    open: tuple[CardAccount, ...]
    largest_free: tuple[int, ...]
    largest: tuple[int, ...]


_Key = tuple[type[Kept], str]
_K = TypeVar("_K")
_V = TypeVar("_V")
_NONE: Final[frozenset[str]] = frozenset()
_NO_KEYS: Final[frozenset[_Key]] = frozenset()


@dataclass(slots=True)
class _Node:
    """``kept`` are holds and claims with only their slots on this node."""

    inventory: Inventory | None = None
    shares: dict[str, Share] = field(default_factory=dict)
    reserves: dict[str, Reserve] = field(default_factory=dict)
    kept: dict[_Key, Kept] = field(default_factory=dict)
    account: NodeAccount | None = None

    @property
    def is_empty(self) -> bool:
        return self.inventory is None and not (self.shares or self.reserves or self.kept)

    def copy(self) -> "_Node":
        own = dict(self.shares), dict(self.reserves), dict(self.kept)
        return _Node(self.inventory, *own, self.account)


@dataclass(frozen=True, slots=True)
class _Maps:
    nodes: MutableMapping[str, _Node] = field(default_factory=dict)
    node_of_share: MutableMapping[str, str] = field(default_factory=dict)
    nodes_of_reserve: MutableMapping[str, frozenset[str]] = field(default_factory=dict)
    kept: MutableMapping[_Key, Kept] = field(default_factory=dict)
    pins: MutableMapping[str, frozenset[_Key]] = field(default_factory=dict)


class Ledger:
    """Not thread-safe: one event loop owns it. ``changes`` records the node of every change."""

    def __init__(self, *, _over: _Maps | None = None) -> None:
        self.changes = Changes()
        maps = _Maps() if _over is None else _over
        self._maps = maps
        self._nodes = maps.nodes
        self._node_of_share = maps.node_of_share
        self._nodes_of_reserve = maps.nodes_of_reserve
        self._kept = maps.kept
        self._pins = maps.pins
        self._copied: set[str] | None = None if _over is None else set()

    def overlay(self) -> "Ledger":
        """Return a ledger for trials: it starts as this one, and its changes do not affect this.

        A node is copied on its first change there, and nothing else is. Use it for one decision: it
        is invalid once this ledger has changed.
        """
        maps = self._maps
        return Ledger(
            _over=_Maps(
                Overlay(maps.nodes),
                Overlay(maps.node_of_share),
                Overlay(maps.nodes_of_reserve),
                Overlay(maps.kept),
                Overlay(maps.pins),
            )
        )

    def set_inventory(self, node: str, inventory: Inventory | None) -> None:
        """Set the cards of a node; None removes them and keeps the shares and reserves there."""
        entry = self._touch(node)
        entry.inventory = inventory
        self._drop_if_empty(node)

    def put_share(self, share: Share) -> None:
        """Count a bound pod, and release its reserves: the decision is on the API server."""
        self.remove_share(share.pod_uid)
        self._touch(share.node).shares[share.pod_uid] = share
        self._node_of_share[share.pod_uid] = share.node

    def remove_share(self, pod_uid: str) -> None:
        """Forget a pod that has ended or is deleted, with its reserves and pinned slots."""
        for node in self._nodes_of_reserve.get(pod_uid, ()):
            self.release(pod_uid, node)
        for key in self._pins.get(pod_uid, ()):
            kept = self._kept[key]
            self._enter(replace(kept, slots=tuple(s for s in kept.slots if s.pod_uid != pod_uid)))
        node_name = self._node_of_share.pop(pod_uid, None)
        if node_name is not None:
            del self._touch(node_name).shares[pod_uid]
            self._drop_if_empty(node_name)

    def reserve(self, reserve: Reserve) -> None:
        """Reserve units for one pod on one node, and replace its earlier reserve there."""
        uid = reserve.pod_uid
        self._touch(reserve.node).reserves[uid] = reserve
        self._nodes_of_reserve[uid] = self._nodes_of_reserve.get(uid, _NONE) | {reserve.node}

    def release(self, pod_uid: str, node: str) -> None:
        held = self._nodes_of_reserve.get(pod_uid, _NONE)
        if node not in held:
            return
        _put(self._nodes_of_reserve, pod_uid, held - {node})
        del self._touch(node).reserves[pod_uid]
        self._drop_if_empty(node)

    def keep(self, kept: Kept) -> None:
        """Keep all slots of a hold or claim, and replace the owner's earlier one of the same kind.

        The caller checks that the resources are free. A slot that is pinned to a pod with a share
        is left out: that pod is bound already.
        """
        slots = tuple(s for s in kept.slots if s.pod_uid not in self._node_of_share)
        self._enter(replace(kept, slots=slots))

    def drop(self, kind: type[Kept], owner: str) -> Kept | None:
        """Drop an owner's hold or claim and return it; None if it had none."""
        kept = self._kept.get((kind, owner))
        if kept is not None:
            self._enter(replace(kept, slots=()))
        return kept

    def expire(self, now: float) -> list[Kept]:
        """Drop and return the holds and claims that expired by ``now``: no pod event shows this."""
        due = [kept for kept in self._kept.values() if kept.expires_at <= now]
        for kept in due:
            self.drop(type(kept), kept.owner)
        return due

    def kept(self) -> Iterator[Kept]:
        yield from self._kept.values()

    def kept_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> NodeResources:
        """Return the CPU and memory that holds and claims keep on a node for other pods."""
        entry = self._nodes.get(node)
        slots = [
            slot
            for kept in (entry.kept.values() if entry is not None else ())
            if counts(kept, priority)
            for slot in kept.slots
            if not besides or slot.pod_uid != besides
        ]
        return NodeResources(sum(s.cpu_milli for s in slots), sum(s.memory_bytes for s in slots))

    def share(self, pod_uid: str) -> Share | None:
        node = self._node_of_share.get(pod_uid)
        return self._nodes[node].shares[pod_uid] if node is not None else None

    def reserve_of(self, pod_uid: str, node: str) -> Reserve | None:
        entry = self._nodes.get(node)
        return entry.reserves.get(pod_uid) if entry is not None else None

    def reserved_on(self, pod_uid: str) -> Collection[str]:
        """Return the nodes with a reserve or a pinned slot of this pod."""
        slots = (slot for key in self._pins.get(pod_uid, ()) for slot in self._kept[key].slots)
        pinned = {slot.node for slot in slots if slot.pod_uid == pod_uid}
        return self._nodes_of_reserve.get(pod_uid, _NONE) | pinned

    def outranked(self, priority: int) -> set[str]:
        """Return the nodes with claims that do not count against a pod of this priority."""
        return {
            slot.node
            for kept in self._kept.values()
            if not counts(kept, priority)
            for slot in kept.slots
        }

    def has_reserve(self, pod_uid: str) -> bool:
        """Return whether the pod has a reserve or a pinned slot."""
        return pod_uid in self._nodes_of_reserve or pod_uid in self._pins

    def reserves(self) -> Iterator[Reserve]:
        for entry in self._nodes.values():
            yield from entry.reserves.values()

    def shares(self, node: str | None = None) -> Iterator[Share]:
        if node is not None:
            entry = self._nodes.get(node)
            yield from entry.shares.values() if entry is not None else ()
            return
        for entry in self._nodes.values():
            yield from entry.shares.values()

    def bound_pods(self) -> list[str]:
        return list(self._node_of_share)

    def nodes(self) -> Iterator[str]:
        """Return the names of the nodes that have cards."""
        return (name for name, entry in self._nodes.items() if entry.inventory is not None)

    def inventory(self, node: str) -> Inventory | None:
        """Return a node's cards; None if it has none. Cheaper than ``account``: no sums."""
        entry = self._nodes.get(node)
        return entry.inventory if entry is not None else None

    def account(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> NodeAccount | None:
        """Return the used and free units of ``node``; None if it has no cards.

        Reserves and slots of the pod ``besides`` do not count. ``priority`` is that of the pod in
        question: claims below it do not count; None counts all claims.
        """
        entry = self._nodes.get(node)
        if entry is None or entry.inventory is None:
            return None
        if besides not in entry.reserves and not (entry.kept and (besides or priority is not None)):
            if entry.account is None:
                entry.account = _account(entry, entry.inventory, "", None)
            return entry.account
        return _account(entry, entry.inventory, besides, priority)

    def _enter(self, kept: Kept) -> None:
        """Store a hold or claim, or remove it if it has no slots. All their changes happen here."""
        key = type(kept), kept.owner
        before = self._kept.get(key)
        old: tuple[Slot, ...] = before.slots if before is not None else ()
        new = kept.slots
        for uid in {s.pod_uid for s in (*old, *new) if s.pod_uid}:
            pins = self._pins.get(uid, _NO_KEYS) - {key}
            is_pinned = any(slot.pod_uid == uid for slot in new)
            _put(self._pins, uid, pins | {key} if is_pinned else pins)
        for node in {slot.node for slot in (*old, *new)}:
            here = tuple(slot for slot in new if slot.node == node)
            _put(self._touch(node).kept, key, replace(kept, slots=here) if here else None)
            self._drop_if_empty(node)
        _put(self._kept, key, kept if new else None)

    def _touch(self, node: str) -> _Node:
        """Return the node's entry for a change. All changes go through here."""
        entry = self._nodes.get(node)
        if entry is None:
            entry = self._nodes[node] = _Node()
        elif self._copied is not None and node not in self._copied:
            entry = self._nodes[node] = entry.copy()
        if self._copied is not None:
            self._copied.add(node)
        entry.account = None
        self.changes.add(node)
        return entry

    def _drop_if_empty(self, node: str) -> None:
        if self._nodes[node].is_empty:
            del self._nodes[node]


def summed(inventory: Inventory, cards: Sequence[CardAccount]) -> NodeAccount:
    """Return the account of a node that has exactly these cards."""
    taking_new = tuple([account for account in cards if account.card.takes_new])
    return NodeAccount(
        inventory,
        tuple(cards),
        taking_new,
        largest_free=_falling([account.free for account in taking_new]),
        largest=_falling(account.card.units for account in cards),
    )


def _account(entry: _Node, inventory: Inventory, besides: str, priority: int | None) -> NodeAccount:
    used: dict[str, int] = {}
    reserved: dict[str, int] = {}
    claimed: dict[str, int] = {}
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
        for uuid in where(reserve.cards, here):
            reserved[uuid] = reserved.get(uuid, 0) + reserve.units
    if entry.kept:
        # Of slots pinned to a pod, only units beyond its reserve count, card by card.
        counted = {
            (reserve.pod_uid, uuid): reserve.units
            for reserve in entry.reserves.values()
            for uuid in where(reserve.cards, here)
        }
        for kind, sums in ((Hold, reserved), (Claim, claimed)):
            mine = [k for k in entry.kept.values() if type(k) is kind and counts(k, priority)]
            add_units(mine, here, besides, counted, sums)
    cards = [
        CardAccount(
            card,
            used.get(card.uuid, 0),
            unplaced,
            reserved.get(card.uuid, 0),
            claimed.get(card.uuid, 0),
        )
        for card in inventory.cards
    ]
    return summed(inventory, cards)


def _put(mapping: MutableMapping[_K, _V], key: _K, value: _V | None) -> None:
    """Set a value, or remove the key if the value is empty."""
    if value:
        mapping[key] = value
    else:
        mapping.pop(key, None)


def _falling(units: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(units, reverse=True))
