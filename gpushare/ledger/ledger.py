"""Account for shares, reserves, holds and claims of every card (pure).

Shares come from bound pods, reserves from decisions that are not yet on the API server, holds and
claims from plans. What is free is computed from these (accounts.py) and cached per node until
something there changes.
"""

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpushare.cards.model import Inventory, Share
from gpushare.ledger.accounts import NodeAccount, NodeEntry, Reserve
from gpushare.ledger.changes import Changes
from gpushare.ledger.holds import Claim, Hold, Holder, Kept, Slot, SlotKey
from gpushare.ledger.overlay import Overlay, is_own
from gpushare.ledger.plans import PlanMaps, Plans

_NONE: Final[frozenset[str]] = frozenset()
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Maps:
    nodes: MutableMapping[str, NodeEntry] = field(default_factory=dict)
    node_of_share: MutableMapping[str, str] = field(default_factory=dict)
    nodes_of_reserve: MutableMapping[str, frozenset[str]] = field(default_factory=dict)
    plans: PlanMaps = field(default_factory=PlanMaps)


class Ledger:
    """Not thread-safe: one event loop owns it. ``changes`` records the node of every change."""

    def __init__(self, *, _over: _Maps | None = None) -> None:
        self.changes = Changes()
        maps = _Maps() if _over is None else _over
        self._maps = maps
        self._nodes = maps.nodes
        self._node_of_share = maps.node_of_share
        self._nodes_of_reserve = maps.nodes_of_reserve
        self._plans = Plans(maps.plans, self._put_slot, self._take_slot)

    def overlay(self) -> "Ledger":
        """Return a ledger for trials: it starts as this one, and its changes do not affect this.

        A node, a hold and a claim are copied on their first change there, and nothing else is. Use
        it for one decision: it is invalid once this ledger has changed.
        """
        maps = self._maps
        return Ledger(
            _over=_Maps(
                Overlay(maps.nodes),
                Overlay(maps.node_of_share),
                Overlay(maps.nodes_of_reserve),
                maps.plans.overlay(),
            )
        )

    def set_inventory(self, node: str, inventory: Inventory | None) -> None:
        """Set the cards of a node; None removes them and keeps the shares and reserves there."""
        entry = self._touch(node)
        entry.inventory = inventory
        self._drop_if_empty(node)

    def put_share(self, share: Share) -> None:
        """Count a bound pod, and release its reserves and slots: the API server has the decision.

        The cost does not depend on the other slots of its hold.
        """
        self.remove_share(share.pod_uid)
        self._touch(share.node).shares[share.pod_uid] = share
        self._node_of_share[share.pod_uid] = share.node

    def remove_share(self, pod_uid: str) -> None:
        """Forget a pod that has ended or is deleted, with its reserves and pinned slots."""
        for node in self._nodes_of_reserve.get(pod_uid, ()):
            self.release(pod_uid, node)
        self._plans.drop_pod(pod_uid)
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
        if held == {node}:
            del self._nodes_of_reserve[pod_uid]
        else:
            self._nodes_of_reserve[pod_uid] = held - {node}
        del self._touch(node).reserves[pod_uid]
        self._drop_if_empty(node)

    def release_all(self) -> None:
        """Release all reserves, holds and claims: what no pod on the API server shows."""
        for reserve in list(self.reserves()):
            self.release(reserve.pod_uid, reserve.node)
        for holder in self._plans.holders():
            self._plans.drop(holder.kind, holder.owner)

    def keep(self, kept: Kept) -> None:
        """Keep all slots of a hold or claim, and replace the owner's earlier one of the same kind.

        The caller checks that the resources are free. A slot that is pinned to a pod with a share
        is left out: that pod is bound already. A pod has one slot in all holds, and one in all
        claims: an earlier one, of any owner, ends. Without slots, the hold or claim is dropped. A
        node whose slots stay the same is not touched.
        """
        self._plans.keep(kept, self._node_of_share)

    def put_slot(self, owner: str, slot: Slot) -> None:
        """Add a slot, pinned to a pod, to a hold; it replaces the pod's earlier slot in any hold.

        A slot of a pod with a share is ignored. Raises KeyError if the owner has no hold, and
        ValueError if the slot is not pinned.
        """
        if not slot.pod_uid:
            raise ValueError(f"a slot on {slot.node} has no pod: give it one, or keep a whole hold")
        if not self._plans.has(Hold, owner):
            raise KeyError(owner)
        if slot.pod_uid not in self._node_of_share:
            self._plans.put_slot(owner, slot)

    def drop_slot(self, pod_uid: str) -> None:
        """End the slots pinned to a pod, for one that is bound without a share.

        A hold or claim whose last slot ends is dropped.
        """
        self._plans.drop_pod(pod_uid)

    def renew(self, owner: str, expires_at: float) -> bool:
        """Set when an owner's hold expires; return whether it has one. No node is touched."""
        return self._plans.renew(owner, expires_at)

    def make_firm(self, owner: str) -> None:
        """Let an owner's hold, if it has one, count against pods of every priority."""
        for node in self._plans.make_firm(owner):
            self.changes.add(node)  # a plan that is being made may count on its room

    def drop(self, kind: type[Kept], owner: str) -> Kept | None:
        """Drop an owner's hold or claim and return it; None if it had none."""
        return self._plans.drop(kind, owner)

    def expire(self, now: float) -> list[Kept]:
        """Drop and return the holds and claims that expired by ``now``: no pod event shows this."""
        due = [self._plans.drop(each.kind, each.owner) for each in self._plans.expired(now)]
        return [kept for kept in due if kept is not None]

    def kept(self) -> Iterator[Kept]:
        yield from self._plans

    def hold_of(self, owner: str) -> Hold | None:
        """Return an owner's hold, its slots in the order in which they were kept."""
        found = self._plans.get(Hold, owner)
        return found if isinstance(found, Hold) else None

    def claim_of(self, owner: str) -> Claim | None:
        """Return an owner's claim, its slots in the order in which they were kept."""
        found = self._plans.get(Claim, owner)
        return found if isinstance(found, Claim) else None

    def slot_count(self, owner: str) -> int:
        """Return the number of slots in an owner's hold."""
        return self._plans.count(Hold, owner)

    def slot_of(self, pod_uid: str) -> Slot | None:
        """Return the slot that a hold has for this pod."""
        return self._plans.slot_of(Hold, pod_uid)

    def claim_slot_of(self, pod_uid: str) -> Slot | None:
        """Return the slot that a claim has for this pod."""
        return self._plans.slot_of(Claim, pod_uid)

    def slots_on(self, node: str) -> list[tuple[Kept, Slot]]:
        """Return the slots on a node, each with its hold or claim, cut down to this one slot."""
        entry = self._nodes.get(node)
        return [
            (holder.kept((slot,), self._plans.expires_at(holder)), slot)
            for holder, slot in (entry.slots if entry is not None else ())
        ]

    def pinned_slots_on(self, node: str) -> Iterator[Slot]:
        """Yield the slots of pods on a node, those of holds first; a pod may have one in each."""
        entry = self._nodes.get(node)
        if entry is not None:
            yield from (slot for _, slot in entry.slots if slot.pod_uid)

    def kept_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int]:
        """Return the requests that holds and claims keep on a node for other pods.

        The amounts are in thousandths, as in Slot. ``priority`` is as in ``account``. A pod with a
        slot in a hold and in a claim counts once. The GPU memory of claims is not included.
        """
        entry = self._nodes.get(node)
        return entry.kept_resources(besides, priority) if entry is not None else _NOTHING

    def share(self, pod_uid: str) -> Share | None:
        node = self._node_of_share.get(pod_uid)
        return self._nodes[node].shares[pod_uid] if node is not None else None

    def reserve_of(self, pod_uid: str, node: str) -> Reserve | None:
        entry = self._nodes.get(node)
        return entry.reserves.get(pod_uid) if entry is not None else None

    def reserved_on(self, pod_uid: str) -> Collection[str]:
        """Return the nodes with a reserve or a pinned slot of this pod."""
        pinned = [slot.node for slot in self._plans.slots_of(pod_uid)]
        return self._nodes_of_reserve.get(pod_uid, _NONE).union(pinned)

    def outranked(self, priority: int) -> set[str]:
        """Return the nodes with holds or claims that do not count for a pod of this priority."""
        return self._plans.outranked(priority)

    def has_reserve(self, pod_uid: str) -> bool:
        """Return whether the pod has a reserve or a pinned slot."""
        return pod_uid in self._nodes_of_reserve or self._plans.pins(pod_uid)

    def reserves(self, node: str | None = None) -> Iterator[Reserve]:
        if node is not None:
            entry = self._nodes.get(node)
            yield from entry.reserves.values() if entry is not None else ()
            return
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

    def all_nodes(self) -> Collection[str]:
        """Return the names of the nodes with cards, shares, reserves or slots."""
        return self._nodes.keys()

    def inventory(self, node: str) -> Inventory | None:
        """Return a node's cards; None if it has none. Cheaper than ``account``: no sums."""
        entry = self._nodes.get(node)
        return entry.inventory if entry is not None else None

    def account(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> NodeAccount | None:
        """Return the used and free units of ``node``; None if it has no cards.

        Reserves and slots of the pod ``besides`` do not count. ``priority`` is that of the pod in
        question: holds and claims below it do not count; None counts all.
        """
        entry = self._nodes.get(node)
        if entry is None:
            return None
        found = entry.cached
        # Most nodes, asked about by the thousand: this saves two calls.
        if found is not None and not (besides in entry.reserves or entry.held or entry.claimed):
            return found
        return entry.account(besides, priority)

    def _put_slot(self, holder: Holder, key: SlotKey, slot: Slot) -> None:
        self._touch(slot.node).slots_of(holder)[key] = holder, slot

    def _take_slot(self, holder: Holder, key: SlotKey, slot: Slot) -> None:
        del self._touch(slot.node).slots_of(holder)[key]
        self._drop_if_empty(slot.node)

    def _touch(self, node: str) -> NodeEntry:
        """Return the node's entry for a change. All changes go through here."""
        entry = self._nodes.get(node)
        if entry is None:
            entry = self._nodes[node] = NodeEntry()
        elif not is_own(self._nodes, node):
            entry = self._nodes[node] = entry.copy()
        entry.cached = None
        self.changes.add(node)
        return entry

    def _drop_if_empty(self, node: str) -> None:
        if self._nodes[node].is_empty:
            del self._nodes[node]
