"""Which pods were evicted, by whom and when, from a recorded watch; and the end of deleted pods."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_EVICTING, LABEL_GANG, LABEL_GANG_MINIMUM
from localcluster.cluster import Cluster
from tests.cluster.history import Change, History
from tests.trials.cards_over_time import asked, wrong_moments
from tests.trials.pod_ends import PodEnds

BY_SCHEDULER: Final = "PreemptionByScheduler"
BY_EXTENDER: Final = "EvictionByEvictionAPI"
_EVICTED: Final = "DisruptionTarget"


@dataclass
class Seen:
    """A pod. Times are of ``time.monotonic``, when the watch showed it; infinite if it never did.

    ``by`` is who has evicted it, ``hinted`` are the beginnings of the uids of all victims that it
    ever named.
    """

    name: str
    uid: str
    priority: int
    units: int
    gang: str
    minimum: int
    cards: tuple[str, ...] = ()
    by: str = ""
    hinted: set[str] = field(default_factory=set)
    bound_at: float = math.inf
    evicted_at: float = math.inf
    gone_at: float = math.inf
    is_ending: bool = False
    is_gated: bool = False

    @property
    def is_bound(self) -> bool:
        return self.bound_at < math.inf

    @property
    def is_gone(self) -> bool:
        return self.gone_at < math.inf


class EvictionHistory(History):
    """All pods by uid. It ends deleted pods after their grace period, as their kubelets would.

    ``sizes`` are the units of each GPU.
    """

    def __init__(self, cluster: Cluster, sizes: Mapping[str, int]) -> None:
        super().__init__(cluster)
        self.sizes = sizes
        self.pods: dict[str, Seen] = {}
        self._judged = 0
        self._ends = PodEnds(cluster)

    def __enter__(self) -> Self:
        super().__enter__()
        self._ends.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.__exit__()
        super().__exit__()

    def listed(self, found: list[Change]) -> None:
        """Take note of all pods; if the watch was cut off, also of deletions in the meantime."""
        left = {change.uid for change in found}
        now = time.monotonic()
        for seen in list(self.pods.values()):
            if seen.uid not in left and not seen.is_gone:
                seen.gone_at = now
        for change in found:
            self.changed(change)

    def changed(self, change: Change) -> None:
        super().changed(change)
        now, meta = time.monotonic(), change.pod["metadata"]
        seen = self.pods.get(change.uid)
        if seen is None:
            seen = self.pods[change.uid] = _seen(change)
        seen.is_gated = bool(change.pod["spec"].get("schedulingGates"))
        hint = change.annotations.get(ANNOTATION_EVICTING, "")
        seen.hinted |= set(filter(None, hint.split(",")))
        if change.node:
            seen.bound_at = min(seen.bound_at, now)
            seen.cards = tuple(change.annotations.get(ANNOTATION_CARDS, "").split(","))
        for each in change.pod["status"].get("conditions", ()):
            if each["type"] == _EVICTED and not seen.by:
                seen.by, seen.evicted_at = each["reason"], now
        if change.kind == "DELETED":
            seen.gone_at = min(seen.gone_at, now)
        elif meta.get("deletionTimestamp") and not seen.is_ending:
            seen.is_ending = True
            self._ends.end_later(change.pod)

    def named(self, name: str) -> Seen | None:
        """Return the last pod of a name."""
        found = [each for each in list(self.pods.values()) if each.name == name]
        return found[-1] if found else None

    def evicted(self) -> list[Seen]:
        return [each for each in list(self.pods.values()) if each.by]

    def present(self) -> list[Seen]:
        return [each for each in list(self.pods.values()) if not each.is_gone]

    def begin(self) -> None:
        """Forget the pods that are gone."""
        self.pods = {uid: each for uid, each in self.pods.items() if not each.is_gone}

    def judge(self) -> list[str]:
        """Return what was wrong since the last call: GPUs over, and pods bound without GPUs.

        No pods may be left at the time of a call: the next one begins with empty GPUs.
        """
        changes = self.changes
        fresh, self._judged = changes[self._judged :], len(changes)
        found = [*wrong_moments(fresh, self.sizes), *self._ends.wrong]
        self._ends.wrong.clear()
        try:
            self.check_bound_once_and_whole()
        except AssertionError as err:
            found.append(str(err)[:300])
        return found


def _seen(change: Change) -> Seen:
    labels = change.pod["metadata"].get("labels", {})
    return Seen(
        change.name,
        change.uid,
        change.pod["spec"].get("priority", 0),
        asked(change),
        labels.get(LABEL_GANG, ""),
        int(labels.get(LABEL_GANG_MINIMUM, 0)),
    )
