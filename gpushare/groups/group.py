"""One gang: its members, and what they and its PodGroup say together."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import GATE_ADMISSION
from gpushare.groups import reasons
from gpushare.groups.model import MOST_MEMBERS, GroupKey, PodGroup, Source
from gpushare.groups.sources import Rank, counts, minimum_of, rank, zone_key_of
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import foreign_resources
from gpushare.placement.reasons import Reason

H = TypeVar("H")

_UNSTATED: Final = {Source.LABELS: reasons.NO_MINIMUM, Source.KUEUE: reasons.NO_COUNT}


class _Statement(msgspec.Struct, gc=False, frozen=True):
    """What one member says; ``rank`` is None if it does not count.

    ``scheduler`` is the name of the one that has to place it; None if it has a node.
    """

    rank: Rank | None
    minimum: int | Reason | None
    zone_key: str | Reason
    priority: int
    scheduler: str | None
    uses_gpu: bool
    is_gated: bool
    is_plain: bool
    resources: tuple[str, ...]


class Group:
    """A gang with at least one live pod. Only ``Groups`` changes it.

    ``version`` increases with every change that may change an answer about the gang. ``bound`` and
    ``gated`` are the numbers of members that count and have a node, or our gate; ``begun`` is the
    number of those bound that request GPU memory: kube-scheduler binds the others by itself.
    ``created`` is the earliest creation timestamp that a member has had: a gang keeps its place if
    a member is replaced. ``schedulers`` counts members that count and have no node, by the name of
    their scheduler. ``unreadable`` says of which sources PodGroups cannot be read, and why.
    """

    def __init__(
        self, key: GroupKey, pod_group: PodGroup | None, unreadable: Mapping[Source, Reason]
    ) -> None:
        self.key, self.pod_group = key, pod_group
        self.version = self.bound = self.begun = self.gated = self._not_plain = self._ours = 0
        self.created = ""
        self.schedulers: Counter[str] = Counter()
        self._unreadable = unreadable
        self._members: dict[str, Pod] = {}
        self._stated: dict[str, _Statement] = {}
        self._ranks: list[Rank] = []
        self._minima: Counter[int | Reason] = Counter()
        self._zone_keys: Counter[str | Reason] = Counter()
        self._priorities: Counter[int] = Counter()
        self._resources: Counter[str] = Counter()

    @property
    def members(self) -> Mapping[str, Pod]:
        """Return all live pods of the gang by uid, also those that do not count."""
        return self._members

    @property
    def count(self) -> int:
        """Return how many members count; unlike ``present``, in constant time."""
        return len(self._ranks)

    def present(self) -> list[Pod]:
        """Return the members that count, bound or not: the most important first, then the oldest.

        Those do not count that are being deleted, or that have a scheduling gate of others.
        """
        return [self._members[each[-1]] for each in self._ranks]

    def foreign_gates(self) -> Counter[str]:
        """Return how many pods do not count because of a scheduling gate, by its name."""
        if len(self._ranks) == len(self._members):
            return Counter()
        waiting = (each for each in self._members.values() if each.has_foreign_gate)
        return Counter(name for pod in waiting for name in pod.gates if name != GATE_ADMISSION)

    @property
    def is_ending(self) -> bool:
        """Return whether members are bound, and all pods of the gang are being deleted."""
        if self._ranks:
            return False
        pods = self._members.values()
        is_deleted = all(pod.metadata.deletion_timestamp for pod in pods)
        return is_deleted and any(pod.node for pod in pods)

    @property
    def is_plain(self) -> bool:
        """Return whether gpushare evaluates all rules by which members are rejected on nodes."""
        return not self._not_plain

    @property
    def foreign_resources(self) -> Collection[str]:
        """Return the foreign resources that members name."""
        return self._resources.keys()

    @property
    def is_ours(self) -> bool:
        """Return whether a live pod requests GPU memory, or has our gate.

        All others are placed by kube-scheduler, Kueue and the like without gpushare.
        """
        return self._ours > 0

    @property
    def problem(self) -> Reason | None:
        """Return why no member may be placed, as long as that does not change."""
        if self.count > MOST_MEMBERS:
            return reasons.TOO_MANY
        if self.key.source in _UNSTATED:
            why = self._stated_problem()
        elif self.pod_group is None:
            why = self._unreadable.get(self.key.source) or reasons.NO_POD_GROUP
        else:
            why = reasons.WRONG_POD_GROUP if self.pod_group.minimum is None else None
        return why or self._zone_problem()

    @property
    def minimum(self) -> int:
        """Return how many members are needed: of a gang whose members disagree, the largest number.

        Return 1 if that is unknown (see ``problem``).
        """
        if self.pod_group is not None and self.pod_group.minimum is not None:
            return self.pod_group.minimum
        return max((each for each in self._minima if isinstance(each, int)), default=1)

    @property
    def priority(self) -> int:
        """Return the lowest priority of the members that count, and of the PodGroup if it has one.

        A quota for a PriorityClass counts pods, so a PodGroup cannot make them more important.
        """
        lowest = min(self._priorities, default=0)
        stated = self.pod_group.priority if self.pod_group is not None else None
        return lowest if stated is None else min(stated, lowest)

    @property
    def zone_key(self) -> str:
        """Return the node label whose value all members must share; empty if there is none."""
        if self.pod_group is not None and self.pod_group.zone_key:
            return self.pod_group.zone_key
        return next((each for each in self._zone_keys if isinstance(each, str)), "")

    @property
    def complete_seconds(self) -> float | None:
        """Return the time that the PodGroup gives a started gang to become whole, if it does."""
        return None if self.pod_group is None else self.pod_group.timeout_seconds

    def put(self, pod: Pod) -> bool:
        """Add a member or its new version; return whether the gang is another one by it."""
        before, uid = self._members.get(pod.uid), pod.uid
        self._members[uid] = pod
        if before is not None and before.spec == pod.spec and before.metadata == pod.metadata:
            return False
        created = pod.metadata.creation_timestamp or ""
        self.created = min(self.created or created, created)
        stated = _statement(pod, self.key.source)
        was = self._stated.get(uid)
        if was != stated:
            self._retract(was)
            self._stated[uid] = stated
            self._count(stated)
        return was != stated or before is None or _asks_otherwise(before, pod)

    def drop(self, uid: str) -> None:
        del self._members[uid]
        self._retract(self._stated.pop(uid))

    def _count(self, stated: _Statement) -> None:
        self._ours += stated.uses_gpu or stated.is_gated
        if stated.rank is None:
            return
        insort(self._ranks, stated.rank)
        self._add(stated, 1)
        self._priorities[stated.priority] += 1
        if stated.minimum is not None:
            self._minima[stated.minimum] += 1
        if stated.zone_key:
            self._zone_keys[stated.zone_key] += 1

    def _retract(self, stated: _Statement | None) -> None:
        if stated is None:
            return
        self._ours -= stated.uses_gpu or stated.is_gated
        if stated.rank is None:
            return
        del self._ranks[bisect_left(self._ranks, stated.rank)]
        self._add(stated, -1)
        _take(self._priorities, stated.priority)
        if stated.minimum is not None:
            _take(self._minima, stated.minimum)
        if stated.zone_key:
            _take(self._zone_keys, stated.zone_key)

    def _add(self, stated: _Statement, by: int) -> None:
        if stated.scheduler is None:
            self.bound += by
            self.begun += by * stated.uses_gpu
        else:
            self.schedulers[stated.scheduler] += by
            if not self.schedulers[stated.scheduler]:
                del self.schedulers[stated.scheduler]
        self.gated += by * stated.is_gated
        self._not_plain += by * (not stated.is_plain)
        for name in stated.resources:
            _take(self._resources, name, -by)

    def _stated_problem(self) -> Reason | None:
        if not self._ranks:
            return None
        wrong = next((each for each in self._minima if isinstance(each, Reason)), None)
        return wrong or (None if self._minima else _UNSTATED[self.key.source])

    def _zone_problem(self) -> Reason | None:
        wrong = next((each for each in self._zone_keys if isinstance(each, Reason)), None)
        named = {each for each in self._zone_keys if isinstance(each, str)}
        if self.pod_group is not None and self.pod_group.zone_key:
            named.add(self.pod_group.zone_key)
        return wrong or (reasons.TWO_ZONES if len(named) > 1 else None)


def _statement(pod: Pod, source: Source) -> _Statement:
    ranked = rank(pod) if counts(pod) else None
    return _Statement(
        ranked,
        minimum_of(pod, source),
        zone_key_of(pod),
        pod.priority,
        None if pod.node else pod.spec.scheduler_name or "",
        asks_for_share(pod),
        pod.has_our_gate,
        pod.is_plain,
        foreign_resources(pod),
    )


def _asks_otherwise(before: Pod, after: Pod) -> bool:
    """Return whether a planner may answer otherwise for a new version of a pod."""
    if before.spec != after.spec or before.labels != after.labels:
        return True
    return before.annotations != after.annotations or before.excess != after.excess


def _take(counted: Counter[H], value: H, number: int = 1) -> None:
    counted[value] -= number
    if not counted[value]:
        del counted[value]
