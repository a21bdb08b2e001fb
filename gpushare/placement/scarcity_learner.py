"""Learn from time to time what is scarce: from the pods that came, and from the nodes (pure)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpushare.demand.mix import Mix
from gpushare.demand.prices import prices_of
from gpushare.demand.scarcity import NOT_KNOWN, Capacity, Left, of_shape, scarcity_of
from gpushare.placement.card_choice import FreeCards

_GROWTH: Final = 1.5  # of the number of pods until the mix is looked at again
_MOST: Final = 2000  # pods that come until then
_LOOKED_AT_ONCE: Final = 8
_LARGE: Final = 2**63


class ScarcityLearner:
    """``now`` is what was learned last; it is the same object until something else is learned."""

    def __init__(self) -> None:
        self.now = NOT_KNOWN
        self._came = -1  # pods, when the mix was looked at

    def renewing(self, mix: Mix, nodes: Iterable[tuple[FreeCards, Left | None]]) -> Iterator[None]:
        """Look at the nodes that take new pods, in short steps; ``now`` is set at the end.

        ``nodes`` are their cards, and their CPU and memory for pods; None if that is not known.
        """
        units, sizes, shapes = Counter[str](), Counter[int](), set[tuple[int, int]]()
        hosts = list[tuple[int, int]]()
        card, most_units, most_cpu, most_memory = _LARGE, 1, 1, 1
        for place, (cards, every) in enumerate(nodes):
            if place % _LOOKED_AT_ONCE == 0:
                yield
            for each in cards.places:
                units[each.card.model] += each.card.units
                sizes[each.card.units] += each.card.units
                card = min(card, each.card.units)
            most_units = max(most_units, cards.units)
            if every is None:
                continue
            most_cpu, most_memory = max(most_cpu, every[0]), max(most_memory, every[1])
            if len(cards.free) > 1:
                shapes.add((len(cards.free), of_shape(every[0])))
            if cards.left is not None:
                hosts.append((cards.empty, cards.left[0]))
        capacity = Capacity(dict(units), frozenset(shapes), card, most_units, most_cpu, most_memory)
        found = self.now
        if capacity != found.capacity or self._is_outdated(mix):
            self._came = mix.came
            kinds = capacity.hosted(mix)
            learned = replace(scarcity_of(kinds, capacity), hosts=found.hosts)
            yield
            most_first = (size for size, _ in sizes.most_common())
            learned = replace(learned, prices=(yield from prices_of(kinds, most_first)))
            found = learned if learned != found else found
        self.now = yield from found.with_hosts(hosts)

    def _is_outdated(self, mix: Mix) -> bool:
        before = self._came
        return before < 0 or mix.came > min(before * _GROWTH, before + _MOST)
