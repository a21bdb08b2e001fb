"""Find whole cards and rooms for Pending pods, and which pods have to leave them (pure)."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any, Final

from gpushare.defragment.model import CardKey, Movable
from gpushare.defragment.state import State, has_room
from gpushare.ledger.accounts import CardAccount, NodeAccount
from gpushare.objects.model import Node
from gpushare.objects.scheduling import REPELLING
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.rank import rank
from gpushare.placement.trial import World
from gpushare.planning.shapes import Shape

NODES_A_STEP: Final = 16
MOST_TOGETHER: Final = 3  # pods of which all sets are tried, before whole cards are
MOST_TRIED: Final = 200  # sets of one size on a node
MOST_SETS: Final = 16  # of one node
_BY_KUBERNETES: Final = "node.kubernetes.io/"  # taints that Kubernetes itself sets


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Once the pods ``gone`` have left ``node``, ``card`` is free, or a wanted pod has room.

    ``rank`` is that of the node for this pod if it has room now.
    """

    node: str
    gone: tuple[Movable, ...]
    card: str = ""
    rank: tuple[Any, ...] = ()

    @property
    def order(self) -> tuple[Any, ...]:
        """Return what sorts those first that need the fewest moves, and of the smallest pods.

        Those that need none are in the order of the extender.
        """
        units = sum(each.units for each in self.gone)
        return len(self.gone), units, self.rank, self.node, self.card


def free_cards(state: State, names: Iterable[str]) -> Generator[None, None, list[CardKey]]:
    """Return the cards that take new pods and are used by none."""
    found: list[CardKey] = []
    for number, name in enumerate(names):
        if number % NODES_A_STEP == 0:
            yield
        usable = _usable(state, name)
        found += [CardKey(name, each.card.uuid) for each in usable if not each.committed]
    return found


def whole_cards(state: State, names: Iterable[str]) -> Generator[None, None, list[Target]]:
    """Return the cards that would be free if pods left that may move."""
    found: list[Target] = []
    for number, name in enumerate(names):
        if number % NODES_A_STEP == 0:
            yield
        for each in _usable(state, name):
            target = whole_card(state, name, each)
            if target is not None:
                found.append(target)
    return sorted(found, key=lambda each: each.order)


def whole_card(state: State, name: str, account: CardAccount) -> Target | None:
    """Return who must leave a card; None if nobody uses it, or somebody who may not move."""
    uuid = account.card.uuid
    here = [each for each in state.movable_on(name) if uuid in each.share.cards]
    used = sum(each.share.units for each in here)
    if not here or used != account.committed:
        return None
    return Target(name, tuple(here), uuid)


def is_current(state: State, target: Target) -> bool:
    """Return whether exactly the same pods have to leave a card as when this was found."""
    account = state.account(target.node)
    cards = account.open if account is not None else ()
    mine = next((each for each in cards if each.card.uuid == target.card), None)
    now = whole_card(state, target.node, mine) if mine is not None else None
    return now is not None and now.gone == target.gone


def rooms_of(
    state: State, shape: Shape, names: Iterable[str]
) -> Generator[None, None, dict[str, list[Target]]]:
    """Return, by node, who might leave so that a pod has room; nobody where it has room now."""
    found: dict[str, list[Target]] = {}
    for name in names:
        yield
        account, free = state.account(name), state.free(name)
        if account is None or free is None or not state.eligible(shape, name, account):
            found[name] = []
        elif has_room(account, free, shape, ()):
            ranked = shape.request and rank(
                FreeCards(account), shape.request, state.world.policies, name
            )
            found[name] = [Target(name, (), rank=ranked)] if ranked else []
        else:
            sets = _sets(account, free, shape, state.movable_on(name))
            found[name] = [Target(name, each) for each in sets]
    return found


def _usable(state: State, name: str) -> Sequence[CardAccount]:
    """Return the cards of a node that can be used at all."""
    account, node = state.account(name), state.world.node(name)
    if account is None or node is None or not _takes_pods(state.world, node):
        return ()
    return account.open


def _takes_pods(world: World, node: Node) -> bool:
    if world.why_closed(node.name) is not None or node.spec.unschedulable:
        return False
    return not any(
        each.effect in REPELLING and each.key.startswith(_BY_KUBERNETES) for each in node.taints
    )


def _sets(
    account: NodeAccount, free: Mapping[str, int], shape: Shape, movables: Sequence[Movable]
) -> list[tuple[Movable, ...]]:
    """Return sets of pods that make room once they are gone.

    They are the smallest ones, unless more than MOST_TOGETHER pods have to go.
    """
    if not has_room(account, free, shape, movables):
        return []
    large_first = sorted(movables, key=lambda each: (-each.share.units, each.uid))
    found: list[tuple[Movable, ...]] = []
    for size in range(1, MOST_TOGETHER + 1):
        smallest = len(found[0]) if found else size
        if size > smallest + 1:
            break
        for some in islice(combinations(large_first, size), MOST_TRIED):
            # Superfluous for a pod with one card; others may leave another choice of cards.
            more = shape.need.card_count == 1 and any(set(each) <= set(some) for each in found)
            if not more and has_room(account, free, shape, some):
                found.append(some)
    return found[:MOST_SETS] if found else [_all_needed(account, free, shape, large_first)]


def _all_needed(
    account: NodeAccount, free: Mapping[str, int], shape: Shape, large_first: Sequence[Movable]
) -> tuple[Movable, ...]:
    """Return a set of pods that makes room, of which none is superfluous."""
    count, units = shape.need.card_count, shape.need.units
    fewest = sorted(account.open, key=lambda each: _needed(each, units, large_first))[:count]
    uuids = {each.card.uuid for each in fewest}
    left = [each for each in large_first if uuids.intersection(each.share.cards)]
    if not has_room(account, free, shape, left):
        left = list(large_first)
    for each in reversed(left.copy()):
        left.remove(each)
        if not has_room(account, free, shape, left):
            left.append(each)
    return tuple(left)


def _needed(account: CardAccount, units: int, large_first: Sequence[Movable]) -> int:
    """Return how many pods must leave a card at least so that it has so many units free."""
    free, number = account.card.units - account.committed, 0
    for each in large_first:
        if free >= units:
            return number
        if account.card.uuid in each.share.cards:
            free += each.share.units
            number += 1
    return number if free >= units else len(large_first) + 1
