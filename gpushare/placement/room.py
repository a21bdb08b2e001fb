"""Measure what one node has for a pod: cards, free units, other resources (pure).

Everything here is the same for all pods of a kind (``rooms.kind_of``). It is valid until the node's
account, object or state changes.
"""

from collections.abc import Mapping

from gpushare.cards.model import Request
from gpushare.ledger.accounts import CardAccount, NodeAccount
from gpushare.objects.model import Pod
from gpushare.placement import node_constraints
from gpushare.placement.card_choice import is_wanted, why_unserved
from gpushare.placement.ends import NodeEnds, of_each
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.trial import World


class NodeRoom:
    """One node for pods that use ``count`` cards.

    ``rules`` are those of kube-scheduler that reject the node, ``reason`` is why it serves no such
    pod whatever its cards have free. ``every`` has the cards in the cluster's unit, ``cards`` those
    that the pod's policy allows, ``open`` those of them that take new pods. ``size_of_all``,
    ``size`` and ``size_open`` are the units of the ``count`` largest of these, 0 if there are
    fewer. ``free`` is what is free on each of ``count`` ``open`` cards, ``free_of_all`` ignores
    the policy, health and cordons. ``ends``: whose end would help.
    """

    __slots__ = (
        "account",
        "cards",
        "closed",
        "count",
        "ends",
        "every",
        "free",
        "free_of_all",
        "name",
        "node",
        "open",
        "reason",
        "rules",
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
        self._set_cards(request, world.unit_mib)
        self.size_of_all = of_each(count, (entry.card.units for entry in self.every))
        self.size = of_each(count, (entry.card.units for entry in self.cards))
        self.size_open = of_each(count, (entry.card.units for entry in self.open))
        self.free_of_all = of_each(count, (entry.free for entry in self.every))
        self.free = of_each(count, (entry.free for entry in self.open))
        self.ends = NodeEnds(count, self.open, ledger.shares(name))

    def _set_cards(self, request: Request, unit_mib: int) -> None:
        account, policy = self.account, request.policy
        self.every: tuple[CardAccount, ...] = ()
        self.cards: tuple[CardAccount, ...] = ()
        self.open: tuple[CardAccount, ...] = ()
        if account is None or account.inventory.unit_mib != unit_mib:
            return  # amounts in another unit cannot be compared
        self.every, self.cards, self.open = account.cards, account.cards, account.open
        if policy.names_cards:
            self.cards = tuple(each for each in self.every if is_wanted(each.card, policy))
            self.open = tuple(each for each in self.cards if each.card.takes_new)

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

    @property
    def best(self) -> list[CardAccount]:
        """Return the open cards with the most free, in index order."""
        falling = sorted(self.open, key=lambda entry: -entry.free)
        return sorted(falling[: self.count], key=lambda entry: entry.card.index)

    def left(self, world: World, pod: Pod) -> Mapping[str, int]:
        """Return the node's free allocatable now; nothing if it is unknown."""
        free = world.free_resources(self.name, besides=pod.uid, priority=pod.priority)
        return free if free is not None else {}


def _reason(
    closed: Reason | None, account: NodeAccount | None, request: Request, unit_mib: int
) -> Reason | None:
    if closed is not None:
        return closed
    return NO_CARDS if account is None else why_unserved(account.inventory, request, unit_mib)
