"""Makes kube-scheduler try rejected pods again for which there is room.

kube-scheduler tries a rejected pod again when a pod or node changes. It does not know of room that
only the extender knows of, such as that of a hold that has expired, and may have tried the pod a
moment before the extender saw the last change: nothing else happens to the pod then for minutes.
"""

import time
from collections.abc import Generator, Hashable, Iterable
from contextlib import suppress
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.pod_records import PodRecord
from extender.gangs.planning import GangPlanning, Kept
from extender.gangs.pokes import Pokes
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Outcome
from gpushare.errors import RequestError
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.planning.shapes import Reader
from gpushare.process.time_slices import rest

EVERY_SECONDS: Final = 0.5
MOST_REST_SECONDS: Final = 5.0
UNTRIED_SECONDS: Final = 1.0  # in which kube-scheduler tries a pod by itself
HELD_SECONDS: Final = 5.0  # for a pod that was poked
SHAPES_AT_ONCE: Final = 20  # that have no room, in one round

# Negative priority, namespace if it is limited, shape.
_Kind = tuple[int, str, Hashable]


class WakeUps:
    """Wakes exactly as many pods as there is room for, the most urgent first.

    The room is held for a moment, so that it counts for the next pod.
    """

    def __init__(
        self,
        state: ClusterState,
        gangs: Gangs,
        planning: GangPlanning,
        pokes: Pokes,
        right: PatchRight,
    ) -> None:
        self._state, self._gangs, self._planning = state, gangs, planning
        self._pokes, self._right = pokes, right
        self._fits_since: dict[_Kind, float] = {}
        self._full_at: dict[_Kind, float] = {}  # others are tried first
        self._retries: Retries[str] = Retries(state.clock, 30.0, 300.0)
        self._seen: tuple[int, int, int, int] | None = None

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await self.check()
            await rest(began, least=EVERY_SECONDS, most=MOST_REST_SECONDS)

    async def check(self) -> None:
        """Wake the pods that fit, and that kube-scheduler has not tried since they do."""
        state = self._state
        nodes, pods = state.resource_changes.now, state.pods.changes.now
        seen = state.ledger.changes.now, nodes, pods, state.namespaces.version
        if seen == self._seen and not self._fits_since and not len(self._retries):
            return
        if not await self._right.is_given():
            return
        self._seen = seen
        kinds = await self._planning.slices.run(self._rejected())
        self._retries.keep_only(state.pods.pending)
        self._full_at = {kind: at for kind, at in self._full_at.items() if kind in kinds}
        fits_since, self._fits_since = self._fits_since, {}
        full = 0
        for kind in sorted(kinds, key=lambda kind: (kind[0], self._full_at.get(kind, -inf))):
            await self._planning.slices.pause()
            if not await self._wake(kind, kinds[kind], fits_since.get(kind)):
                self._full_at[kind] = state.clock.monotonic()
                full += 1
            if full == SHAPES_AT_ONCE:
                break

    async def _wake(self, kind: _Kind, pods: Iterable[Pod], since: float | None) -> bool:
        """Wake those of equal pods for which there is room; return False without room."""
        now, is_first = self._state.clock.monotonic(), True
        for pod in pods:
            ask = Ask(pod.uid, (pod,), 1, cooling=self._gangs.cooling())
            if since is None or now - since < UNTRIED_SECONDS:
                if not await self._planning.has_room_for(ask):
                    return False
                self._fits_since[kind] = now if since is None else since
                return True
            record = self._state.pods.get(pod.uid)
            if record is None or record.asked is None or record.asked.at > since:
                continue  # kube-scheduler has just tried it
            if await self._planning.hold_for(ask, now + HELD_SECONDS) is not Kept.KEPT:
                return not is_first
            is_first = False
            # If kube-scheduler rejects it again, other rules of its own do.
            self._retries.tried(pod.uid, landed=False)
            if await self._pokes.poke(pod) is not Outcome.RELEASED:
                self._state.ledger.drop_slot(pod.uid)
                break
        return True

    def _rejected(self) -> Generator[None, None, dict[_Kind, list[Pod]]]:
        """Return the pods that wait for room by kind, the oldest first."""
        reader, found = Reader(self._state), dict[_Kind, list[Pod]]()
        for record in list(self._state.pods.pending.values()):
            yield
            pod = self._waiting(record)
            if pod is None:
                continue
            with suppress(RequestError):  # explain says why
                found.setdefault(self._kind(pod, reader), []).append(pod)
        for pods in found.values():
            pods.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.uid))
        return found

    def _kind(self, pod: Pod, reader: Reader) -> _Kind:
        """Return what is equal for pods that fit on the same nodes; may raise RequestError."""
        scope = self._state.namespaces.scope(pod.metadata.namespace)
        return -pod.priority, scope, reader.shape_of(pod).key

    def _waiting(self, record: PodRecord) -> Pod | None:
        pod, asked, state = record.pod, record.asked, self._state
        if pod is None or asked is None or not asked.reasons or record.request is None:
            return None
        if pod.metadata.deletion_timestamp or state.group_of(pod.uid) is not None:
            return None
        if self._gangs.admits and state.namespaces.is_queued(pod.metadata.namespace):
            return None  # Admission has it in its queue
        is_left = state.ledger.slot_of(pod.uid) is None and self._retries.is_ready(pod.uid)
        return pod if is_left else None
