"""Takes room for gated pods that belong to no gang: each one is planned like a gang of one."""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import HELD_SECONDS
from extender.decisions.gangs.gated import GatedQueue, Place, priority_of
from extender.gangs.planning import GangPlanning
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask

SHAPES_AT_ONCE: Final = 100  # that have no room, in one round


class GatedPods:
    """Pods of equal shape are not tried again in a round once one of them had no room."""

    def __init__(self, state: ClusterState, planning: GangPlanning) -> None:
        self._state, self._planning = state, planning
        self._queue = GatedQueue(state)
        self._tried: tuple[int, int, int] | None = None
        self._heads: list[tuple[Place, Hashable]] = []  # of the shapes still to try in this round
        self._full = 0

    def with_slots(self) -> Iterator[Pod]:
        """Yield the pods for which room was kept, and which still have our gate."""
        return self._queue.with_slots()

    async def begin_round(self) -> None:
        """Take in what has changed. If nothing has, nothing is planned in this round."""
        state, queue = self._state, self._queue
        await self._planning.slices.run(queue.renew())
        revision = state.ledger.changes.now, state.resource_changes.now, queue.entered
        self._heads = queue.firsts() if revision != self._tried else []
        heapify(self._heads)  # places differ: shapes are not compared
        self._tried, self._full = revision, 0

    async def plan(self, *, above: float = -inf) -> None:
        """Keep room for the waiting pods that fit and have a priority higher than ``above``."""
        state, queue, heads = self._state, self._queue, self._heads
        while heads and self._full < SHAPES_AT_ONCE and priority_of(heads[0][0]) > above:
            place, shape = heappop(heads)
            uid = place[-1]
            pod = queue.pod(uid)
            if pod is not None and state.ledger.slot_of(uid) is None:
                expires_at = state.clock.monotonic() + HELD_SECONDS
                if not await self._planning.hold_for(Ask(uid, (pod,), 1), expires_at):
                    self._full += 1
                    continue
            queue.took_slot(uid)
            if (after := queue.first(shape)) is not None:
                heappush(heads, (after, shape))
