"""Count what pods request, so that the cluster can be kept ready for pods like them (pure)."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpushare.cards.model import Request

MOST_KINDS: Final = 512
WINDOW: Final = 10_000  # pods; then those before count half
_LEAST: Final = 0.5  # a kind that counts less is forgotten


class Kind(NamedTuple):
    """What pods have in common: ``units`` of each of ``cards``, of one of ``models`` if named.

    ``cpu`` and ``memory`` are in thousandths, as in ``objects.pod_requests``.
    """

    cards: int
    units: int
    cpu: int
    memory: int
    models: frozenset[str] = frozenset()


class Mix:
    """How many pods of each kind came, the latest counting most; ``came`` is how many in all.

    It never has more than MOST_KINDS, and these are shared out between namespaces: while it has so
    many, a new kind takes the place of the rarest one of the namespace that has the most, or is not
    counted if that namespace has no more than its own. So what one tenant requests neither uses
    memory without limit nor displaces what others request. Kinds that came once are forgotten with
    the next WINDOW pods.
    """

    def __init__(self) -> None:
        self.came, self.total = 0, 0.0  # the latter less, once earlier pods count half
        self._kinds: dict[Kind, float] = {}
        self._namespaces: dict[Kind, str] = {}  # of the first pod of each kind

    def add(self, request: Request, namespace: str = "") -> None:
        """Count one pod."""
        kind = Kind(
            request.card_count,
            request.units_per_card,
            request.cpu,
            request.memory,
            request.policy.models,
        )
        self.came += 1
        self.total += 1
        if kind in self._kinds or len(self._kinds) < MOST_KINDS or self._make_room(namespace):
            self._kinds[kind] = self._kinds.get(kind, 0.0) + 1
            self._namespaces.setdefault(kind, namespace)
        if self.total >= WINDOW:
            self._halve()

    def __iter__(self) -> Iterator[tuple[Kind, float]]:
        """Yield each kind and how much it counts."""
        yield from self._kinds.items()

    def _make_room(self, namespace: str) -> bool:
        """Forget a kind of the namespace that has the most; return False if it has too few."""
        numbers = Counter(self._namespaces.values())
        ((largest, most),) = numbers.most_common(1)
        if most <= numbers[namespace] + 1:
            return False
        own = (kind for kind, owner in self._namespaces.items() if owner == largest)
        rarest = min(own, key=self._kinds.__getitem__)
        del self._kinds[rarest], self._namespaces[rarest]
        return True

    def _halve(self) -> None:
        halved = {kind: count / 2 for kind, count in self._kinds.items()}
        self._kinds = {kind: count for kind, count in halved.items() if count > _LEAST}
        self._namespaces = {kind: self._namespaces[kind] for kind in self._kinds}
        self.total = sum(self._kinds.values())
