"""What one node has left while some of its pods count as gone, as numbers (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from gpushare.ledger.accounts import NodeAccount, summed
from gpushare.placement.card_choice import is_wanted
from gpushare.planning.capacity import by_resources, sets_of_cards
from gpushare.planning.shapes import Shape
from gpushare.preemption.candidates import Candidate

_requests = attrgetter("requests")


class Load(msgspec.Struct, gc=False, frozen=True, eq=False):
    """What pods use of a node: units by card (UUID), ``unplaced`` units of every card, amounts."""

    node: str
    cards: tuple[tuple[str, int], ...]
    unplaced: int
    amounts: tuple[tuple[str, int], ...]

    @property
    def units(self) -> int:
        """Return the units of all cards that are known."""
        return sum([much for _, much in self.cards])


class Batch(msgspec.Struct, gc=False, frozen=True, eq=False):
    """Candidates that go, or are put back, at the same time; there is a load for each node."""

    candidates: tuple[Candidate, ...]
    loads: tuple[Load, ...]


def batch_of(candidates: Iterable[Candidate]) -> Batch:
    """Return candidates as one batch."""
    found = tuple(candidates)
    if len(found) == 1:
        return Batch(found, (_load_of_one(found[0]),))
    nodes: dict[str, list[Candidate]] = {}
    for each in found:
        nodes.setdefault(each.node, []).append(each)
    return Batch(found, tuple([_load(name, here) for name, here in nodes.items()]))


class NodeRoom:
    """What is left of one node; units are negative where more is used than there is.

    ``account`` and ``free`` are what the node has before anybody goes.
    """

    __slots__ = ("_account", "_free", "_units", "_wanted", "amounts", "units")

    def __init__(self, account: NodeAccount | None, free: Mapping[str, int]) -> None:
        self._account, self._free = account, free
        cards = account.open if account is not None else ()
        self._units = {each.card.uuid: each.card.units - each.committed for each in cards}
        self._wanted: dict[Shape, list[str]] = {}
        self.reset()

    def reset(self) -> None:
        """Put everybody back."""
        self.units, self.amounts = dict(self._units), dict(self._free)

    def change(self, load: Load, sign: int) -> None:
        """Let pods go (``sign`` is 1), or put them back (-1)."""
        units, amounts = self.units, self.amounts
        for uuid, much in load.cards:
            if uuid in units:
                units[uuid] += sign * much
        if load.unplaced:
            for uuid in units:
                units[uuid] += sign * load.unplaced
        for name, amount in load.amounts:
            if name in amounts:
                amounts[name] += sign * amount

    def takes(self, shape: Shape) -> int:
        """Return how many members fit, if the node is eligible for them."""
        most = by_resources(self.amounts, shape.amounts)
        need, request = shape.need, shape.request
        if need.is_apart:
            most = min(most, 1)
        if request is None or most == 0:
            return most
        units = self.units
        if request.policy.names_cards:
            left = [units[uuid] for uuid in self.wanted(shape)]
        else:
            left = list(units.values())
        left = [each for each in left if each > 0]
        return min(most, sets_of_cards(left, need.units, need.card_count))

    def units_before(self, uuid: str) -> int:
        """Return what an open card has left before anybody goes."""
        return self._units[uuid]

    def wanted(self, shape: Shape) -> list[str]:
        """Return the cards that take new pods and that the policy of the shape allows."""
        found = self._wanted.get(shape)
        if found is None:
            request, account = shape.request, self._account
            found = self._wanted[shape] = [
                each.card.uuid
                for each in (account.open if account is not None else ())
                if request is not None and is_wanted(each.card, request.policy)
            ]
        return found

    def account(self) -> NodeAccount | None:
        """Return the node's account without those that are gone."""
        before = self._account
        if before is None:
            return None
        cards = [
            replace(each, used=each.used - self.units[uuid] + self._units[uuid])
            if (uuid := each.card.uuid) in self.units
            else each
            for each in before.cards
        ]
        return summed(before.inventory, cards)


def _load_of_one(one: Candidate) -> Load:
    share = one.share
    if share is None:
        return Load(one.node, (), 0, one.requests)
    units = share.units
    cards = tuple([(uuid, units) for uuid in share.cards])
    return Load(one.node, cards, share.units_everywhere, one.requests)


def _load(name: str, here: Sequence[Candidate]) -> Load:
    units: dict[str, int] = {}
    unplaced = 0
    for each in here:
        share = each.share
        if share is not None:
            much = share.units
            for uuid in share.cards:
                units[uuid] = units.get(uuid, 0) + much
            unplaced += share.units_everywhere
    amounts: dict[str, int] = {}
    # By identity: pods with equal requests have one object for them, and few are different.
    requests = list(map(_requests, here))
    by_id = {id(each): each for each in requests}
    for key, number in Counter(map(id, requests)).items():
        for resource, amount in by_id[key]:
            amounts[resource] = amounts.get(resource, 0) + number * amount
    return Load(name, tuple(units.items()), unplaced, tuple(amounts.items()))
