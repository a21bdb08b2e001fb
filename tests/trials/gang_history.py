"""When the members of each gang were bound, from a recorded watch of all pods."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.contract import ANNOTATION_GANG_ZONE, LABEL_GANG, LABEL_GANG_MINIMUM
from localcluster.cluster import Cluster
from tests.cluster.history import Change, History
from tests.trials.cards_over_time import wrong_moments

_EVICTED: Final = "DisruptionTarget"  # the condition of a pod that the API has evicted


@dataclass
class Gang:
    """Times are of ``time.monotonic``, when the watch showed it; infinite if it never did.

    ``bound`` has the uids of the members that are bound now; ``most`` is their largest number.
    ``zones`` are those of all members ever bound, if the gang has to be in one zone.
    """

    minimum: int
    bound: set[str] = field(default_factory=set)
    zones: set[str] = field(default_factory=set)
    most: int = 0
    begun_at: float = math.inf
    whole_at: float = math.inf

    @property
    def is_whole(self) -> bool:
        """Return whether the minimum was bound at one time."""
        return self.whole_at < math.inf

    @property
    def is_partial(self) -> bool:
        return bool(self.bound) and not self.is_whole


class GangHistory(History):
    """All gangs by name, and which pods were evicted.

    ``sizes`` are the units of each GPU, ``zones`` the zones of the nodes that have one.
    """

    def __init__(
        self, cluster: Cluster, sizes: Mapping[str, int], zones: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(cluster)
        self._sizes, self._zones = sizes, zones or {}
        self._gangs: dict[str, Gang] = {}
        self._finished: set[str] = set()
        self._lost: list[str] = []
        self._judged = 0
        self._there: dict[str, Change] = {}  # by uid, the last change of each pod

    def listed(self, found: list[Change]) -> None:
        """Take note of all pods; if the watch was cut off, also of deletions in the meantime."""
        left = {change.uid for change in found}
        gone = [change for uid, change in self._there.items() if uid not in left]
        for change in (*(Change("DELETED", each.pod) for each in gone), *found):
            self.changed(change)

    def changed(self, change: Change) -> None:
        super().changed(change)
        if change.kind == "DELETED":
            self._there.pop(change.uid, None)
        else:
            self._there[change.uid] = change
        labels: dict[str, str] = change.pod["metadata"].get("labels", {})
        if (name := labels.get(LABEL_GANG, "")) == "":
            return
        gang = self._gangs.setdefault(name, Gang(int(labels[LABEL_GANG_MINIMUM])))
        if change.kind == "DELETED":
            gang.bound.discard(change.uid)
            if name not in self._finished:
                self._lost.append(f"{change.name} was deleted by somebody else")
        elif change.node:
            self._bound(gang, change.uid)
            self._check_zone(gang, change)
        conditions = change.pod["status"].get("conditions", ())
        if any(each["type"] == _EVICTED for each in conditions):
            self._lost.append(f"{change.name} was evicted")

    def finish(self, name: str) -> None:
        """Let the pods of a gang be deleted: from now on this is no eviction."""
        self._finished.add(name)

    def is_finished(self, name: str) -> bool:
        """Return whether the pods of a gang may be deleted."""
        return name in self._finished

    def gang(self, name: str) -> Gang:
        """Return what is known of a gang; its minimum is not if no member has been seen."""
        return self._gangs.get(name, Gang(0))

    def pods_left(self) -> int:
        """Return how many pods the watch has shown and not shown as deleted."""
        return len(self._there)

    def partial(self) -> dict[str, Gang]:
        """Return the gangs with fewer members bound than their minimum, which were never whole."""
        return {name: each for name, each in list(self._gangs.items()) if each.is_partial}

    def judge(self) -> list[str]:
        """Return what was wrong since the last call: GPUs over, bound without GPUs, evictions.

        No pods may be left at the time of a call: the next one begins with empty GPUs.
        """
        changes = self.changes
        fresh, self._judged = changes[self._judged :], len(changes)
        lost, self._lost = self._lost, []
        found = [*wrong_moments(fresh, self._sizes), *lost]
        try:
            self.check_bound_once_and_whole()
        except AssertionError as err:
            found.append(str(err)[:300])
        return found

    def _bound(self, gang: Gang, uid: str) -> None:
        gang.bound.add(uid)
        gang.most = max(gang.most, len(gang.bound))
        now = time.monotonic()
        gang.begun_at = min(gang.begun_at, now)
        if len(gang.bound) >= gang.minimum:
            gang.whole_at = min(gang.whole_at, now)

    def _check_zone(self, gang: Gang, change: Change) -> None:
        zone = self._zones.get(change.node, "")
        is_in_one = ANNOTATION_GANG_ZONE in change.pod["metadata"].get("annotations", {})
        if is_in_one and zone not in gang.zones:
            gang.zones.add(zone)
            if len(gang.zones) > 1:
                self._lost.append(f"{change.name} is bound in a second zone: {sorted(gang.zones)}")
