"""Find the pod that the kubelet is admitting: Allocate itself does not name it (pure).

The facts used here were measured on a real kubelet (docs/dev/decisions.md):

* The kubelet adds one pod to its ``/pods`` and admits it before it adds the next. The pod being
  admitted is therefore listed, with no start time and no container status, and a pod that was not
  listed at the previous Allocate is one whose admission began after it.
* It calls Allocate for a pod's init containers in order, then for its containers, and writes its
  checkpoint in between. Pods that it has just rejected look the same until their status returns
  through the API server; they can only be *older* arrivals.
* It admits pods that arrive together in the order of creation. The time of binding is no help: the
  earliest bound pod was the wrong one in 48 of 50 Allocates of a batch.
"""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deviceplugin.errors import NoMatch
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.contract import ANNOTATION_ASSUME_TIME, ANNOTATION_SEEN, RESOURCE_MEMORY

# When the kubelet first saw the pod; it writes this only to its own copy.
SAME_ARRIVAL_NS: Final = 5_000_000
_SHOWN_MISSES: Final = 3
# Stands for the container that is meant of a pod whose containers cannot be read.
UNREAD: Final = "?"

# A uid with the time at which the kubelet saw the pod: a restarted kubelet sees all pods again.
Arrival = tuple[str, str]


class How(StrEnum):
    """How a pod was found, from the most certain on."""

    CONTINUED = "continued"
    ONLY = "only"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Admission:
    """The state between one Allocate and the next; ``known`` are the arrivals seen so far."""

    arrival: Arrival
    served: frozenset[str]
    known: frozenset[Arrival]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod, and its first container without devices."""

    pod: NodePod
    container: str
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Match:
    """The pod whose container gets the devices; ``candidates`` are all pods that may be meant."""

    pod: NodePod
    container: str
    how: How
    candidates: tuple[Candidate, ...]
    admission: Admission


def find(
    pods: Sequence[NodePod],
    holders: Mapping[str, Collection[str]],
    units: int,
    before: Admission | None,
) -> Match:
    """Return the pod for whose next container the kubelet wants ``units`` units now.

    A pod whose amounts cannot be read may be meant by any number of units, until it has devices.
    ``pods`` is the kubelet's own list. ``holders`` are the containers, by pod uid, that have
    devices in its checkpoint. ``before`` is the admission of the previous match. Raises NoMatch,
    which names what was looked for and the nearest misses.
    """
    misses: list[str] = []
    candidates = []
    known = set()
    for pod in pods:
        arrival = pod.metadata.uid, (pod.metadata.annotations or {}).get(ANNOTATION_SEEN, "")
        known.add(arrival)
        served = set(holders.get(arrival[0], ()))
        if before is not None and arrival == before.arrival:
            served |= before.served
        container = _next_container(pod, served, units, misses)
        if container:
            candidates.append(Candidate(pod, container, arrival))
    if not candidates:
        nearest = "; ".join(misses[:_SHOWN_MISSES]) or "none requests any"
        raise NoMatch(
            f"no pod of this node waits for {units} units of {RESOURCE_MEMORY}: "
            f"{len(pods)} pods checked; nearest: {nearest}"
        )
    chosen, how = _choose(candidates, before)
    is_same = before is not None and chosen.arrival == before.arrival
    served_now = before.served if before is not None and is_same else frozenset()
    return Match(
        chosen.pod,
        chosen.container,
        how,
        tuple(candidates),
        Admission(chosen.arrival, served_now | {chosen.container}, frozenset(known)),
    )


def _next_container(pod: NodePod, served: set[str], units: int, misses: list[str]) -> str:
    """Return the pod's container that waits for ``units``; else empty, with the miss noted."""
    status = pod.status
    if not pod.asks or pod.is_terminal:
        return ""
    if status.start_time or status.container_statuses or status.init_container_statuses:
        return ""
    if pod.asked is None:
        # It is refused at its first container, so one that has devices is not being admitted.
        misses.append(f"{pod.key} is invalid: {pod.fault}")
        return "" if served else UNREAD
    for container in pod.asked:
        if container.name in served:
            continue
        if container.units == units:
            return container.name
        misses.append(f"{pod.key} waits for {container.units} in container {container.name}")
        return ""
    misses.append(f"{pod.key} has all its devices")
    return ""


def _choose(candidates: Sequence[Candidate], before: Admission | None) -> tuple[Candidate, How]:
    newcomers: Sequence[Candidate] = ()
    if before is not None:
        newcomers = [each for each in candidates if each.arrival not in before.known]
        for candidate in candidates:
            if not newcomers and candidate.arrival == before.arrival:
                return candidate, How.CONTINUED
    among = newcomers or candidates
    if len(among) == 1:
        return among[0], How.ONLY
    return _newest(among), How.NEWEST


def _newest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the newest arrival, and of several the last created.

    A pod that is being deleted ranks last. The assume time decides only where nothing else does.
    """
    alive = [c for c in candidates if c.pod.metadata.deletion_timestamp is None] or candidates
    latest = max(_seen_ns(candidate.arrival) for candidate in alive)
    group = [c for c in alive if latest - _seen_ns(c.arrival) <= SAME_ARRIVAL_NS]
    return max(
        group,
        key=lambda c: (
            c.pod.metadata.creation_timestamp or "",
            c.pod.asked is not None,
            _whole(c.pod.annotations.get(ANNOTATION_ASSUME_TIME, "")),
            c.pod.uid,
        ),
    )


def _seen_ns(arrival: Arrival) -> int:
    """Nanoseconds since the epoch; 0 without a timestamp, which leaves the order to creation."""
    head, _, tail = arrival[1].partition(".")
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
