"""Try whether copies of a pod would fit now (pure).

The trial uses an overlay of the ledger, so it reserves nothing. It does not cover everything by
which kube-scheduler decides; ``answers.what_if`` lists the rest.
"""

import heapq
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpushare.cards.model import Card, Request
from gpushare.demand.scarcity import Scarcity
from gpushare.ledger.accounts import NodeAccount, Reserve
from gpushare.ledger.changes import Changes
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import Amounts, Requests, requests_of
from gpushare.placement import card_choice as cards
from gpushare.placement import node_constraints
from gpushare.placement.node_resources import every_of, insufficient, left_of, take
from gpushare.placement.rank import Policies, Rank, rank
from gpushare.placement.reasons import NO_ROOM, Reason


class World(Protocol):
    """The known state of the cluster, which a trial reads and never changes."""

    unit_mib: int
    ledger: Ledger

    @property
    def scarcity(self) -> Scarcity:
        """Return what is scarce for pods like those of this cluster."""

    @property
    def policies(self) -> Policies:
        """Return the policies of pods that set none."""

    def request_of(self, pod: Pod) -> Request:
        """Return a pod's request; raise RequestError if no node could ever satisfy it."""

    def node(self, name: str) -> Node | None:
        """Return a node as last seen."""

    def node_names(self) -> set[str]:
        """Return the nodes that share GPUs or try to."""

    def why_closed(self, node: str) -> Reason | None:
        """Return why a node takes no new pods, regardless of its free units."""

    def pods_of(self, node: str) -> Iterable[Pod]:
        """Return the live pods bound to a node that request GPU memory."""

    def all_node_names(self) -> Iterable[str]:
        """Return all nodes, with and without GPUs."""

    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int] | None:
        """Return a node's allocatable less what its pods request and holds and claims keep.

        All pods count, with and without GPU memory, and those that are being bound. Amounts are in
        thousandths, and negative where too much is used. What is kept for the pod ``besides`` does
        not count, nor claims below ``priority``; None counts all claims. Return None if the node is
        not known, or an amount of it or of one of its pods cannot be read.
        """

    def leaving(self, node: str) -> Mapping[str, Requests]:
        """Return what pods use of a node that are evicted from it for others, by uid."""

    @property
    def resource_changes(self) -> Changes:
        """Return the nodes that came, changed or went, or on which pods use other resources.

        A node changes with its labels, taints, cordon, conditions or allocatable. What is kept or
        being bound is in the changes of the ledger.
        """


@dataclass(frozen=True, slots=True)
class Place:
    node: str
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The result of a trial: ``places`` of the copies that fit, in the order of scheduling.

    ``reasons``: the number of nodes by the reason for which the next copy does not fit.
    """

    places: tuple[Place, ...]
    reasons: dict[str, int]


def look(world: World, pod: Pod, count: int) -> Generator[None, None, Outlook]:
    """Return where ``count`` copies of a pod would fit now, in short steps.

    The cluster may change between steps, and the result may be based on the earlier state. Raises
    RequestError if the pod's request cannot be read or could never be satisfied.
    """
    trial = _Trial(world, pod)
    yield from trial.sort_nodes()
    while len(trial.places) < count and trial.ranked:
        trial.place_next()
        yield
    return Outlook(tuple(trial.places), dict(trial.reasons))


class _Trial:
    def __init__(self, world: World, pod: Pod) -> None:
        self.request = world.request_of(pod)
        self.asked: Amounts = requests_of(pod)
        self.places: list[Place] = []
        self.reasons: Counter[str] = Counter()
        self.ranked: list[Rank] = []
        self._world, self._pod = world, pod
        self._ledger = world.ledger.overlay()
        self._free: dict[str, Amounts] = {}

    def sort_nodes(self) -> Iterator[None]:
        """Rank the nodes on which the pod fits; count the reasons of the others."""
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
        """Place one more copy on the best node, or count why it does not fit there after all."""
        *_, name = heapq.heappop(self.ranked)
        account, free = self._account(name), self._free_of(name)
        policy = self._world.policies.card
        chosen = cards.choose(account, self.request, policy) if account is not None else None
        if account is None or chosen is None or free is None:
            return  # the node changed since it was ranked
        short = insufficient(free, self.asked)
        if short:
            text = f"node has too little allocatable left of {', '.join(short)}"
            self.reasons[text] += 1
            return
        take(free, self.asked.items())
        number = len(self.places)
        uuids = tuple(card.uuid for card in chosen)
        self._ledger.reserve(
            Reserve(f"what-if-{number}", "", "", name, uuids, self.request.units_per_card, 0)
        )
        self.places.append(Place(name, chosen))
        now = self._account(name)
        if now is not None:
            self._rank(name, now)

    def _rank(self, name: str, account: NodeAccount) -> None:
        """Add a node to the ranked ones if the pod fits, as prioritize would."""
        reason = cards.why_not(account, self.request, self._world.unit_mib)
        free = self._free_of(name)
        world = self._world
        of_node = cards.FreeCards(account, left=left_of(free, every_of(world.node(name))))
        found = rank(of_node, self.request, world.policies, name, scarcity=world.scarcity)
        if reason is not None or found is None:
            self.reasons[(reason or NO_ROOM).text] += 1
            return
        heapq.heappush(self.ranked, found)

    def _account(self, name: str) -> NodeAccount | None:
        return self._ledger.account(name, priority=self._pod.priority)

    def _free_of(self, name: str) -> Amounts | None:
        if name not in self._free:
            pod = self._pod
            free = self._world.free_resources(name, besides=pod.uid, priority=pod.priority)
            if free is None:
                return None
            self._free[name] = dict(free)
        return self._free[name]
