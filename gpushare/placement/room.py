"""Measure what each node has for a pod: cards, free units, and whose end would free more (pure).

Everything here is the same for all pods that differ only in their amount (``kind_of``). A node's
room stays valid until its account, its object or its state changes, so a caller with the rooms of
an earlier call pays only for the nodes that changed.
"""

from bisect import bisect_left
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from gpushare.cards.model import Request, Share
from gpushare.errors import RequestError
from gpushare.ledger.ledger import CardAccount, NodeAccount
from gpushare.objects.model import Pod
from gpushare.placement import node_constraints
from gpushare.placement.card_choice import is_wanted, why_unserved
from gpushare.placement.node_resources import Amounts, free_resources
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.trial import World

_FREE: Final = itemgetter(0)


class NodeRoom:
    """One node for pods that use ``count`` cards.

    ``rules`` are those of kube-scheduler that reject the node, ``reason`` is why it serves no such
    pod whatever its cards have free. ``cards`` are those that the pod's policy allows, ``open``
    those of them that take new pods. ``free`` is what is free on each of the ``count`` ``best``
    cards; ``size``, ``size_open`` and ``size_of_all`` are the units of the ``count`` largest of
    ``cards``, ``open`` and all cards, 0 if there are fewer. ``free_of_all`` ignores the policy,
    health and cordons.
    """

    __slots__ = (
        "_alone",
        "_left",
        "account",
        "best",
        "cards",
        "cards_of_all",
        "closed",
        "count",
        "free",
        "free_of_all",
        "name",
        "node",
        "open",
        "reason",
        "rules",
        "shares",
        "size",
        "size_of_all",
        "size_open",
    )

    def __init__(self, world: World, name: str, pod: Pod, request: Request) -> None:
        count, ledger = request.card_count, world.ledger
        self.name, self.count = name, count
        self.node, self.closed = world.node(name), world.why_closed(name)
        self.account = ledger.account(name, besides=pod.uid, priority=pod.priority)
        self.rules = node_constraints.why_not(pod, self.node) if self.node is not None else []
        self.reason = _reason(self.closed, self.account, request, world.unit_mib)
        account = self.account
        every: Sequence[CardAccount] = account.cards if account is not None else ()
        if account is not None and account.inventory.unit_mib != world.unit_mib:
            every = ()  # its amounts cannot be compared
        policy = request.policy
        self.cards = [e for e in every if not policy.names_cards or is_wanted(e.card, policy)]
        self.open = [entry for entry in self.cards if entry.card.takes_new]
        self.cards_of_all = [entry.card for entry in every]
        self.size_of_all = _each(count, (card.units for card in self.cards_of_all))
        self.size = _each(count, (entry.card.units for entry in self.cards))
        self.size_open = _each(count, (entry.card.units for entry in self.open))
        self.free_of_all = _each(count, (entry.free for entry in every))
        self.free = _each(count, (entry.free for entry in self.open))
        self.best: list[CardAccount] = sorted(
            sorted(self.open, key=lambda entry: -entry.free)[:count],
            key=lambda entry: entry.card.index,
        )
        self.shares = tuple(ledger.shares(name))
        self._alone: list[tuple[int, Share]] | None = None
        self._left: Amounts | None = None

    def is_current(self, world: World, pod: Pod) -> bool:
        """Return whether a new room of this node would be equal."""
        return (
            self.node is world.node(self.name)
            and self.closed is world.why_closed(self.name)
            and self.account
            is world.ledger.account(self.name, besides=pod.uid, priority=pod.priority)
        )

    @property
    def is_candidate(self) -> bool:
        """Return whether only free units, or other resources, can be missing."""
        return self.reason is None and not self.rules

    def alone(self, units: int) -> list[Share]:
        """Return the shares of which any one, once ended, leaves room for ``units``."""
        if self._alone is None:
            made = [(_each(self.count, self._spares([share])), share) for share in self.shares]
            self._alone = sorted(made, key=_FREE)
        return [share for _, share in self._alone[bisect_left(self._alone, units, key=_FREE) :]]

    def fewest(self, units: int) -> list[Share] | None:
        """Return the fewest shares whose end together leaves room for ``units``; None if none do.

        For several cards the result leaves room and no share in it is superfluous, but there may be
        a smaller one.
        """
        emptied = (self._emptied(entry, units) for entry in self.open)
        found = sorted((each for each in emptied if each is not None), key=len)[: self.count]
        if len(found) < self.count:
            return None
        ended = {share.pod_uid: share for shares in found for share in shares}
        spares = self._spares(ended.values())
        for uid, share in list(ended.items()):
            self._add(spares, share, -share.units)
            if _each(self.count, spares) >= units:
                del ended[uid]
            else:
                self._add(spares, share, share.units)
        return list(ended.values())

    def left(self, world: World, priority: int) -> Amounts:
        """Return the node's free allocatable; nothing if an amount of the node is unreadable."""
        if self._left is None:
            kept = world.ledger.kept_resources(self.name, priority=priority)
            try:
                pods = world.pods_of(self.name)
                self._left = free_resources(self.node, pods, kept) if self.node is not None else {}
            except RequestError:
                self._left = {}
        return self._left

    def _emptied(self, entry: CardAccount, units: int) -> list[Share] | None:
        if entry.card.units < units:
            return None
        missing = units - (entry.card.units - entry.committed)
        here = [each for each in self.shares if each.is_unplaced or entry.card.uuid in each.cards]
        ended: list[Share] = []
        for share in sorted(here, key=lambda each: (-each.units, each.pod_key)):
            if missing <= 0:
                break
            ended.append(share)
            missing -= share.units
        return ended if missing <= 0 else None

    def _spares(self, without: Iterable[Share]) -> list[int]:
        spares = [entry.card.units - entry.committed for entry in self.open]
        for share in without:
            self._add(spares, share, share.units)
        return spares

    def _add(self, spares: list[int], share: Share, units: int) -> None:
        """Add units to the spares of the cards that a share uses."""
        for place, entry in enumerate(self.open):
            if share.is_unplaced or entry.card.uuid in share.cards:
                spares[place] += units


NO_ROOMS: Final[Mapping[str, NodeRoom]] = MappingProxyType({})


def rooms_of(
    world: World, pod: Pod, request: Request, before: Mapping[str, NodeRoom] = NO_ROOMS
) -> Generator[None, None, dict[str, NodeRoom]]:
    """Return the room of every node that shares GPUs, by name, in short steps.

    ``before`` are rooms of a pod of the same kind: a node that has not changed costs about 1 us,
    another one with 8 full cards 0.3 ms, half of it when its pods are first looked at.
    """
    found: dict[str, NodeRoom] = {}
    for name in sorted(world.node_names()):
        yield
        known = before.get(name)
        if known is None or not known.is_current(world, pod):
            known = NodeRoom(world, name, pod, request)
        found[name] = known
    return found


def kind_of(world: World, pod: Pod, request: Request) -> Hashable:
    """Return what decides about a pod's rooms: equal for pods that differ in their amount."""
    spec, policy = pod.spec, request.policy
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return (
        pod.uid if world.ledger.has_reserve(pod.uid) else "",
        pod.priority,
        request.card_count,
        request.sets_cards,
        request.exposes_cards,
        request.runtime_class,
        (policy.models, policy.only, policy.never),
        spec.tolerations,
        frozenset((spec.node_selector or {}).items()),
        affinity.required if affinity is not None else None,
    )


def _reason(
    closed: Reason | None, account: NodeAccount | None, request: Request, unit_mib: int
) -> Reason | None:
    if closed is not None:
        return closed
    return NO_CARDS if account is None else why_unserved(account.inventory, request, unit_mib)


def _each(count: int, units: Iterable[int]) -> int:
    """Return the units of each of the ``count`` largest, 0 if there are fewer or it is negative."""
    falling = sorted(units, reverse=True)
    return max(0, falling[count - 1]) if len(falling) >= count else 0
