"""Makes kube-scheduler try rejected pods again for which there is room.

kube-scheduler tries a rejected pod again when a pod or node changes. It does not know of room that
only the extender knows of, such as that of a hold that has expired, and may have tried the pod a
moment before the extender saw the last change: nothing else happens to the pod then for minutes.
"""

from collections.abc import Collection, Generator, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.pod_records import PodRecord
from extender.decisions.tries import Tries
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
AT_ONCE: Final = 20  # kinds of pods that are tried in one round

# Negative priority, namespace if it is limited, shape, uid of a pod with a claim.
_Kind = tuple[int, str, Hashable, str]


class WakeUps:
    """Wakes exactly as many pods as there is room for.

    The room is held for a moment, so that it counts for the next pod. Of the pods that are tried in
    one round the most urgent come first. Who is tried goes by turns, whatever the priority.
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
        self._full: set[_Kind] = set()  # since the last change
        self._tries: Tries[_Kind] = Tries()
        self._are_left = False  # some that were not tried since the last change
        self._retries: Retries[str] = Retries(state.clock, 30.0, 300.0)
        self._seen: tuple[int, int, int, int] | None = None

    async def run(self) -> None:
        slices = self._planning.slices
        while True:
            before = slices.spent
            await self.check()
            await rest(slices.spent - before, least=EVERY_SECONDS, most=MOST_REST_SECONDS)

    async def check(self) -> None:
        """Wake the pods that fit, and that kube-scheduler has not tried since they do."""
        state = self._state
        nodes, pods = state.resource_changes.now, state.pods.changes.now
        seen = state.ledger.changes.now, nodes, pods, state.namespaces.version
        is_due = self._are_left or self._fits_since or len(self._retries)
        if seen == self._seen and not is_due:
            return
        if not await self._right.is_given():
            return
        if seen != self._seen:
            self._seen, self._full = seen, set()
        kinds = await self._planning.slices.run(self._rejected())
        self._retries.keep_only(state.pods.pending)
        fits_since, self._fits_since = self._fits_since, {}
        for kind in self._chosen(kinds, fits_since):
            await self._planning.slices.pause()
            if not await self._wake(kind, kinds[kind], fits_since.get(kind)):
                self._full.add(kind)

    def _chosen(self, kinds: Mapping[_Kind, list[Pod]], fits: Collection[_Kind]) -> list[_Kind]:
        """Return the kinds that are tried now, the most urgent first."""
        now, ordered = self._state.clock.monotonic(), sorted(kinds, key=lambda kind: kind[0])
        namespaces = {kind: {pod.metadata.namespace for pod in kinds[kind]} for kind in ordered}
        resting = {kind for kind in kinds if kind in fits or kind in self._full}
        chosen = self._tries.choose(namespaces, AT_ONCE, now, resting)
        self._are_left = len(resting) + len(chosen) < len(kinds)
        return [kind for kind in ordered if kind in fits or kind in chosen]

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
        # What is claimed for a pod is room for this pod only.
        claimant = pod.uid if self._state.ledger.claim_slot_of(pod.uid) is not None else ""
        return -pod.priority, scope, reader.shape_of(pod).key, claimant

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
