"""Find the pods and gangs for which the extender may evict others now (pure)."""

from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.plans import GangPlans
from extender.decisions.gangs.stages import GangStages
from extender.decisions.pod_records import PodRecord
from extender.decisions.preemption.nominated import NominatedClaims
from extender.decisions.preemption.records import Preemptions
from gpushare.annotations.evicting_hint import hinted_victims
from gpushare.annotations.slot_hint import is_nominated
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask

QUIET_SECONDS: Final = 0.25  # after a rejection, in which kube-scheduler may preempt by itself
NOMINATED_SECONDS: Final = 2.0  # until the watch shows the nominated node of a kept proposal
_NEVER: Final = "Never"


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod, or a gang (``group``), that waits. ``hinted`` are victims of an earlier plan for it.

    ``pods`` are those that wait, the first one gets Events. ``name`` is for people. ``since`` is
    when kube-scheduler was first told that a pod fits nowhere, in seconds of a monotonic clock.
    """

    owner: str
    name: str
    priority: int
    pods: tuple[Pod, ...]
    hinted: frozenset[str]
    group: Group | None = None
    since: float = inf

    @property
    def order(self) -> tuple[int, bool, bool, str, str]:
        """Return what sorts the most urgent first; one that has begun to evict goes on first."""
        created = self.pods[0].metadata.creation_timestamp or ""
        return -self.priority, not self.hinted, self.group is None, created, self.owner


class Preemptors:
    """Pods without a gang and gangs that have no room, and may evict pods of a lower priority.

    A pod that kube-scheduler has nominated, or may preempt for now, is left to it. Members of a
    gang beyond its minimum never evict anybody.
    """

    def __init__(
        self,
        state: ClusterState,
        gangs: Gangs,
        preemptions: Preemptions,
        nominated: NominatedClaims,
        delay_seconds: float,
    ) -> None:
        self._state, self._gangs = state, gangs
        self._stages, self._plans = GangStages(gangs), GangPlans(gangs)
        self._preemptions, self._nominated = preemptions, nominated
        self._delay = max(delay_seconds, QUIET_SECONDS)
        self._since: dict[str, float] = {}  # by owner, when it was first found to wait

    @property
    def waiting(self) -> Collection[str]:
        """Return the owners that waited when it was last asked who is due."""
        return self._since.keys()

    def due(self) -> Generator[None, None, list[Preemptor]]:
        """Return those that may evict now, the most urgent first, in short steps."""
        now, waiting = self._state.clock.monotonic(), list[Preemptor]()
        for found in self._waiting():
            yield
            if found is not None:
                waiting.append(found)
        before = self._since
        self._since = {each.owner: min(before.get(each.owner, now), each.since) for each in waiting}
        due = (each for each in waiting if self._is_due(each, now))
        return sorted(due, key=lambda each: each.order)

    def begun(self) -> Generator[None, None, list[Preemptor]]:
        """Return those for which a former leader has begun to evict, the most urgent first."""
        found = []
        for each in self._waiting():
            yield
            if each is not None and each.hinted:
                found.append(each)
        return sorted(found, key=lambda each: each.order)

    def ask(self, preemptor: Preemptor) -> Ask | None:
        """Return what to plan; None if nothing is missing any more."""
        if preemptor.group is not None:
            return self._plans.ask(preemptor.group)
        return Ask(preemptor.owner, preemptor.pods, 1, cooling=self._gangs.cooling())

    def still_waits(self, uid: str) -> bool:
        """Return whether a pod has neither a node nor a slot, and is not being deleted."""
        pod = self._pod(uid)
        if pod is None or pod.node or pod.metadata.deletion_timestamp:
            return False
        return self._state.ledger.slot_of(uid) is None

    def may_claim(self, uid: str) -> bool:
        """Return whether a pod still waits, and kube-scheduler does not preempt for it now."""
        pod = self._pod(uid)
        is_left = pod is not None and not _is_left_to_others(pod) and self._is_left(uid)
        return is_left and self.still_waits(uid)

    def _pod(self, uid: str) -> Pod | None:
        pod, group = self._state.pod(uid), self._state.group_of(uid)
        return group.members.get(uid) if pod is None and group is not None else pod

    def _is_left(self, uid: str) -> bool:
        """Return whether no proposal of kube-scheduler for a pod was kept just now."""
        kept = self._nominated.proposed_at(uid)
        return self._state.clock.monotonic() - kept >= NOMINATED_SECONDS

    def _is_due(self, found: Preemptor, now: float) -> bool:
        is_left = all(self._is_left(pod.uid) for pod in found.pods)
        is_settled = now - self._since[found.owner] >= self._delay
        return is_left and (is_settled or bool(found.hinted))

    def _waiting(self) -> Iterator[Preemptor | None]:
        lowest = self._state.pods.lowest_priority
        if lowest is None:
            return
        records = (*self._state.pods.pending.values(), *self._state.pods.gated.values())
        for record in records:
            yield self._of_pod(record, lowest)
        for group in self._stages.without_plan():
            yield self._of_gang(group, lowest)

    def _of_pod(self, record: PodRecord, lowest: int) -> Preemptor | None:
        pod = record.pod
        if pod is None or pod.priority <= lowest or record.request is None:
            return None
        if self._state.group_of(pod.uid) is not None or not self._may_preempt([pod]):
            return None
        if self._preemptions.is_for(pod.uid) or not self.still_waits(pod.uid):
            return None
        is_left = pod.waits_for_admission if pod.gates else _is_rejected(record, pod)
        if not is_left or _is_left_to_others(pod):
            return None
        since = record.asked.since if record.asked is not None else inf
        name, hinted = f"pod {pod.key}", hinted_victims(pod)
        return Preemptor(pod.uid, name, pod.priority, (pod,), hinted, since=since)

    def _of_gang(self, group: Group, lowest: int) -> Preemptor | None:
        owner = str(group.key)
        if group.priority <= lowest or self._preemptions.get(owner) is not None:
            return None
        record = self._gangs.record(group)
        if record.is_whole or self._state.clock.monotonic() < record.wait_until:
            return None
        waiting = self._gangs.progress(group).waiting
        if not waiting or not self._may_preempt(waiting) or any(map(_is_left_to_others, waiting)):
            return None
        hinted = frozenset[str]().union(*map(hinted_victims, waiting))
        name = f"gang {group.key.namespace}/{group.key.name}"
        return Preemptor(owner, name, group.priority, waiting, hinted, group)

    def _may_preempt(self, pods: Iterable[Pod]) -> bool:
        return all(pod.spec.preemption_policy != _NEVER for pod in pods)


def _is_left_to_others(pod: Pod) -> bool:
    """Return whether kube-scheduler has nominated a pod: it evicts others for it."""
    return bool(pod.status.nominated_node_name) and not is_nominated(pod)


def _is_rejected(record: PodRecord, pod: Pod) -> bool:
    """Return whether kube-scheduler has tried the pod, and found no node."""
    if record.asked is not None:
        return bool(record.asked.reasons)
    condition = pod.condition("PodScheduled")
    return condition is not None and condition.reason == "Unschedulable"
