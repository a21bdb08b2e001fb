"""What each namespace uses, as sums over nodes that are updated node by node (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from gpushare.cards.model import Share

OF_NAMESPACES: Final = {
    "gpushare_namespace_used_bytes": (
        "Bytes of GPU memory that the bound pods of a namespace requested, without pods that "
        "hang on a node that does not answer. (others): all namespaces after the 500 that use "
        "most."
    ),
    "gpushare_namespace_pods": (
        "Bound pods of a namespace that use GPU memory, counted as in "
        "gpushare_namespace_used_bytes."
    ),
    "gpushare_namespace_pending_pods": (
        "Pods of a namespace without node, with or without scheduling gate."
    ),
}
MOST: Final = 500
OTHERS: Final = "(others)"  # no namespace has such a name

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class NamespaceSums:
    """Bytes and number of pods, by namespace."""

    used: Counter[str] = field(default_factory=Counter)
    pods: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, shares: Iterable[Share], unit_mib: int) -> "NamespaceSums":
        """Sum up the shares of one node; an unplaced share counts once."""
        sums = cls()
        for share in shares:
            sums.used[share.namespace] += share.units_in_all * unit_mib * _MIB
            sums.pods[share.namespace] += 1
        return sums

    def add(self, other: "NamespaceSums") -> None:
        self.used.update(other.used)
        self.pods.update(other.pods)

    def remove(self, other: "NamespaceSums") -> None:
        for mine, theirs in ((self.used, other.used), (self.pods, other.pods)):
            for name, number in theirs.items():
                mine[name] -= number
                if not mine[name]:
                    del mine[name]


def series(
    sums: NamespaceSums, pending: Mapping[str, int], most: int = MOST
) -> tuple[Mapping[str, int], ...]:
    """Return the values of OF_NAMESPACES by namespace.

    Of more than ``most`` namespaces, those that use least are summed up as OTHERS.
    """
    values: tuple[Mapping[str, int], ...] = (sums.used, sums.pods, pending)
    names = {*sums.pods, *pending}
    if len(names) > most:
        named = set(nlargest(most, names, key=lambda name: (sums.used[name], name)))
        names = {*named, OTHERS}
        values = tuple(_folded(each, named) for each in values)
    return tuple({name: each.get(name, 0) for name in sorted(names)} for each in values)


def _folded(values: Mapping[str, int], named: set[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, number in values.items():
        found[name if name in named else OTHERS] += number
    return found
