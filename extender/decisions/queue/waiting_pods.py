"""Keep the pods that wait for admission and belong to no gang, by what they request (pure)."""

from bisect import bisect_left
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from math import inf
from typing import Final, NamedTuple

from extender.decisions.cluster_state import ClusterState
from extender.decisions.queue.card_sizes import CardSizes
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.planning.shapes import Reader
from gpushare.quota.order import Standing

USED_WITHIN_SECONDS: Final = 20.0  # of the 30 for which room is kept
FIRST_REST_SECONDS: Final = 30.0
MOST_REST_SECONDS: Final = 300.0

_Place = tuple[int, str, str]  # the most urgent first, then the oldest; the last part is the uid


class Kind(NamedTuple):
    """Pods of one namespace and of equal shape: they fit on the same nodes."""

    namespace: str
    shape: Hashable


class WaitingPods:
    """The pods that only our gate keeps from kube-scheduler, and those of queued namespaces.

    The latter have been created while nothing added the gate.

    A pod rests if it did not come although a slot was kept for it: other pods get the room. For
    example, nothing can remove its gate while an admission webhook is down.

    Pods whose request no node could grant, even if it were empty, are left out, unless nodes with
    larger GPUs may come: ``is_autoscaled``. So are pods about which no scheduler asks this
    extender: they would never come for their room.

    A renewal costs what has changed. ``entered`` counts how often a pod came to those without a
    slot.
    """

    def __init__(self, state: ClusterState, *, is_autoscaled: bool = False) -> None:
        self._state, self._is_autoscaled = state, is_autoscaled
        self._sizes = CardSizes(state.ledger, state.unit_mib)
        self._seen = self._ledger_seen = -1
        self._rules_seen = -1, -1, -1  # versions of namespaces, schedulers that ask, and sizes
        self._known: dict[str, tuple[Kind, _Place]] = {}  # by uid, with and without a slot
        self._queues: dict[Kind, list[_Place]] = {}  # without a slot
        self._slotted: dict[str, float] = {}  # by uid, when it got its slot
        self._rests: dict[str, tuple[float, float]] = {}  # by uid, until when, and how long
        self.entered = 0

    def renew(self) -> Generator[None, None, None]:
        """Take in what has changed, pod by pod; other work may run between any two steps."""
        state = self._state
        yield from self._sizes.renew()
        now, changed = state.pods.changes.now, state.pods.changes.since(self._seen)
        rules = state.namespaces.version, state.callers.version, self._sizes.version
        if changed is None or self._seen < 0 or rules != self._rules_seen:
            changed = {*self._known, *state.pods.gated, *state.pods.pending}
        reader = Reader(state)
        for uid in changed:
            self._renew(uid, reader)
            yield
        self._seen, self._rules_seen = now, rules
        for uid in list(self._slotted):
            if state.ledger.slot_of(uid) is None:
                self._lost_slot(uid, self._slotted.pop(uid))
            yield
        yield from self._renew_slots()
        self._end_rests()

    def _renew_slots(self) -> Generator[None, None, None]:
        """Take note of slots that were kept elsewhere, such as in the room of victims."""
        ledger = self._state.ledger
        now, changed = ledger.changes.now, ledger.changes.since(self._ledger_seen)
        for name in list(ledger.nodes()) if changed is None else changed:
            for slot in ledger.pinned_slots_on(name):
                uid = slot.pod_uid
                if uid in self._known and uid not in self._slotted and ledger.slot_of(uid):
                    self.took_slot(uid)
            yield
        self._ledger_seen = now

    def with_slots(self) -> Iterator[Pod]:
        """Yield the pods that have got a slot; some may have lost it since the last renewal."""
        for uid in list(self._slotted):
            pod = self.pod(uid)
            if pod is not None:
                yield pod

    def firsts(self) -> list[tuple[Standing, Kind]]:
        """Return each kind with the standing of its first pod without a slot."""
        return [(self._standing(queue[0], kind), kind) for kind, queue in self._queues.items()]

    def first(self, kind: Kind) -> Standing | None:
        queue = self._queues.get(kind)
        return self._standing(queue[0], kind) if queue else None

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def rests_until(self, uid: str) -> float:
        """Return until when a pod rests, by the monotonic clock; in the past if it does not."""
        until, _ = self._rests.get(uid, (-inf, 0.0))
        return until if until < inf else -inf

    def unused(self, uid: str) -> float:
        """Return a number that grows with how often a pod had room and did not come, or 0."""
        _, seconds = self._rests.get(uid, (0.0, 0.0))
        return seconds / FIRST_REST_SECONDS

    def waiting(self) -> Iterator[tuple[Standing, Kind]]:
        """Yield all pods without a slot."""
        for kind, queue in list(self._queues.items()):
            yield from ((self._standing(place, kind), kind) for place in list(queue))

    def pod(self, uid: str) -> Pod | None:
        """Return a pod as it is now; None if it does not wait for us any more."""
        pods = self._state.pods
        record = pods.gated.get(uid) or pods.pending.get(uid)
        pod = record.pod if record is not None else None
        if pod is None or pod.metadata.deletion_timestamp:
            return None
        is_queued = self._state.namespaces.is_queued(pod.metadata.namespace)
        if not (pod.waits_for_admission if pod.gates else is_queued):
            return None
        if not self._state.callers.ask_about(pod):
            return None
        return pod if self._state.groups.of(uid) is None else None

    def can_ever_fit(self, pod: Pod) -> bool:
        """Return whether a node could grant what a pod requests if nobody else were there."""
        try:
            request = self._state.request_of(pod) if asks_for_share(pod) else None
        except RequestError:
            return False
        return request is None or self._is_autoscaled or self._sizes.may_grant(request)

    def can_group_ever_fit(self, group: Group) -> bool:
        """Return whether that is so for as many members of a gang as have to start together."""
        return self._has_able(group, self.can_ever_fit)

    def needing_nodes(
        self, entries: Iterable[tuple[Standing, Group | Kind]]
    ) -> Generator[None, None, set[str]]:
        """Return the owners that wait for an autoscaler, because no node has GPUs that large.

        A step is an entry, which may be a gang with many members.
        """
        found = set()
        for standing, entry in entries if self._is_autoscaled else ():
            yield
            if self._needs_new_node(standing, entry):
                found.add(standing.owner)
        return found

    def _needs_new_node(self, standing: Standing, entry: Group | Kind) -> bool:
        if isinstance(entry, Group):
            return not self._has_able(entry, self._fits_present)
        pod = self.pod(standing.owner)
        return pod is not None and not self._fits_present(pod)

    def _fits_present(self, pod: Pod) -> bool:
        if not asks_for_share(pod) or not self.can_ever_fit(pod):
            return self.can_ever_fit(pod)
        return self._sizes.are_known and self._sizes.may_grant(self._state.request_of(pod))

    def _has_able(self, group: Group, is_able: Callable[[Pod], bool]) -> bool:
        able = sum(bool(pod.node) or is_able(pod) for pod in group.present())
        return able + self._state.ended_of(group) >= group.minimum

    def took_slot(self, uid: str) -> None:
        self._leave(uid)
        self._slotted[uid] = self._state.clock.monotonic()

    def _lost_slot(self, uid: str, since: float) -> None:
        pod, now = self.pod(uid), self._state.clock.monotonic()
        if pod is None or (pod.gates and now - since < USED_WITHIN_SECONDS):
            self._enter(uid)  # its node or GPU has failed, for example
            return
        _, before = self._rests.get(uid, (0.0, 0.0))
        seconds = min(MOST_REST_SECONDS, before * 2 or FIRST_REST_SECONDS)
        self._rests[uid] = now + seconds, seconds

    def _end_rests(self) -> None:
        now = self._state.clock.monotonic()
        for uid, (until, seconds) in list(self._rests.items()):
            if uid not in self._known:
                del self._rests[uid]
            elif until <= now and uid not in self._slotted:
                self._rests[uid] = inf, seconds
                self._enter(uid)

    def _renew(self, uid: str, reader: Reader) -> None:
        before, now = self._known.get(uid), self._described(uid, reader)
        if before == now:
            return
        if before is not None:
            self._leave(uid)
            self._slotted.pop(uid, None)
            del self._known[uid]
        if now is None:
            return
        self._known[uid] = now
        if self._state.ledger.slot_of(uid) is not None:
            self._slotted[uid] = self._state.clock.monotonic()
        else:
            self._enter(uid)

    def _described(self, uid: str, reader: Reader) -> tuple[Kind, _Place] | None:
        pod = self.pod(uid)
        if pod is None or not self.can_ever_fit(pod):
            return None  # explain says why
        try:
            shape = reader.shape_of(pod).key
        except RequestError:
            return None
        meta = pod.metadata
        return Kind(meta.namespace, shape), (-pod.priority, meta.creation_timestamp or "", uid)

    def _enter(self, uid: str) -> None:
        kind, place = self._known[uid]
        queue = self._queues.setdefault(kind, [])
        at = bisect_left(queue, place)
        if at == len(queue) or queue[at] != place:
            queue.insert(at, place)
            self.entered += 1

    def _leave(self, uid: str) -> None:
        kind, place = self._known[uid]
        queue = self._queues.get(kind)
        if queue is None:
            return
        at = bisect_left(queue, place)
        if at < len(queue) and queue[at] == place:
            del queue[at]
        if not queue:
            del self._queues[kind]

    def _standing(self, place: _Place, kind: Kind) -> Standing:
        priority, created, uid = place
        given = self._state.head_claims.given(uid)
        return Standing(-priority, given, kind.namespace, created, uid)
