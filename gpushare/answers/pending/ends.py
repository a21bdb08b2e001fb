"""Find the pods whose end makes room for a Pending pod, and name a few of them (pure)."""

import heapq
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

import msgspec

from gpushare.cards.model import Share
from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import MILLI, PODS, Amounts, requests_of
from gpushare.placement.node_resources import insufficient
from gpushare.placement.room import NodeRoom
from gpushare.placement.trial import World

ENDS_NAMED: Final = 5
SEARCHED: Final = 50  # nodes on which several pods have to end together
EXAMINED: Final = 500  # pods whose end may make room, where each has to be examined by itself
_FEWEST: Final = 2  # pods that have to end together, if no single one is enough


class Holders(World, Protocol):
    """The known state of the cluster, with the pods in it."""

    def pod(self, uid: str) -> Pod | None:
        """Return a live pod that names our resources."""


class Ending(msgspec.Struct, rename="camel", omit_defaults=True):
    """A pod whose end makes room; the names are empty if the caller may not see its namespace.

    ``lower``: kube-scheduler may evict it for the pod in question. ``updated``: the pod in question
    is to replace it in an update of their Deployment, which ends it only when that pod is Ready.
    """

    namespace: str
    name: str
    units: int
    priority: int
    terminating: bool = False
    lower: bool = False
    updated: bool = False


@dataclass(slots=True)
class Ends:
    """At most ENDS_NAMED of ``count`` pods: any one of them, or if ``together`` all have to end.

    ``more``: there may be more, because not all were examined.
    """

    named: list[Ending] = field(default_factory=list)
    count: int = 0
    together: bool = False
    more: bool = False


def find_ends(
    known: Holders, pod: Pod, units: int, rooms: list[NodeRoom]
) -> Generator[None, None, Ends]:
    """Return the pods of which any one makes room by its end; else few that do so together.

    ``units`` are needed of each GPU. ``rooms`` are the nodes whose GPUs are large enough and take
    new pods.
    """
    search = _Search(known, pod, units)
    yield from search.one(rooms)
    if not search.found.count:
        yield from search.several(rooms)
    return search.found


_Candidate = tuple[Share, NodeRoom | None]  # with the room if its end may not be enough


class _Search:
    def __init__(self, known: Holders, pod: Pod, units: int) -> None:
        self._known, self._pod, self._units = known, pod, units
        self._asked: Amounts = requests_of(pod)
        self.found = Ends()

    def one(self, rooms: list[NodeRoom]) -> Generator[None, None, None]:
        """Find the pods of which any one makes room by its end, and name a few.

        Pods that are being deleted are looked at first, then those of the pod's own namespace.
        """
        found, budget = self.found, EXAMINED
        number, candidates = yield from self._candidates(rooms)
        ends: list[Ending] = []
        for share, short in candidates:
            yield
            if short is not None and not budget:
                found.more = True
            elif short is None:
                ends.append(self._ending(share))
            else:
                budget -= 1
                if self._is_enough(short, [share]):
                    ends.append(self._ending(share))
                    number += 1
        named = heapq.nsmallest(ENDS_NAMED, ends, key=_likelihood)
        own = [each for each in ends if each.namespace == self._pod.metadata.namespace]
        if own and not any(each.namespace == own[0].namespace for each in named):
            named[-1:] = [min(own, key=_likelihood)]  # the one that its owner may see
        found.named, found.count = named, number

    def _candidates(
        self, rooms: list[NodeRoom]
    ) -> Generator[None, None, tuple[int, Iterable[_Candidate]]]:
        """Count the pods whose end is enough for certain; return these and others, likely first."""
        number = 0
        likely: tuple[list[_Candidate], ...] = ([], [], [])
        for room in rooms:
            yield
            alone: Iterable[Share] = room.ends.alone(self._units)
            left = room.left(self._known, self._pod)
            is_short = self._is_short(left)
            if not is_short:
                missing = self._asked.get(RESOURCE_MEMORY, 0) - left.get(RESOURCE_MEMORY, 0)
                alone = [share for share in alone if share.units_in_all * MILLI >= missing]
                number += len(alone)
            for share in alone:
                rank = self._rank(share)
                if len(likely[rank]) < EXAMINED:
                    likely[rank].append((share, room if is_short else None))
                elif is_short:
                    self.found.more = True
        return number, chain(*likely)

    def _is_short(self, left: Mapping[str, int]) -> bool:
        """Return whether there is too little left of anything but GPU memory."""
        return any(name != RESOURCE_MEMORY for name in insufficient(left, self._asked))

    def _rank(self, share: Share) -> int:
        holder = self._known.pod(share.pod_uid)
        if holder is not None and holder.metadata.deletion_timestamp is not None:
            return 0
        return 1 if share.namespace == self._pod.metadata.namespace else 2

    def several(self, rooms: list[NodeRoom]) -> Generator[None, None, None]:
        """Find few pods that make room if they all end, on the nodes with the most free."""
        found = self.found
        best: list[Share] | None = None
        for room in heapq.nlargest(SEARCHED, rooms, key=lambda room: room.free):
            yield
            shares = room.ends.fewest(self._units)
            if shares is None or not self._is_enough(room, shares):
                continue
            if best is None or len(shares) < len(best):
                best = shares
            if len(best) <= _FEWEST:
                break
        if best is not None:
            ends = sorted([self._ending(share) for share in best], key=_likelihood)
            found.named, found.count, found.together = ends[:ENDS_NAMED], len(ends), True
            found.more = False

    def _ending(self, share: Share) -> Ending:
        pod, holder = self._pod, self._known.pod(share.pod_uid)
        priority = holder.priority if holder is not None else 0
        return Ending(
            share.namespace,
            share.name,
            share.units,
            priority,
            holder is not None and holder.metadata.deletion_timestamp is not None,
            priority < pod.priority and pod.spec.preemption_policy != "Never",
            holder is not None and _is_update(pod, holder),
        )

    def _is_enough(self, room: NodeRoom, ended: list[Share]) -> bool:
        """Return whether the node's other resources suffice once these shares have ended."""
        left = room.left(self._known, self._pod)
        missing = insufficient(left, self._asked)
        if not missing:
            return True
        left = dict(left)
        for share in ended:
            holder = self._known.pod(share.pod_uid)
            if holder is None:
                continue
            try:
                freed = requests_of(holder)
            except RequestError:
                freed = {PODS: MILLI}  # as free_resources counts it
            for name in left.keys() & freed.keys():
                left[name] += freed[name]
        return not insufficient(left, self._asked)


def _is_update(new: Pod, old: Pod) -> bool:
    is_same = new.metadata.namespace == old.metadata.namespace and new.deployment == old.deployment
    return bool(new.deployment) and is_same and new.controller_uid != old.controller_uid


def _likelihood(pod: Ending) -> tuple[bool, bool, int, str, str]:
    """Return a key that sorts first the pods that are likely to end soon, then small ones."""
    return not pod.terminating, not pod.lower, pod.units, pod.namespace, pod.name
