"""Learn from time to time what is scarce: from the pods that came, and from the nodes (pure)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from gpushare.contract import RESOURCE_MEMORY
from gpushare.demand.mix import Mix
from gpushare.demand.other_pods import NodeUse, OtherPods
from gpushare.demand.prices import prices_of
from gpushare.demand.scarcity import NOT_KNOWN, Capacity, Left, of_shape, scarcity_of
from gpushare.ledger.resource_use import ResourceUse
from gpushare.objects.pod_requests import MILLI
from gpushare.placement.card_choice import FreeCards

_GROWTH: Final = 1.5  # of the number of pods until the mix is looked at again
_MOST: Final = 2000  # pods that come until then
_LOOKED_AT_ONCE: Final = 8
_LARGE: Final = 2**63


class OpenNode(NamedTuple):
    """A node that takes new pods.

    ``every`` has all its CPU and memory free. ``used`` is the GPU memory that its pods request, in
    thousandths, and ``others`` the CPU and memory of pods that kube-scheduler alone has placed.
    None: these are not known.
    """

    name: str
    cards: FreeCards
    every: Left | None
    used: int | None
    others: tuple[int, int]

    @classmethod
    def of(cls, name: str, cards: FreeCards, every: Left | None, use: ResourceUse) -> "OpenNode":
        """Return a node with what its pods use."""
        sums = use.used(name)
        used = sums.get(RESOURCE_MEMORY, 0) if sums is not None else None
        return cls(name, cards, every, used, use.of_others(name))

    @property
    def node_use(self) -> NodeUse | None:
        """The node's use for ``OtherPods``; None if it is not known."""
        left, (cpu, memory) = self.cards.left, self.others
        if left is None or self.used is None:
            return None
        as_cpu = min(left.all_cpu, max(cpu, memory * left.all_cpu / left.all_memory))
        free = left.part(left.cpu, left.memory) if left.takes_any else None
        units = sum(self.cards.account.largest) * MILLI
        return NodeUse(units, self.used, left.all_cpu, free, as_cpu)


class ScarcityLearner:
    """``now`` is what was learned last; it is the same object until something else is learned."""

    def __init__(self) -> None:
        self.now = NOT_KNOWN
        self._came = -1  # pods, when the mix was looked at
        self._others = OtherPods()

    def renewing(self, mix: Mix, nodes: Iterable[OpenNode]) -> Iterator[None]:
        """Look at the nodes that take new pods, in short steps; ``now`` is set at the end."""
        units, sizes, shapes = Counter[str](), Counter[int](), set[tuple[int, int]]()
        hosts = list[tuple[int, int]]()
        card, most_units, most_cpu, most_memory = _LARGE, 1, 1, 1
        self._others.begin()
        for place, node in enumerate(nodes):
            if place % _LOOKED_AT_ONCE == 0:
                yield
            cards = node.cards
            self._others.add(node.name, node.node_use)
            for each in cards.places:
                units[each.card.model] += each.card.units
                sizes[each.card.units] += each.card.units
                card = min(card, each.card.units)
            most_units = max(most_units, cards.units)
            if (every := node.every) is None:
                continue
            most_cpu, most_memory = max(most_cpu, every.cpu), max(most_memory, every.memory)
            if len(cards.free) > 1:
                shapes.add((len(cards.free), of_shape(every.cpu)))
            if (left := cards.left) is not None:
                hosts.append((cards.empty, left.cpu))
        capacity = Capacity(dict(units), frozenset(shapes), card, most_units, most_cpu, most_memory)
        found = self.now
        if capacity != found.capacity or self._is_outdated(mix):
            self._came = mix.came
            kinds = capacity.hosted(mix)
            learned = replace(scarcity_of(kinds, capacity), hosts=found.hosts, level=found.level)
            yield
            most_first = (size for size, _ in sizes.most_common())
            learned = replace(learned, prices=(yield from prices_of(kinds, most_first)))
            found = learned if learned != found else found
        level = self._others.level() if found.cpu else 1.0
        if level != found.level:
            found = replace(found, level=level)
        # Nodes that fill up with other pods are kept only for pods that come before these do.
        self.now = yield from found.with_hosts(hosts, self._others.room if level < 1 else 1.0)

    def _is_outdated(self, mix: Mix) -> bool:
        before = self._came
        return before < 0 or mix.came > min(before * _GROWTH, before + _MOST)
