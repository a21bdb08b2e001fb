"""Where pods are expected to go that were just ranked, and are not yet decided on (pure).

kube-scheduler asks about the next pod before it binds the last one. What was ranked best for that
one is counted when others are *ranked*, so that two pods are not both sent to one gap. It never
refuses anybody: it may not come true.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.cards.model import Request
from gpushare.cards.placement_policy import PlacementPolicy
from gpushare.placement.card_choice import NOTHING

EXPECTED_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """``units`` of each of ``cards`` (UUIDs), chosen by ``policy``."""

    node: str
    cards: tuple[str, ...]
    units: int
    policy: PlacementPolicy
    until: float


class Expected:
    """``changed`` is called with the node of every expectation that comes or goes."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._by_pod: dict[str, Expectation] = {}  # soonest to end first
        self._by_node: dict[str, dict[str, Expectation]] = {}

    def expect(
        self, pod_uid: str, node: str, cards: tuple[str, ...], request: Request, now: float
    ) -> None:
        """Expect this pod there, and nowhere else."""
        self.drop(pod_uid)
        units, until = request.units_per_card, now + EXPECTED_SECONDS
        made = Expectation(node, cards, units, request.policy, until)
        self._by_pod[pod_uid] = made
        self._by_node.setdefault(node, {})[pod_uid] = made
        self._changed(node)

    def drop(self, pod_uid: str) -> Expectation | None:
        """Expect this pod nowhere; what was expected until now."""
        found = self._by_pod.pop(pod_uid, None)
        if found is not None:
            here = self._by_node[found.node]
            del here[pod_uid]
            if not here:
                del self._by_node[found.node]
            self._changed(found.node)
        return found

    def expire(self, now: float) -> None:
        while self._by_pod:
            pod_uid, oldest = next(iter(self._by_pod.items()))
            if oldest.until > now:
                return
            self.drop(pod_uid)

    def taken(self, node: str) -> Mapping[str, int]:
        """Units by UUID that are expected to be used on a node."""
        here = self._by_node.get(node)
        if here is None:
            return NOTHING
        units: dict[str, int] = {}
        for each in here.values():
            for uuid in each.cards:
                units[uuid] = units.get(uuid, 0) + each.units
        return units
