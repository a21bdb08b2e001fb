"""Whether pods fit together, by trying all ways to place them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import inf

from gpushare.contract import LABEL_CARD_COUNT, RESOURCE_MEMORY
from tests.simulation.store import Object


@dataclass(frozen=True, slots=True, order=True)
class Amount:
    """What a pod asks for: ``units`` of each of ``cards``."""

    cards: int
    units: int

    @property
    def total(self) -> int:
        return self.cards * self.units


def asked(pod: Object) -> Amount:
    """Return what the pod's limits and label ask for."""
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    cards = int(pod["metadata"]["labels"].get(LABEL_CARD_COUNT, "1"))
    return Amount(cards, int(limits.get(RESOURCE_MEMORY, "0")) // cards)


@dataclass(frozen=True, slots=True, order=True)
class Room:
    """The free units of a node: in all, and on each card that takes pods."""

    total: int
    cards: tuple[int, ...]

    def without(self, amount: Amount) -> Iterator["Room"]:
        """Yield what is left in each different way to place a pod here."""
        if amount.total > self.total:
            return
        fit = [at for at, free in enumerate(self.cards) if free >= amount.units]
        for chosen in combinations(fit, amount.cards):
            left = (free - amount.units * (at in chosen) for at, free in enumerate(self.cards))
            yield Room(self.total - amount.total, tuple(sorted(left)))


def some_fit(
    amounts: Sequence[Amount], number: int, rooms: Sequence[Room], limit: float = inf
) -> bool:
    """Return whether any ``number`` of the pods fit together, and have ``limit`` units at most."""
    nodes = tuple(sorted(rooms))
    chosen = set(combinations(sorted(amounts, reverse=True), number))
    within = [each for each in chosen if sum(amount.total for amount in each) <= limit]
    return any(_fit(each, nodes) for each in within)


@lru_cache(2**16)
def _fit(amounts: tuple[Amount, ...], rooms: tuple[Room, ...]) -> bool:
    if not amounts:
        return True
    for at, room in enumerate(rooms):
        for left in set(room.without(amounts[0])):
            after = tuple(sorted((*rooms[:at], left, *rooms[at + 1 :])))
            if _fit(amounts[1:], after):
                return True
    return False
