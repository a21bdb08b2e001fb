"""Write why many pods are Pending, at the cost of one for all pods that are alike (pure)."""

from collections.abc import Generator, Hashable
from typing import Final

from gpushare.answers.gangs import GangView
from gpushare.answers.pending.facts import ROOM, Pending, without_names
from gpushare.answers.pending.text import Parts, joined, parts
from gpushare.answers.pending.why import Known, why_pending
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import requests_of
from gpushare.placement.rooms import NO_ROOMS, KeptRooms, Rooms, kind_of, rooms_of

MEASURED_COST: Final = 20  # of the rooms of all nodes, in sentences
SEARCH_COST: Final = 3  # of a search for several pods that have to end, in sentences


class Sentences:
    """Writes the sentences of many pods, at the cost of one for all pods that are alike.

    They have nothing that changes with time only, such as what is left of a grace period.

    They are as of the last ``renew``. After it the first pod of a kind costs 1 us for each node
    that has not changed and 0.5 ms for each other one with 8 full GPUs, and the first pod of an
    amount 10 to 70 us for each node, and 20 ms more where several pods have to end. ``kept`` are
    rooms that others use too.
    """

    def __init__(self, known: Known, kept: KeptRooms | None = None) -> None:
        self._known = known
        self._kept = kept if kept is not None else KeptRooms()
        self._current: set[Hashable] = set()
        self._found: dict[Hashable, Pending] = {}
        self._written: dict[tuple[Hashable, str | None], Parts] = {}
        self._gangs: dict[str, GangView | None] = {}  # by the uid of a member
        self._measured = 0  # kinds whose rooms were not there
        self._searched = 0  # sentences about several pods that have to end

    def renew(self) -> None:
        """Let the next sentences be as of now."""
        self._kept.renew()
        self._current.clear()
        self._found.clear()
        self._written.clear()
        self._gangs.clear()
        self._measured = self._searched = 0

    @property
    def cost(self) -> int:
        """The work since the last ``renew``, in sentences."""
        return len(self._found) + MEASURED_COST * self._measured + SEARCH_COST * self._searched

    @property
    def written(self) -> int:
        """The number of different sentences since the last ``renew``."""
        return len(self._found)

    def has(self, pod: Pod) -> bool:
        """Return whether the sentence about a pod costs nothing more."""
        return self._alike(pod) in self._found

    def of(self, pod: Pod, only: str | None = None) -> Generator[None, None, str]:
        """Return the sentence about a pod, in short steps.

        It names pods outside the namespace ``only`` if that is None. Both sentences about a pod
        cost as much as one.
        """
        found = yield from self.parts(pod, only)
        gang = self._gang(pod)
        return joined(gang.name if gang is not None else "", found)

    def parts(self, pod: Pod, only: str | None = None) -> Generator[None, None, Parts]:
        """Return the parts of the sentence, as ``of`` returns the whole."""
        alike = self._alike(pod)
        found = self._found.get(alike)
        if found is None:
            rooms = yield from self._rooms_of(pod)
            found = yield from why_pending(self._known, pod, rooms, self._gang(pod))
            self._searched += found.cause == ROOM and (found.ends_together or not found.ends_count)
            if found.evicting is not None:
                found.evicting.seconds_left = None
            self._found[alike] = found
        written = self._written.get((alike, only))
        if written is None:
            written = parts(found if only is None else without_names(found, only))
            self._written[alike, only] = written
        return written

    def _alike(self, pod: Pod) -> Hashable:
        """Return all that the sentence depends on, apart from the cluster."""
        spec, status, meta = pod.spec, pod.status, pod.metadata
        gang, slot = self._gang(pod), self._known.ledger.slot_of(pod.uid)
        facts = self._known.preemptions.of(pod.uid)
        about = gang and (gang.name, gang.phase, gang.text), facts and facts.lasting
        try:
            request = self._known.request_of(pod)
            asked = frozenset(requests_of(pod).items())
        except RequestError as err:
            return str(err), about
        return (
            about,
            slot and (slot.node, slot.cards),
            kind_of(self._known, pod, request),
            request.units,
            request.policy.node_policy,
            request.policy.card_policy,
            asked,
            spec.preemption_policy,
            spec.scheduling_gates,
            spec.scheduler_name,
            status.nominated_node_name,
            pod.condition("PodScheduled"),
            meta.deletion_timestamp is None,
            meta.namespace,
            pod.deployment,
        )

    def _gang(self, pod: Pod) -> GangView | None:
        if pod.uid not in self._gangs:
            self._gangs[pod.uid] = self._known.gangs.view_of(pod.uid)
        return self._gangs[pod.uid]

    def _rooms_of(self, pod: Pod) -> Generator[None, None, Rooms]:
        try:
            request = self._known.request_of(pod)
        except RequestError:
            return NO_ROOMS
        kind = kind_of(self._known, pod, request)
        rooms = self._kept.get(kind)
        self._measured += rooms is None
        if rooms is None or kind not in self._current:
            rooms = yield from rooms_of(self._known, pod, request, rooms or NO_ROOMS)
            self._current.add(kind)
            self._kept.put(kind, rooms)
        return rooms
