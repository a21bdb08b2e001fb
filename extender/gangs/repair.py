"""Finds slots that have become unusable, and replaces them."""

import logging
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.stages import GangStages
from extender.gangs.planning import GangPlanning
from gpushare.ledger.holds import Slot

log = logging.getLogger(__name__)

NODES_A_STEP: Final = 32
SLOTS_A_STEP: Final = 16


class SlotRepair:
    """Looks only at nodes that have changed: a GPU failed, other pods took the CPU, a cordon."""

    def __init__(self, state: ClusterState, gangs: Gangs, planning: GangPlanning) -> None:
        self._state, self._gangs, self._planning = state, gangs, planning
        self._stages = GangStages(gangs)
        self._ledger_at = self._resources_at = 0

    async def check(self) -> None:
        """Replace slots that are unusable or were lost; without room a gang that can lets go."""
        for owner, found in (await self._planning.slices.run(self._unusable())).items():
            group = self._state.groups.named(owner)
            # Time has passed: members were bound, or have other slots.
            lost = [slot for slot in found if self._state.ledger.slot_of(slot.pod_uid) == slot]
            if group is None or not lost:
                continue
            log.warning("slots are unusable", extra={"gang": owner, "slots": len(lost)})
            for slot in lost:
                self._state.ledger.drop_slot(slot.pod_uid)
            await self._planning.plan(group)
        for group in self._stages.in_part():
            await self._planning.plan(group)

    def _unusable(self) -> Generator[None, None, dict[str, list[Slot]]]:
        """Return the slots that cannot be used any more, by owner, in steps of a few slots."""
        by_owner: dict[str, list[Slot]] = defaultdict(list)
        for number, name in enumerate(self._changed()):
            if number % NODES_A_STEP == 0:
                yield
            for kept, slot in self._state.ledger.slots_on(name):
                by_owner[kept.owner].append(slot)
        found: dict[str, list[Slot]] = {}
        for owner, slots in by_owner.items():
            lost: list[Slot] = []
            for some in _of_few_nodes(slots):
                yield
                lost += self._unusable_of(owner, some)
            group = self._state.groups.named(owner)
            if group is not None:
                known = set(lost)
                lost += [slot for slot in self._gangs.outside(group) if slot not in known]
            if lost:
                found[owner] = lost
        return found

    def _changed(self) -> set[str]:
        """Return the nodes that have changed since the last call."""
        ledger, resources = self._state.ledger, self._state.resource_changes
        changed = ledger.changes.since(self._ledger_at)
        others = resources.since(self._resources_at)
        self._ledger_at, self._resources_at = ledger.changes.now, resources.now
        if changed is None or others is None:
            return set(self._state.node_names())
        return {*changed, *others}

    def _unusable_of(self, owner: str, slots: Sequence[Slot]) -> list[Slot]:
        """Return which of these cannot be used; they are all that the owner has on their nodes."""
        ledger, group = self._state.ledger, self._state.groups.named(owner)
        if group is None:
            return []
        members = group.members
        # What is reserved for a binding that is being written is the slot itself.
        judged = [
            slot
            for slot in slots
            if ledger.slot_of(slot.pod_uid) == slot
            and slot.pod_uid in members
            and ledger.reserve_of(slot.pod_uid, slot.node) is None
        ]
        pods = {slot.pod_uid: members[slot.pod_uid] for slot in judged}
        bad = self._planning.planner.unusable(judged, pods, self._gangs.cooling())
        return [slot for slot in judged if slot.pod_uid in bad]


def _of_few_nodes(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Yield slots, which are sorted by node, in parts that do not divide a node."""
    part: list[Slot] = []
    for slot in slots:
        if len(part) >= SLOTS_A_STEP and part[-1].node != slot.node:
            yield part
            part = []
        part.append(slot)
    if part:
        yield part
