"""Takes room for gated pods that belong to no gang: each one is planned like a gang of one."""

import asyncio
from collections.abc import Hashable, Iterator
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import HELD_SECONDS
from extender.gangs.planning import GangPlanning
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.planning.shapes import Reader

SHAPES_AT_ONCE: Final = 100  # that have no room, in one round
PODS_A_STEP: Final = 50


class GatedPods:
    """Pods of equal shape are not tried again in a round once one of them had no room."""

    def __init__(self, state: ClusterState, planning: GangPlanning) -> None:
        self._state, self._planning = state, planning
        self._tried: tuple[int, int, int] | None = None

    def waiting(self) -> list[Pod]:
        """Return the pods that only our gate keeps from kube-scheduler, most urgent first."""
        found = (record.pod for record in list(self._state.pods.gated.values()))
        pods = [pod for pod in found if pod is not None and _is_ours(pod)]
        alone = [pod for pod in pods if self._state.groups.of(pod.uid) is None]
        return sorted(alone, key=lambda pod: (-pod.priority, pod.metadata.creation_timestamp or ""))

    async def plan(self) -> None:
        """Keep room for the waiting pods that fit, if anything has changed since."""
        state = self._state
        revision = (
            state.ledger.changes.now, state.resource_changes.now, state.pods.changes.now,
        )  # fmt: skip
        if revision == self._tried:
            return
        self._tried = revision
        full: set[Hashable] = set()
        shapes = Reader(state)
        for number, pod in enumerate(self._without_slot()):
            if number % PODS_A_STEP == 0:
                await asyncio.sleep(0)
            if len(full) == SHAPES_AT_ONCE:
                return
            try:
                shape = shapes.shape_of(pod).key
            except RequestError:
                continue  # explain says why
            if shape in full:
                continue
            ask = Ask(pod.uid, (pod,), 1)
            hold = await self._planning.hold_for(ask, state.clock.monotonic() + HELD_SECONDS)
            if not hold:
                full.add(shape)

    def _without_slot(self) -> Iterator[Pod]:
        for pod in self.waiting():
            if self._state.ledger.slot_of(pod.uid) is None:
                yield pod


def _is_ours(pod: Pod) -> bool:
    return pod.has_our_gate and not pod.has_foreign_gate and not pod.metadata.deletion_timestamp
