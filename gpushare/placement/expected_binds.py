"""Remember the nodes to which ranked pods are expected to be bound (pure).

kube-scheduler asks about the next pod before it binds the last one. The cards on the last pod's
best node count as used when other nodes are *ranked*, so that two pods are not sent to one gap. An
expectation never rejects a node for a pod: the bind may not happen.
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
    """``units`` of each of ``cards`` (UUIDs), chosen by ``policy``. ``until`` is monotonic."""

    node: str
    cards: tuple[str, ...]
    units: int
    policy: PlacementPolicy
    until: float


class Expected:
    """All expectations. ``changed`` is called with the node of each that is added or removed."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._by_pod: dict[str, Expectation] = {}  # soonest to end first
        self._by_node: dict[str, dict[str, Expectation]] = {}

    def expect(
        self, pod_uid: str, node: str, cards: tuple[str, ...], request: Request, now: float
    ) -> None:
        """Expect this pod on this node, and on no other."""
        self.drop(pod_uid)
        units, until = request.units_per_card, now + EXPECTED_SECONDS
        made = Expectation(node, cards, units, request.policy, until)
        self._by_pod[pod_uid] = made
        self._by_node.setdefault(node, {})[pod_uid] = made
        self._changed(node)

    def drop(self, pod_uid: str) -> Expectation | None:
        """Remove the pod's expectation and return it; None if there is none."""
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

    def units(self, node: str) -> Mapping[str, int]:
        """Return the units by UUID that are expected to be used on a node."""
        here = self._by_node.get(node)
        if here is None:
            return NOTHING
        units: dict[str, int] = {}
        for each in here.values():
            for uuid in each.cards:
                units[uuid] = units.get(uuid, 0) + each.units
        return units
