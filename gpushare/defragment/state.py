"""The cluster after some moves, as an overlay of the ledger (pure)."""

from collections.abc import Collection, Generator, Iterable, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

from gpushare.cards.model import Card, Request, Share
from gpushare.defragment.model import CardKey, Movable, Place
from gpushare.ledger.accounts import NodeAccount, summed
from gpushare.ledger.changes import Changes
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.overlay import Overlay
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import Amounts, Requests
from gpushare.placement import card_choice
from gpushare.placement.node_resources import free_of
from gpushare.placement.trial import World
from gpushare.planning import eligibility
from gpushare.planning.capacity import by_resources, may_fit
from gpushare.planning.shapes import Shape

NODES_A_STEP: Final = 16

_NOWHERE: Final[frozenset[str]] = frozenset()
_NOBODY: Final[tuple[Movable, ...]] = ()


class Eligible:
    """Remembers which nodes may take pods of a shape at all: no move changes that."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[tuple[Shape, str], bool] = {}

    def __call__(self, shape: Shape, name: str, account: NodeAccount) -> bool:
        found = self._known.get((shape, name))
        if found is None:
            found = eligibility.why_not(self._world, name, shape, account) is None
            self._known[shape, name] = found
        return found


class _Parts(NamedTuple):
    """``movable`` and ``closed`` (UUIDs) are by node, ``free`` has what is left of allocatable."""

    ledger: Ledger
    free: MutableMapping[str, Amounts]
    movable: MutableMapping[str, tuple[Movable, ...]]
    closed: MutableMapping[str, frozenset[str]]


class State:
    """Closed cards take no pods that move; wanted pods may use them.

    ``changed`` are the nodes that differ from those of the first state, of which this is a copy. In
    the first state it is None, and ``changes`` records them.
    """

    def __init__(
        self, world: World, eligible: Eligible, parts: _Parts, changed: set[str] | None = None
    ) -> None:
        self.world, self.eligible = world, eligible
        self.changed, self.changes = changed, Changes()
        self.ledger, self._free, self._movable, self._closed = parts

    def copy(self) -> "State":
        """Return a state that starts as this one; it is invalid once this one has changed."""
        overlays = Overlay(self._free), Overlay(self._movable), Overlay(self._closed)
        parts = _Parts(self.ledger.overlay(), *overlays)
        return State(self.world, self.eligible, parts, set(self.changed or ()))

    def movable_on(self, node: str) -> Sequence[Movable]:
        """Return the pods on a node that may move and have not moved yet."""
        return self._movable.get(node, _NOBODY)

    def free(self, node: str) -> Mapping[str, int] | None:
        """Return what is left of a node's allocatable; None if that is unknown."""
        return self._free.get(node)

    def account(self, node: str) -> NodeAccount | None:
        return self.ledger.account(node)

    def open_account(self, node: str, besides: Collection[str] = ()) -> NodeAccount | None:
        """Return the account without closed cards, and without the cards ``besides``."""
        account, closed = self.ledger.account(node), self._closed.get(node, _NOWHERE)
        if account is None or not (closed or besides):
            return account
        cards = [
            each
            for each in account.cards
            if each.card.uuid not in closed and each.card.uuid not in besides
        ]
        return summed(account.inventory, cards)

    def may_take(self, shape: Shape, node: str, account: NodeAccount | None) -> bool:
        """Return whether a node has room for a pod, as far as that depends on more than policy."""
        if (
            account is None
            or not may_fit(shape, account)
            or not self.eligible(shape, node, account)
        ):
            return False
        free = self._free.get(node)
        return free is not None and by_resources(free, shape.amounts) > 0

    def place_of(self, movable: Movable, node: str) -> Place | None:
        """Return which cards of a node the pod would get that replaces one that is gone."""
        besides = movable.share.cards if movable.node == node else ()
        return self._place(movable.shape, node, self.open_account(node, besides))

    def place_of_wanted(self, shape: Shape, node: str) -> Place | None:
        """Return which cards of a node a Pending pod would get, closed or not."""
        return self._place(shape, node, self.ledger.account(node))

    def _place(self, shape: Shape, node: str, account: NodeAccount | None) -> Place | None:
        request = shape.request
        if request is None or account is None or not self.may_take(shape, node, account):
            return None
        chosen = card_choice.choose(account, request, self.world.policies.card)
        return Place(node, tuple([card.uuid for card in chosen])) if chosen is not None else None

    def remove(self, movable: Movable) -> None:
        """Take a pod away that has not moved yet."""
        node, uid = movable.node, movable.uid
        self.ledger.remove_share(uid)
        self._movable[node] = tuple([each for each in self.movable_on(node) if each.uid != uid])
        self._use(node, movable.requests, -1)

    def put(self, pod: Pod, shape: Shape, place: Place) -> None:
        """Let a pod use a place; it does not move any more."""
        meta = pod.metadata
        share = Share(
            meta.uid, meta.namespace, meta.name, place.node, shape.need.units, place.cards
        )
        self.ledger.put_share(share)
        self._use(place.node, shape.amounts, 1)

    def close(self, cards: Iterable[CardKey]) -> None:
        for node, uuid in cards:
            self._closed[node] = self._closed.get(node, _NOWHERE) | {uuid}
            self._note(node)

    def _use(self, node: str, requests: Requests, sign: int) -> None:
        free = self._free.get(node)
        if free is not None:
            free = dict(free)
            for name, amount in requests:
                if name in free:
                    free[name] -= sign * amount
            self._free[node] = free
        self._note(node)

    def _note(self, node: str) -> None:
        if self.changed is None:
            self.changes.add(node)
        else:
            self.changed.add(node)


def first_state(world: World, movables: Iterable[Movable] = ()) -> Generator[None, None, State]:
    """Return the cluster as it is now, in short steps."""
    free: dict[str, Amounts] = {}
    for number, name in enumerate(sorted(world.node_names())):
        if number % NODES_A_STEP == 0:
            yield
        left = world.free_resources(name)
        if left is not None:
            free[name] = dict(left)
    by_node: dict[str, list[Movable]] = {}
    for each in movables:
        by_node.setdefault(each.node, []).append(each)
    movable = {name: tuple(sorted(some, key=_by_uid)) for name, some in by_node.items()}
    return State(world, Eligible(world), _Parts(world.ledger.overlay(), free, movable, {}))


def has_room(
    account: NodeAccount, free: Mapping[str, int], shape: Shape, gone: Collection[Movable]
) -> bool:
    """Return whether an eligible node has room for a pod once these pods are gone."""
    freed: dict[str, int] = {}
    amounts: dict[str, int] = {}
    for each in gone:
        for uuid in each.share.cards:
            freed[uuid] = freed.get(uuid, 0) + each.share.units
        for name, amount in each.requests:
            amounts[name] = amounts.get(name, 0) + amount
    for name, amount in shape.amounts:
        if free_of(free, name) + amounts.get(name, 0) < amount:
            return False
    return _cards_with_room(account, freed, shape) >= shape.need.card_count


def _cards_with_room(account: NodeAccount, freed: Mapping[str, int], shape: Shape) -> int:
    units, request = shape.need.units, shape.request
    number = 0
    for each in account.open:
        card = each.card
        if card.units - each.committed + freed.get(card.uuid, 0) >= units:
            number += _is_allowed(card, request)
    return number


def _is_allowed(card: Card, request: Request | None) -> bool:
    return request is not None and (
        not request.policy.names_cards or card_choice.is_wanted(card, request.policy)
    )


def _by_uid(movable: Movable) -> str:
    return movable.uid
