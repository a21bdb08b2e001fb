"""Where pods will probably go that kube-scheduler has asked about (pure)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.cards.model import Request
from gpushare.cards.placement_policy import PlacementPolicy
from gpushare.placement.card_choice import NOTHING, FreeCard

EXPECTED_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """Where a pod will probably go: ``units`` of each of ``cards`` (UUIDs), chosen by ``policy``.

    kube-scheduler asks about the next pod before it binds the last one. What was ranked best for
    the last one counts when nodes are *ranked* for others, so that two pods are not both sent to
    one gap. It never rejects a node: it may not come true.
    """

    node: str
    cards: tuple[str, ...]
    units: int
    policy: PlacementPolicy
    until: float


class Expectations:
    """At most one expectation of each pod; ``changed`` is called with the node of each change.

    Every ``now`` is in seconds of one monotonic clock.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._of: dict[str, Expectation] = {}  # by the pod's uid, oldest first
        self._on: dict[str, dict[str, Expectation]] = {}  # by node, then by the pod's uid

    def expect(
        self, uid: str, node: str, chosen: Iterable[FreeCard], request: Request, now: float
    ) -> None:
        """Expect this pod on the ``chosen`` cards of ``node``, and nowhere else."""
        self.drop(uid)
        units, until = request.units_per_card, now + EXPECTED_SECONDS
        uuids = tuple([each.card.uuid for each in chosen])
        found = self._of[uid] = Expectation(node, uuids, units, request.policy, until)
        self._on.setdefault(node, {})[uid] = found
        self._changed(node)

    def drop(self, uid: str) -> Expectation | None:
        """Expect this pod nowhere; return what was expected until now."""
        found = self._of.pop(uid, None)
        if found is None:
            return None
        here = self._on[found.node]
        del here[uid]
        if not here:
            del self._on[found.node]
        self._changed(found.node)
        return found

    def expire(self, uid: str, now: float) -> None:
        """Drop what is expected no longer, and what is expected of the pod ``uid`` itself."""
        while self._of:
            oldest, found = next(iter(self._of.items()))
            if found.until > now:
                break
            self.drop(oldest)
        self.drop(uid)

    def units_on(self, node: str) -> Mapping[str, int]:
        """Return the units by UUID that are expected to be used on a node."""
        here = self._on.get(node)
        if here is None:
            return NOTHING
        units: dict[str, int] = {}
        for each in here.values():
            for uuid in each.cards:
                units[uuid] = units.get(uuid, 0) + each.units
        return units
