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
    """Pods of equal shape are not tried again in a round once one of them had no room.

    Unless room appears in the meantime: it goes to the most urgent that fits.
    """

    def __init__(self, state: ClusterState, planning: GangPlanning) -> None:
        self._state, self._planning = state, planning
        self._queue = GatedQueue(state)
        self._tried: tuple[int, int, int] | None = None
        self._heads: list[tuple[Place, Hashable]] = []  # of the shapes still to try in this round
        self._full: set[Hashable] = set()  # shapes without room
        self._full_at = (0, 0)  # the revision before the first of them was tried
        self._used: set[str] = set()  # nodes that have changed since then by what was kept here

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
        self._tried = revision
        self._full.clear()

    async def plan(self, *, above: float = -inf) -> None:
        """Keep room for the waiting pods that fit and have a priority higher than ``above``."""
        state, queue, heads = self._state, self._queue, self._heads
        while heads and len(self._full) < SHAPES_AT_ONCE and priority_of(heads[0][0]) > above:
            place, shape = heappop(heads)
            uid = place[-1]
            pod = queue.pod(uid)
            if pod is not None and state.ledger.slot_of(uid) is None:
                if not self._full:
                    self._full_at = state.ledger.changes.now, state.resource_changes.now
                    self._used.clear()
                if not await self._hold(pod, place):
                    if heads and heads[0][0] < place:  # it has given way
                        heappush(heads, (place, shape))
                    else:
                        self._full.add(shape)
                    continue
            queue.took_slot(uid)
            if (after := queue.first(shape)) is not None:
                heappush(heads, (after, shape))

    async def _hold(self, pod: Pod, place: Place) -> bool:
        expires_at = self._state.clock.monotonic() + HELD_SECONDS
        ask = Ask(pod.uid, (pod,), 1)
        return await self._planning.hold_for(
            ask, expires_at, lambda node: self._may_use(node, place)
        )

    def _may_use(self, node: str, place: Place) -> bool:
        """Return False, and have more urgent shapes tried again, if the room has just appeared."""
        if self._full and node not in self._used and self._has_changed(node):
            firsts = ((self._queue.first(shape), shape) for shape in self._full)
            again = [(at, shape) for at, shape in firsts if at is not None and at < place]
            self._full.clear()
            for each in again:
                heappush(self._heads, each)
            if again:
                return False
        self._used.add(node)
        return True

    def _has_changed(self, node: str) -> bool:
        """Return whether a node may have got room since the first shape had none."""
        both = self._state.ledger.changes, self._state.resource_changes
        for changes, at in zip(both, self._full_at, strict=True):
            names = changes.since(at)
            if names is None or node in names:
                return True
        return False
