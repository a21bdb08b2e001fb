"""What each namespace used at each moment, from a recorded watch; and the end of deleted pods."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from gpushare.contract import (
    ANNOTATION_CARDS,
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
    LABEL_GANG,
    LABEL_GANG_MINIMUM,
)
from localcluster.cluster import Cluster
from tests.cluster.gated import gates_of
from tests.cluster.history import Change, History
from tests.trials.cards_over_time import asked, wrong_moments
from tests.trials.pod_ends import PodEnds

_EVICTED: Final = "DisruptionTarget"


@dataclass
class Seen:
    """A pod. Times are of ``time.monotonic``, when the watch showed it; infinite if it never did.

    ``gone_at`` is when it used nothing any more: it was deleted, or its phase said that it ended.
    """

    namespace: str
    name: str
    uid: str
    units: int
    gang: str
    minimum: int
    created_at: float
    card_count: int = 1
    cards: tuple[str, ...] = ()
    is_gated: bool = False
    was_gated: bool = False
    bound_at: float = math.inf
    gone_at: float = math.inf
    is_ending: bool = False
    is_deleted: bool = False

    @property
    def is_bound(self) -> bool:
        return self.bound_at < math.inf

    @property
    def is_gone(self) -> bool:
        return self.gone_at < math.inf

    @property
    def is_waiting(self) -> bool:
        return not (self.is_bound or self.is_gone or self.is_ending)


@dataclass(frozen=True)
class Moment:
    """A pod begins or ceases to use GPUs, at a revision of the API server."""

    revision: int
    pod: Seen
    is_binding: bool


@dataclass
class QueueHistory(History):
    """All pods of all namespaces by uid. It ends deleted pods as their kubelets would.

    ``sizes`` are the units of each GPU.
    """

    cluster: Cluster
    sizes: Mapping[str, int]
    pods: dict[str, Seen] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.cluster)
        self._judged = 0
        self._ends = PodEnds(self.cluster)

    def __enter__(self) -> Self:
        super().__enter__()
        self._ends.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.__exit__()
        super().__exit__()

    def listed(self, found: list[Change]) -> None:
        """Take note of all pods. A watch that was cut off has hidden the order of what happened."""
        if self.pods:
            self.wrong.append("the watch was cut off: what it missed is not judged")
        super().listed([])
        for change in found:
            self.changed(change)

    def changed(self, change: Change) -> None:
        super().changed(change)
        now, revision = time.monotonic(), int(change.pod["metadata"]["resourceVersion"])
        seen = self.pods.get(change.uid)
        if seen is None:
            seen = self.pods[change.uid] = _seen(change, now)
        seen.is_gated = GATE_ADMISSION in gates_of(change.pod)
        seen.was_gated |= seen.is_gated
        if change.node and not seen.is_bound:
            seen.bound_at = now
            seen.cards = tuple(change.annotations.get(ANNOTATION_CARDS, "").split(","))
            self.moments.append(Moment(revision, seen, is_binding=True))
        if change.has_ended and not seen.is_gone:
            seen.gone_at = now
            if seen.is_bound:
                self.moments.append(Moment(revision, seen, is_binding=False))
        self._check_rejected(change)
        if change.kind == "DELETED":
            seen.is_deleted = True
        elif change.pod["metadata"].get("deletionTimestamp") and not seen.is_ending:
            seen.is_ending = True
            self._ends.end_later(change.pod)

    def present(self) -> list[Seen]:
        """Return the pods that the API server still has."""
        return [each for each in list(self.pods.values()) if not each.is_deleted]

    def named(self, name: str) -> Seen | None:
        """Return the last pod of a name, in any namespace."""
        found = [each for each in list(self.pods.values()) if each.name == name]
        return found[-1] if found else None

    def gangs(self) -> dict[str, list[Seen]]:
        """Return the members of each gang that are not gone."""
        found: dict[str, list[Seen]] = {}
        for each in list(self.pods.values()):
            if each.gang and not each.is_gone:
                found.setdefault(each.gang, []).append(each)
        return found

    def used(self, namespace: str) -> int:
        """Return the units that the bound pods of a namespace use now."""
        pods = list(self.pods.values())
        own = (each for each in pods if each.namespace == namespace)
        return sum(each.units for each in own if each.is_bound and not each.is_gone)

    def begin(self) -> None:
        """Forget the pods that are gone."""
        self.pods = {uid: each for uid, each in self.pods.items() if not each.is_deleted}
        self.moments.clear()

    def judge(self) -> list[str]:
        """Return what was wrong since the last call: GPUs over, pods without GPUs, rejected pods.

        No pods may be left at the time of a call: the next one begins with empty GPUs.
        """
        changes = self.changes
        fresh, self._judged = changes[self._judged :], len(changes)
        found = [*wrong_moments(fresh, self.sizes), *self.wrong, *self._ends.wrong]
        self.wrong.clear()
        self._ends.wrong.clear()
        try:
            self.check_bound_once_and_whole()
        except AssertionError as err:
            found.append(str(err)[:300])
        return found

    def _check_rejected(self, change: Change) -> None:
        status = change.pod["status"]
        conditions = status.get("conditions", ())
        if any(each["type"] == _EVICTED for each in conditions):
            self.wrong.append(f"{change.name} was evicted")
        # The controller manager says so of a deleted pod that is in no kubelet's hands.
        is_deleted = "deletionTimestamp" in change.pod["metadata"]
        if status.get("phase") == "Failed" and not is_deleted:
            self.wrong.append(f"{change.name} failed: {status.get('reason')}")


def _seen(change: Change, now: float) -> Seen:
    meta = change.pod["metadata"]
    labels = meta.get("labels", {})
    gang = labels.get(LABEL_GANG, "")
    return Seen(
        meta["namespace"],
        change.name,
        change.uid,
        asked(change),
        f"{meta['namespace']}/{gang}" if gang else "",
        int(labels.get(LABEL_GANG_MINIMUM, 0)),
        now,
        int(labels.get(LABEL_CARD_COUNT, 1)),
    )
