"""Find the pods for which autoscalers add no node because they only add up GPU memory (pure).

Autoscalers simulate kube-scheduler's own filters. If the free units of a node are enough in all,
they believe that a pod fits there, also if no GPU has room for it. A *placeholder* is a pod that
requests all units of an empty node: it fits nowhere, so they see that a node is missing.
"""

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.decisions.cluster_state import ClusterState
from gpushare.cards.model import Inventory, Request
from gpushare.contract import LABEL_PLACEHOLDER, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.ledger.accounts import CardAccount, summed
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import PODS, Amounts
from gpushare.objects.scheduling import LABEL_HOSTNAME
from gpushare.placement import card_choice, node_constraints
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.node_resources import free_resources, insufficient, take
from gpushare.placement.reasons import Reason
from gpushare.planning import eligibility
from gpushare.planning.shapes import Reader, Shape

MOST: Final = 10

PLACEHOLDER: Final = Reason("the pod is a placeholder, which only autoscalers are to see")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A node like ``like`` is missing for ``pod``; ``asked`` is what the placeholder requests."""

    pod: Pod
    like: Node
    asked: Amounts


Lacking = tuple[Pod, Shape]
InTurns = Callable[[list[Lacking]], list[Lacking]]


@dataclass(slots=True)
class _Room:
    """What is left of a node."""

    cards: FreeCards
    free: Amounts

    def take(self, shape: Shape, request: Request, state: ClusterState) -> bool:
        """Take what a pod needs of GPUs and of all else; return False if that does not fit."""
        chosen = card_choice.select(self.cards, request, state.policies.card)
        if chosen is None or not self.take_sum(shape):
            return False
        for place in list(chosen):
            self.cards.use(place, request.units_per_card)
        return True

    def take_sum(self, shape: Shape) -> bool:
        """Take what a pod needs if GPUs are added up; return False if that does not fit."""
        if insufficient(self.free, dict(shape.amounts)):
            return False
        take(self.free, shape.amounts)
        return True


def is_placeholder(pod: Pod) -> bool:
    """Return whether a pod only says that a node is missing. One on a node counts as any other."""
    return LABEL_PLACEHOLDER in pod.labels and not pod.node


def placeholders(
    state: ClusterState, waiting: Collection[Pod], in_turns: InTurns
) -> Generator[None, None, tuple[Placeholder, ...]]:
    """Return the placeholders that should exist for waiting pods, in short steps.

    Pods that would fit on one new node together have one. There are at most MOST. ``waiting`` is in
    the order in which pods get room that is free, ``in_turns`` returns the order in which those
    that lack room get placeholders.
    """
    trial = _Trial(state)
    lacking = yield from trial.lacking(waiting)
    for pod, shape in (yield from trial.hidden(in_turns(lacking))):
        yield from trial.give_new_node(pod, shape)
        if len(trial.found) == MOST:
            break
    return tuple(trial.found)


class _Trial:
    """Places pods in thought: first on GPUs, then as autoscalers do, then on new nodes."""

    def __init__(self, state: ClusterState) -> None:
        self._state, self._reader = state, Reader(state)
        self._names = sorted(state.node_names())
        self._rooms: dict[str, _Room | None] = {}
        # By shape, and whether on GPUs: before this place in the names there is no room any more.
        self._begin: dict[tuple[Hashable, bool], int] = {}
        self._new: list[tuple[Node, _Room]] = []
        self._likes: dict[Hashable, tuple[Node, Inventory] | None] = {}
        self.found: list[Placeholder] = []

    def lacking(self, waiting: Collection[Pod]) -> Generator[None, None, list[Lacking]]:
        """Return the pods that fit on no GPU, and would on a new node.

        The others take nothing of any sum in ``hidden``: an autoscaler may give it to a pod for
        which it could add a node, and then adds none.
        """
        found: list[Lacking] = []
        full: set[Hashable] = set()
        for pod in waiting:
            try:
                shape = self._reader.shape_of(pod)
            except RequestError:
                continue
            if shape.key in full or not (yield from self._fits(shape)):
                full.add(shape.key)
                if (yield from self._like(shape)) is not None:
                    found.append((pod, shape))
        return found

    def hidden(self, lacking: Collection[Lacking]) -> Generator[None, None, list[Lacking]]:
        """Return the pods of which autoscalers believe that they fit."""
        found: list[Lacking] = []
        seen: set[Hashable] = set()  # autoscalers see these wait
        for pod, shape in lacking:
            if shape.key not in seen and (yield from self._seems_to_fit(shape)):
                found.append((pod, shape))
            else:
                seen.add(shape.key)
        return found

    def give_new_node(self, pod: Pod, shape: Shape) -> Generator[None, None, None]:
        """Place a pod on a new node, if there can be one on which it fits."""
        request, state = shape.request, self._state
        like = yield from self._like(shape)
        if request is None or like is None:
            return
        for node, room in self._new:
            if not node_constraints.why_not(pod, node) and room.take(shape, request, state):
                return
        node, inventory = like
        room = _empty(node, inventory, state.offered)
        units = room.free[RESOURCE_MEMORY]
        room.take(shape, request, state)
        self._new.append((node, room))
        asked = {name: amount for name, amount in shape.amounts if name != PODS}
        self.found.append(Placeholder(pod, node, asked | {RESOURCE_MEMORY: units}))

    def _fits(self, shape: Shape) -> Generator[None, None, bool]:
        ledger, request = self._state.ledger, shape.request
        for name in self._names_left(shape, on_cards=True):
            yield
            room = self._room(name)
            if room is None or request is None:
                continue
            if eligibility.why_not(self._state, name, shape, ledger.account(name)) is not None:
                continue
            if room.take(shape, request, self._state):
                return True
        return False

    def _seems_to_fit(self, shape: Shape) -> Generator[None, None, bool]:
        for name in self._names_left(shape, on_cards=False):
            yield
            node, room = self._state.node(name), self._room(name)
            if node is None or room is None or node_constraints.why_not(shape.pod, node):
                continue
            if room.take_sum(shape):
                return True
        return False

    def _names_left(self, shape: Shape, *, on_cards: bool) -> Iterator[str]:
        """Return the nodes from the last one on that was returned for this shape."""
        key = shape.key, on_cards
        for place in range(self._begin.get(key, 0), len(self._names)):
            self._begin[key] = place
            yield self._names[place]

    def _room(self, name: str) -> _Room | None:
        if name not in self._rooms:
            account, free = self._state.ledger.account(name), self._state.free_resources(name)
            self._rooms[name] = None
            if account is not None and free is not None:
                self._rooms[name] = _Room(FreeCards(account), dict(free))
        return self._rooms[name]

    def _like(self, shape: Shape) -> Generator[None, None, tuple[Node, Inventory] | None]:
        if shape.key not in self._likes:
            found = None
            if shape.request is not None:
                found = yield from self._smallest(shape, shape.request)
            self._likes[shape.key] = found
        return self._likes[shape.key]

    def _smallest(
        self, shape: Shape, request: Request
    ) -> Generator[None, None, tuple[Node, Inventory] | None]:
        """Return the node with the fewest units that would take the pod if it were empty."""
        state = self._state
        found: list[tuple[int, str, Node, Inventory]] = []
        for name in self._names:
            yield
            node, account = state.node(name), state.ledger.account(name)
            if node is None or account is None:
                continue
            if eligibility.why_not(state, name, shape, account) is not None:
                continue
            if node_constraints.why_not(shape.pod, _renamed(node)):
                continue  # it needs this very node
            try:
                room = _empty(node, account.inventory, state.offered)
            except RequestError:
                continue
            units = room.free.get(RESOURCE_MEMORY, 0)
            if units and room.take(shape, request, state):
                found.append((units, name, node, account.inventory))
        if not found:
            return None
        *_, node, inventory = min(found, key=lambda each: each[:2])
        return node, inventory


def _empty(node: Node, inventory: Inventory, offered: Iterable[str]) -> _Room:
    account = summed(inventory, [CardAccount(card, 0, 0, 0) for card in inventory.cards])
    return _Room(FreeCards(account), free_resources(node, offered=offered))


def _renamed(node: Node) -> Node:
    """Return a node of the same kind."""
    labels = {key: value for key, value in node.labels.items() if key != LABEL_HOSTNAME}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, name="", labels=labels)
    )
