"""Tells which pod a call of the kubelet belongs to: Allocate itself does not say (pure).

What is used, all measured on a real kubelet (docs/decisions.md):

* The kubelet adds one pod to its ``/pods`` and admits it before it adds the next. So the pod that
  is being admitted is there, with no start time and no container status, and a pod that was not
  there at the Allocate before is one whose admission began after it.
* It calls Allocate for a pod's init containers in order, then its containers, and writes its
  checkpoint in between. Pods that it has just rejected look the same until their status has come
  back through the API server; they can only be *older* arrivals.
* It admits what arrives together in the order of creation. The time of binding says nothing: the
  earliest bound pod was the wrong one in 48 of 50 Allocates of a batch.
"""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deviceplugin.errors import NoMatch
from gpushare.annotations.pod_annotations import asks_for_share, containers_of
from gpushare.contract import ANNOTATION_ASSUME_TIME, ANNOTATION_SEEN, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.objects.model import Pod

# When the kubelet first saw the pod; it writes this on its own copy only.
SAME_ARRIVAL_NS: Final = 5_000_000
_SHOWN_MISSES: Final = 3


class How(StrEnum):
    """How a pod was found, from the surest on."""

    CONTINUED = "continued"
    ONLY = "only"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Admission:
    """What is remembered from one Allocate to the next.

    ``known`` are the arrivals that the kubelet had by then. An arrival is a uid with the time at
    which the kubelet saw it, so a restarted kubelet, which sees all pods anew, resets this.
    """

    arrival: tuple[str, str]
    served: frozenset[str]
    known: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod, and the container of it that devices would be for: the first without any."""

    pod: Pod
    container: str

    @property
    def arrival(self) -> tuple[str, str]:
        return _arrival(self.pod)


@dataclass(frozen=True, slots=True)
class Match:
    """``pod`` waits for devices for ``container``; ``candidates`` are all that could be meant."""

    pod: Pod
    container: str
    how: How
    candidates: tuple[Candidate, ...]
    admission: Admission


def find(
    pods: Sequence[Pod],
    holders: Mapping[str, Collection[str]],
    units: int,
    before: Admission | None,
) -> Match:
    """The pod for whose next container the kubelet wants ``units`` units now.

    ``pods`` is the kubelet's own list, ``holders`` says which containers of which pod uid have
    devices in its checkpoint, ``before`` is the admission of the last match. Raises NoMatch with
    what was looked for and the nearest misses.
    """
    misses: list[str] = []
    candidates = []
    for pod in pods:
        found = _waiting(pod, holders, units, before, misses)
        if found is not None:
            candidates.append(found)
    if not candidates:
        raise NoMatch(_no_match(units, pods, misses))
    chosen, how = _choose(candidates, before)
    is_same = before is not None and chosen.arrival == before.arrival
    served = before.served if before is not None and is_same else frozenset()
    known = frozenset(_arrival(pod) for pod in pods)
    return Match(
        chosen.pod,
        chosen.container,
        how,
        tuple(candidates),
        Admission(chosen.arrival, served | {chosen.container}, known),
    )


def _waiting(
    pod: Pod,
    holders: Mapping[str, Collection[str]],
    units: int,
    before: Admission | None,
    misses: list[str],
) -> Candidate | None:
    if not asks_for_share(pod) or pod.is_terminal:
        return None
    if pod.status.start_time or pod.status.container_statuses or pod.status.init_container_statuses:
        return None
    try:
        wanted = [container for container in containers_of(pod) if container.units]
    except RequestError as err:
        misses.append(f"{pod.key} cannot be read: {err}")
        return None
    served = set(holders.get(pod.uid, ()))
    if before is not None and _arrival(pod) == before.arrival:
        served |= before.served
    unserved = next((container for container in wanted if container.name not in served), None)
    if unserved is None:
        misses.append(f"{pod.key} has all its devices")
    elif unserved.units != units:
        misses.append(f"{pod.key} waits for {unserved.units} in container {unserved.name}")
    else:
        return Candidate(pod, unserved.name)
    return None


def _choose(candidates: Sequence[Candidate], before: Admission | None) -> tuple[Candidate, How]:
    newcomers = [c for c in candidates if before is not None and c.arrival not in before.known]
    if not newcomers and before is not None:
        for candidate in candidates:
            if candidate.arrival == before.arrival:
                return candidate, How.CONTINUED
    among = newcomers or candidates
    if len(among) == 1:
        return among[0], How.ONLY
    return _newest(among), How.NEWEST


def _newest(candidates: Sequence[Candidate]) -> Candidate:
    """The newest arrival, in it the last created; being deleted ranks last, assume time decides
    only what nothing else does.
    """
    alive = [c for c in candidates if c.pod.metadata.deletion_timestamp is None] or candidates
    latest = max(_seen_ns(candidate.pod) for candidate in alive)
    group = [c for c in alive if latest - _seen_ns(c.pod) <= SAME_ARRIVAL_NS]
    return max(
        group,
        key=lambda c: (
            c.pod.metadata.creation_timestamp or "",
            _whole(c.pod.annotations.get(ANNOTATION_ASSUME_TIME, "")),
            c.pod.uid,
        ),
    )


def _arrival(pod: Pod) -> tuple[str, str]:
    return pod.uid, pod.annotations.get(ANNOTATION_SEEN, "")


def _seen_ns(pod: Pod) -> int:
    """Nanoseconds since the epoch; 0 without a stamp, which leaves the order to creation."""
    head, _, tail = pod.annotations.get(ANNOTATION_SEEN, "").partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    zone = tail[digits:]
    try:
        whole = dt.datetime.fromisoformat(head + zone if digits else head)
    except ValueError:
        return 0
    if whole.tzinfo is None:
        return 0
    seconds = round(whole.timestamp())
    return seconds * 1_000_000_000 + _whole(tail[:digits].ljust(9, "0")[:9])


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 32 else 0  # noqa: PLR2004


def _no_match(units: int, pods: Sequence[Pod], misses: Sequence[str]) -> str:
    nearest = "; ".join(misses[:_SHOWN_MISSES]) or "none asks for it"
    return (
        f"no pod of this node waits for {units} units of {RESOURCE_MEMORY}: "
        f"{len(pods)} pods looked at; nearest: {nearest}"
    )
