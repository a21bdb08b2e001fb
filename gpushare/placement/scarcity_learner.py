"""Learn from time to time what is scarce: from the pods that came, and from the nodes (pure)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpushare.demand.mix import Mix
from gpushare.demand.scarcity import NOT_KNOWN, Capacity, scarcity_of
from gpushare.placement.card_choice import FreeCards

_GROWTH: Final = 1.5  # of the number of pods until the mix is looked at again
_MOST: Final = 2000  # pods that come until then
_LOOKED_AT_ONCE: Final = 32


class ScarcityLearner:
    """``now`` is what was learned last; it is the same object until something else is learned."""

    def __init__(self) -> None:
        self.now = NOT_KNOWN
        self._came = -1  # pods, when the mix was looked at

    def renewing(self, mix: Mix, nodes: Iterable[tuple[FreeCards, int]]) -> Iterator[None]:
        """Look at the nodes that take new pods, in short steps; ``now`` is set at the end.

        ``nodes`` are their cards, and their CPU for pods in thousandths.
        """
        units, shapes = Counter[str](), set[tuple[int, int]]()
        hosts = list[tuple[int, int]]()
        most_units = most_cpu = 1
        for place, (cards, cpu) in enumerate(nodes):
            if place % _LOOKED_AT_ONCE == 0:
                yield
            for each in cards.places:
                units[each.card.model] += each.card.units
            most_units, most_cpu = max(most_units, cards.units), max(most_cpu, cpu)
            if len(cards.free) > 1:
                shapes.add((len(cards.free), cpu))
            if cards.left is not None:
                hosts.append((cards.empty, cards.left[0]))
        capacity = Capacity(dict(units), frozenset(shapes), most_units, most_cpu)
        found = self.now
        if capacity != found.capacity or self._is_outdated(mix):
            self._came = mix.came
            learned = replace(scarcity_of(mix, capacity), hosts=found.hosts)
            found = learned if learned != found else found
        self.now = found.with_hosts(hosts)

    def _is_outdated(self, mix: Mix) -> bool:
        before = self._came
        return before < 0 or mix.came > min(before * _GROWTH, before + _MOST)
