"""Keep gated pods that belong to no gang in order, by what they request (pure)."""

from bisect import bisect_left, insort
from collections.abc import Generator, Hashable, Iterator

from extender.decisions.cluster_state import ClusterState
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.planning.shapes import Reader

Place = tuple[int, str, str]  # the most urgent first, then the oldest; the last part is the uid


def priority_of(place: Place) -> int:
    return -place[0]


class GatedQueue:
    """The pods that only our gate keeps from kube-scheduler, and that belong to no gang.

    A renewal costs what has changed. Pods of equal shape fit on the same nodes, so those without a
    slot are sorted by shape. ``entered`` counts how often one came to them.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._seen = self._ledger_seen = -1
        self._known: dict[str, tuple[Hashable, Place]] = {}  # by uid, with and without a slot
        self._queues: dict[Hashable, list[Place]] = {}  # by shape, without a slot
        self._slotted: set[str] = set()
        self.entered = 0

    def renew(self) -> Generator[None, None, None]:
        """Take in what has changed, pod by pod; other work may run between any two steps."""
        state = self._state
        now, changed = state.pods.changes.now, state.pods.changes.since(self._seen)
        if changed is None or self._seen < 0:
            changed = {*self._known, *state.pods.gated}
        reader = Reader(state)
        for uid in changed:
            self._renew(uid, reader)
            yield
        self._seen = now
        for uid in list(self._slotted):
            if state.ledger.slot_of(uid) is None:
                self._slotted.discard(uid)
                self._enter(uid)
            yield
        yield from self._renew_slots()

    def _renew_slots(self) -> Generator[None, None, None]:
        """Take note of slots that were kept elsewhere, such as in the room of victims."""
        ledger = self._state.ledger
        now, changed = ledger.changes.now, ledger.changes.since(self._ledger_seen)
        for name in list(ledger.nodes()) if changed is None else changed:
            for _, slot in ledger.slots_on(name):
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

    def firsts(self) -> list[tuple[Place, Hashable]]:
        """Return each shape with the place of its first pod without a slot."""
        return [(queue[0], shape) for shape, queue in self._queues.items()]

    def first(self, shape: Hashable) -> Place | None:
        queue = self._queues.get(shape)
        return queue[0] if queue else None

    def pod(self, uid: str) -> Pod | None:
        """Return a pod as it is now; None if it does not wait for us any more."""
        record = self._state.pods.gated.get(uid)
        pod = record.pod if record is not None else None
        if pod is None or pod.metadata.deletion_timestamp or not pod.waits_for_admission:
            return None
        return pod if self._state.groups.of(uid) is None else None

    def took_slot(self, uid: str) -> None:
        self._leave(uid)
        self._slotted.add(uid)

    def _renew(self, uid: str, reader: Reader) -> None:
        before, now = self._known.get(uid), self._described(uid, reader)
        if before == now:
            return
        if before is not None:
            self._leave(uid)
            self._slotted.discard(uid)
            del self._known[uid]
        if now is None:
            return
        self._known[uid] = now
        if self._state.ledger.slot_of(uid) is None:
            self._enter(uid)
        else:
            self._slotted.add(uid)

    def _described(self, uid: str, reader: Reader) -> tuple[Hashable, Place] | None:
        pod = self.pod(uid)
        if pod is None:
            return None
        try:
            shape = reader.shape_of(pod).key
        except RequestError:
            return None  # explain says why
        return shape, (-pod.priority, pod.metadata.creation_timestamp or "", uid)

    def _enter(self, uid: str) -> None:
        shape, place = self._known[uid]
        insort(self._queues.setdefault(shape, []), place)
        self.entered += 1

    def _leave(self, uid: str) -> None:
        shape, place = self._known[uid]
        queue = self._queues.get(shape)
        if queue is None:
            return
        at = bisect_left(queue, place)
        if at < len(queue) and queue[at] == place:
            del queue[at]
        if not queue:
            del self._queues[shape]
