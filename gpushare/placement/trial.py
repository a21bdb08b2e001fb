"""Would a pod, or so many of it, fit now, and if not, who would have to go (pure).

Tried on an overlay of the ledger: nothing is reserved by asking. What kube-scheduler decides by
other things than nodes and amounts is not tried, and named.
"""

import heapq
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gpushare.cards.model import Card, Request
from gpushare.ledger.ledger import Ledger, NodeAccount, Reserve
from gpushare.objects.model import Node, Pod
from gpushare.placement import card_choice as cards
from gpushare.placement import node_constraints
from gpushare.placement.node_resources import Amounts, requests_of, room_of, short_of
from gpushare.placement.rank import Policies, Rank, rank
from gpushare.placement.reasons import NO_ROOM, Reason
from gpushare.placement.victims import Eviction, fewest


class World(Protocol):
    """The cluster as it is known: read, never changed."""

    unit_mib: int
    ledger: Ledger

    @property
    def policies(self) -> Policies:
        """Return the policies of pods that set none."""
        ...

    def request_of(self, pod: Pod) -> Request:
        """What a pod asks for; RequestError if it can be granted nowhere."""
        ...

    def node(self, name: str) -> Node | None:
        """A node as last seen."""
        ...

    def node_names(self) -> set[str]:
        """The nodes that share GPUs, or try to."""
        ...

    def why_closed(self, node: str) -> Reason | None:
        """Why a node takes nothing new, whatever its cards have free."""
        ...

    def pods_of(self, node: str) -> Iterable[Pod]:
        """The live pods bound to a node that ask for GPU memory."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """One pod's place."""

    node: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    """``places`` of as many as fit, in the order in which they would be given away.

    ``reasons``: why the next one would not fit, each with its number of nodes. ``eviction``: the
    fewest pods that would have to go for it, where some would help.
    """

    request: Request
    places: tuple[Place, ...]
    reasons: dict[str, int]
    eviction: Eviction | None


def look(world: World, pod: Pod, count: int) -> Generator[None, None, Outlook]:
    """Where ``count`` pods like this one would fit now, in steps that are short each.

    Between two steps the cluster may change: the answer is then as good as one of a moment before.
    Raises RequestError if what the pod asks for cannot be read or granted anywhere.
    """
    trial = _Trial(world, pod)
    yield from trial.sort_nodes()
    while len(trial.places) < count and trial.ranked:
        trial.place_next()
        yield
    eviction = None
    if len(trial.places) < count:
        eviction = yield from trial.who_must_go()
    return Outlook(trial.request, tuple(trial.places), dict(trial.reasons), eviction)


class _Trial:
    def __init__(self, world: World, pod: Pod) -> None:
        self.request = world.request_of(pod)
        self.asked: Amounts = requests_of(pod)
        self.places: list[Place] = []
        self.reasons: Counter[str] = Counter()
        self.ranked: list[Rank] = []
        self._world, self._pod = world, pod
        self._ledger = world.ledger.overlay()
        self._rooms: dict[str, Amounts] = {}

    def sort_nodes(self) -> Iterator[None]:
        """Rank the nodes on which the pod may be and fits, count the reasons of the others."""
        for name in sorted(self._world.node_names()):
            yield
            node, closed = self._world.node(name), self._world.why_closed(name)
            forbidden = node_constraints.why_not(self._pod, node) if node is not None else []
            account = self._account(name)
            if closed is not None or forbidden:
                self.reasons[closed.text if closed is not None else forbidden[0]] += 1
            elif account is not None:
                self._rank(name, account)

    def place_next(self) -> None:
        """Give the best node's cards to one more pod, or count why it has none for it after all."""
        *_, name = heapq.heappop(self.ranked)
        account, room = self._account(name), self._room(name)
        policy = self._world.policies.card
        chosen = cards.choose(account, self.request, policy) if account is not None else None
        if account is None or chosen is None or room is None:
            return  # the node has just changed
        short = short_of(room, self.asked)
        if short:
            self.reasons[_too_little(short)] += 1
            return
        for resource, amount in self.asked.items():
            room[resource] = room[resource] - amount if resource in room else -amount
        number = len(self.places)
        uuids = tuple(card.uuid for card in chosen)
        self._ledger.reserve(
            Reserve(f"what-if-{number}", "", "", name, uuids, self.request.units_per_card, 0)
        )
        self.places.append(Place(name, chosen))
        now = self._account(name)
        if now is not None:
            self._rank(name, now)

    def who_must_go(self) -> Generator[None, None, Eviction | None]:
        """The fewest pods whose end would make room for one more, over all nodes."""
        best: Eviction | None = None
        if self._pod.spec.preemption_policy == "Never":
            return None
        for name in sorted(self._world.ledger.nodes()):
            yield
            node = self._world.node(name)
            if node is None or self._world.why_closed(name) is not None:
                continue
            if node_constraints.why_not(self._pod, node):
                continue
            found = fewest(
                self._ledger,
                name,
                self.request,
                self._world.pods_of(name),
                unit_mib=self._world.unit_mib,
                priority=self._pod.priority,
            )
            if found is None or not found.victims or not self._has_room_after(found):
                continue
            if best is None or found.cost < best.cost:
                best = found
        return best

    def _has_room_after(self, eviction: Eviction) -> bool:
        room = self._room(eviction.node)
        if room is None:
            return False
        room = dict(room)
        for victim in eviction.victims:
            for resource, amount in requests_of(victim.pod).items():
                if resource in room:
                    room[resource] += amount
        return not short_of(room, self.asked)

    def _rank(self, name: str, account: NodeAccount) -> None:
        """Put a node among the ranked if it fits, as prioritize would."""
        reason = cards.why_not(account, self.request, self._world.unit_mib)
        found = rank(cards.Room(account), self.request, self._world.policies, name)
        if reason is not None or found is None:
            self.reasons[(reason or NO_ROOM).text] += 1
            return
        heapq.heappush(self.ranked, found)

    def _account(self, name: str) -> NodeAccount | None:
        return self._ledger.account(name, priority=self._pod.priority)

    def _room(self, name: str) -> Amounts | None:
        node = self._world.node(name)
        if node is None:
            return None
        if name not in self._rooms:
            kept = self._ledger.room_kept(name, priority=self._pod.priority)
            self._rooms[name] = room_of(node, self._world.pods_of(name), kept)
        return self._rooms[name]


def _too_little(resources: list[str]) -> str:
    return f"node has too little allocatable left of {', '.join(resources)}"
