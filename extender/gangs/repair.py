"""Finds slots that have become unusable, and replaces them."""

import logging
from collections import defaultdict

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.gangs.planning import GangPlanning
from gpushare.ledger.holds import Slot

log = logging.getLogger(__name__)


class SlotRepair:
    """Looks only at nodes that have changed: a GPU failed, other pods took the CPU, a cordon."""

    def __init__(self, state: ClusterState, gangs: Gangs, planning: GangPlanning) -> None:
        self._state, self._gangs, self._planning = state, gangs, planning
        self._ledger_at = self._resources_at = 0

    async def check(self) -> None:
        """Replace slots that are unusable or were lost; without room a gang that can lets go."""
        for owner, lost in self._unusable().items():
            group = self._state.groups.named(owner)
            if group is None:
                continue
            log.warning("slots are unusable", extra={"gang": owner, "slots": len(lost)})
            for slot in lost:
                self._state.ledger.drop_slot(slot.pod_uid)
            await self._planning.plan(group)
        for group in self._gangs.in_part():
            await self._planning.plan(group)

    def _unusable(self) -> dict[str, list[Slot]]:
        ledger, resources = self._state.ledger, self._state.resource_changes
        changed = ledger.changes.since(self._ledger_at)
        others = resources.since(self._resources_at)
        self._ledger_at, self._resources_at = ledger.changes.now, resources.now
        if changed is None or others is None:
            names = set(self._state.node_names())
        else:
            names = {*changed, *others}
        by_owner: dict[str, list[Slot]] = defaultdict(list)
        for name in names:
            for kept, slot in ledger.slots_on(name):
                by_owner[kept.owner].append(slot)
        found: dict[str, list[Slot]] = {}
        for owner, slots in by_owner.items():
            group = self._state.groups.named(owner)
            members = group.members if group is not None else {}
            # What is reserved for a binding that is being written is the slot itself.
            judged = [
                slot
                for slot in slots
                if slot.pod_uid in members and ledger.reserve_of(slot.pod_uid, slot.node) is None
            ]
            pods = {slot.pod_uid: members[slot.pod_uid] for slot in judged}
            bad = self._planning.planner.unusable(judged, pods, owner, self._gangs.cooling())
            lost = [slot for slot in judged if slot.pod_uid in bad]
            if group is not None:
                lost += [slot for slot in self._gangs.outside(group) if slot not in lost]
            if lost:
                found[owner] = lost
        return found
