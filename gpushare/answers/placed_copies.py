"""The cluster as it would be with copies of a pod that have their places (pure)."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpushare.ledger.accounts import Reserve
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import requests_of
from gpushare.placement.trial import Place
from gpushare.preemption.model import PreemptionWorld


class WithCopies:
    """Implements PreemptionWorld. It is for one answer: later changes may not be noticed."""

    def __init__(self, world: PreemptionWorld, pod: Pod, places: Sequence[Place]) -> None:
        self._world = world
        self._asked = requests_of(pod)
        self._copies = Counter(place.node for place in places)
        self.unit_mib, self.policies = world.unit_mib, world.policies
        self.scarcity = world.scarcity
        self.ledger = world.ledger.overlay()
        units = world.request_of(pod).units_per_card
        for number, place in enumerate(places):
            uuids = tuple(card.uuid for card in place.cards)
            uid = f"what-if-{number}"
            self.ledger.reserve(Reserve(uid, "", "", place.node, uuids, units, 0))
        self.resource_changes = world.resource_changes
        self.request_of, self.requests_used = world.request_of, world.requests_used
        self.node, self.node_names = world.node, world.node_names
        self.all_node_names, self.why_closed = world.all_node_names, world.why_closed
        self.pods_of, self.will_end = world.pods_of, world.will_end
        self.leaving = world.leaving
        self.group_of, self.ended_of = world.group_of, world.ended_of

    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int] | None:
        """Return what the world has free there beside the copies."""
        found = self._world.free_resources(node, besides=besides, priority=priority)
        copies = self._copies[node]
        if found is None or not copies:
            return found
        asked = self._asked
        return {name: much - copies * asked.get(name, 0) for name, much in found.items()}
