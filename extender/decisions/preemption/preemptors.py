"""Find the pods and gangs for which the extender may evict others now (pure)."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.plans import GangPlans
from extender.decisions.gangs.stages import GangStages
from extender.decisions.pod_records import PodRecord, is_unschedulable
from extender.decisions.preemption.nominated import NominatedClaims
from extender.decisions.preemption.records import Preemptions
from gpushare.annotations.evicting_hint import PART, hinted_victims
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
    def namespace(self) -> str:
        return self.pods[0].metadata.namespace

    @property
    def order(self) -> tuple[int, bool, str, str]:
        """Return what sorts the most urgent first, of equal ones gangs and then the oldest."""
        created = self.pods[0].metadata.creation_timestamp or ""
        return -self.priority, self.group is None, created, self.owner


class Preemptors:
    """Pods without a gang and gangs that have no room, and may evict pods of a lower priority.

    A pod that kube-scheduler has nominated, or may preempt for now, is left to it. So is one that
    it has not tried yet, unless a gate is the reason. Members of a gang beyond its minimum never
    evict anybody, nor do pods about which no scheduler asks the extender.
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

    def due(self) -> Generator[None, None, list[Preemptor]]:
        """Return those that may evict now, the most urgent first, in short steps."""
        lowest = self._state.pods.lowest_priority
        if lowest is None:
            return []
        now, found = self._state.clock.monotonic(), list[Preemptor]()
        for each in self._waiting(lowest):
            yield
            if each is not None:
                since = min(self._since.get(each.owner, now), each.since)
                self._since[each.owner] = since
                if now - since >= self._delay and all(map(self._is_left, each.pods)):
                    found.append(each)
        self._since = {owner: at for owner, at in self._since.items() if self.exists(owner)}
        return sorted(found, key=lambda each: each.order)

    def begun(self) -> Generator[None, None, list[Preemptor]]:
        """Return those for which a former leader has probably begun to evict, urgent ones first.

        Their annotation names a pod that is gone or ending. A user can write that too: such a pod
        gets free room before others of its priority.
        """
        state, found = self._state, list[Preemptor]()
        bound = {uid[:PART] for uid in state.use.uids() if not state.will_end(uid)}
        for each in self._waiting(-inf):
            yield
            if each is not None and each.hinted - bound:
                found.append(each)
        return sorted(found, key=lambda each: each.order)

    def exists(self, owner: str) -> bool:
        """Return whether a pod, by its uid, or a gang still has to be placed."""
        pod = self._state.pod(owner)
        return self._state.groups.named(owner) is not None if pod is None else not pod.node

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
        is_left = pod is not None and not _is_left_to_others(pod) and self._is_left(pod)
        return is_left and self.still_waits(uid)

    def _pod(self, uid: str) -> Pod | None:
        pod, group = self._state.pod(uid), self._state.group_of(uid)
        return group.members.get(uid) if pod is None and group is not None else pod

    def _is_left(self, pod: Pod) -> bool:
        """Return whether no proposal of kube-scheduler for a pod was kept just now."""
        kept = self._nominated.proposed_at(pod.uid)
        return self._state.clock.monotonic() - kept >= NOMINATED_SECONDS

    def _waiting(self, lowest: float) -> Iterator[Preemptor | None]:
        """Yield those that are more important than ``lowest``, and None for all others."""
        records = (*self._state.pods.pending.values(), *self._state.pods.gated.values())
        for record in records:
            yield self._of_pod(record, lowest)
        for group in self._stages.without_plan():
            yield self._of_gang(group, lowest) if group is not None else None

    def _of_pod(self, record: PodRecord, lowest: float) -> Preemptor | None:
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

    def _of_gang(self, group: Group, lowest: float) -> Preemptor | None:
        owner = str(group.key)
        if group.priority <= lowest or self._preemptions.get(owner) is not None:
            return None
        record = self._gangs.record(group)
        if record.is_whole or self._state.clock.monotonic() < record.wait_until:
            return None
        waiting = self._gangs.progress(group).waiting
        if not waiting or not self._may_preempt(waiting) or any(map(_is_left_to_others, waiting)):
            return None
        if not self._is_tried(waiting):
            return None
        hinted = frozenset[str]().union(*map(hinted_victims, waiting))
        name = f"gang {group.key.namespace}/{group.key.name}"
        return Preemptor(owner, name, group.priority, waiting, hinted, group)

    def _may_preempt(self, pods: Iterable[Pod]) -> bool:
        """Return whether these pods may preempt, and a scheduler asks the extender about each."""
        asks = self._state.callers.ask_about
        return all(pod.spec.preemption_policy != _NEVER and asks(pod) for pod in pods)

    def _is_tried(self, pods: Iterable[Pod]) -> bool:
        """Return whether kube-scheduler has rejected one of these pods, or gates keep it from all.

        It asks about no pod that waits for a volume, for example.
        """
        pending, tried = self._state.pods.pending, [pod for pod in pods if not pod.gates]
        return not tried or any(_is_rejected(pending.get(pod.uid), pod) for pod in tried)


def _is_left_to_others(pod: Pod) -> bool:
    """Return whether kube-scheduler has nominated a pod: it evicts others for it."""
    return bool(pod.status.nominated_node_name) and not is_nominated(pod)


def _is_rejected(record: PodRecord | None, pod: Pod) -> bool:
    """Return whether kube-scheduler has tried the pod, and found no node."""
    if record is not None and record.asked is not None:
        return bool(record.asked.reasons)
    return is_unschedulable(pod)
