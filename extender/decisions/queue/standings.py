"""Find what waits for room, with and without a position in the queue (pure)."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.stages import GangStages
from extender.decisions.queue.quota_views import QuotaViews
from extender.decisions.queue.shown_order import Waiting, in_order
from extender.decisions.queue.waiting_pods import Kind, WaitingPods
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.quota.order import OrderPolicy


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod in no gang; ``kind`` is None if it has no position."""

    pod: Pod
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A gang; ``pods`` are its members without a node and a slot."""

    group: Group
    pods: tuple[Pod, ...]


Shown = WaitingPod | WaitingGang


class Standings:
    """Admission keeps ``pods`` up to date."""

    def __init__(
        self, gangs: Gangs, pods: WaitingPods, quotas: QuotaViews, policy: OrderPolicy
    ) -> None:
        self.gangs, self.quotas = gangs, quotas
        self._state, self._pods = gangs.state, pods
        self._stages, self._policy = GangStages(gangs), policy

    def ordered(self) -> Generator[None, None, list[Waiting[Shown]]]:
        """Return what has a position, in the order in which it would get room, in short steps."""
        found: list[Waiting[Shown]] = []
        for each in self.placed():
            if each is not None:
                found.append(each)
            yield
        return (yield from in_order(found, self._policy, self._state.quotas.share))

    def others(self, placed: set[str]) -> Iterator[Shown | None]:
        """Yield what waits without a position, and None in between; ``placed`` are owners."""
        state = self._state
        for group in list(state.groups):
            is_waiting = group.count > group.bound or not group.count
            if is_waiting and group.is_ours and str(group.key) not in placed:
                yield self._gang(group)
            yield None
        for uid in sorted({*state.pods.gated, *state.pods.pending} - placed):
            record = state.pods.get(uid)
            pod = record.pod if record is not None else None
            if pod is not None and not pod.node and not pod.metadata.deletion_timestamp:
                is_queued = state.namespaces.is_queued(pod.metadata.namespace)
                if (pod.has_our_gate or is_queued) and state.groups.of(uid) is None:
                    yield WaitingPod(pod, None)
            yield None

    def can_start(self, pod: Pod) -> bool:
        """Return whether a pod as it is may start once there is room."""
        return self._pods.can_ever_fit(pod) and self._state.callers.ask_about(pod)

    def can_group_start(self, group: Group) -> bool:
        """Return whether enough members of a gang as they are may start once there is room."""
        return self._pods.can_group_ever_fit(group)

    def units_of(self, pod: Pod) -> int:
        """Return what a pod asks for in all; 0 if that is nothing, or not known."""
        record = self._state.pods.get(pod.uid)
        return (record.units or 0) if record is not None else 0

    def is_resting(self, owner: str) -> bool:
        """Return whether a pod or gang had room that it did not use, and has to wait now."""
        return self.rests_for(owner) > 0

    def rests_for(self, owner: str) -> float:
        """Return for how many seconds a pod or gang has to wait that did not use its room."""
        record, now = self.gangs.records.get(owner), self._state.clock.monotonic()
        until = record.wait_until if record is not None else self._pods.rests_until(owner)
        return max(0.0, until - now)

    def placed(self) -> Iterator[Waiting[Shown] | None]:
        """Yield what has a position, in any order, and None in between."""
        for group in list(self._state.groups):
            is_waiting = self._stages.is_without_plan(group)
            is_waiting = is_waiting and self.can_group_start(group)
            if is_waiting and not self.is_resting(str(group.key)):
                gang = self._gang(group)
                units = sum(map(self.units_of, gang.pods))
                yield Waiting(self.gangs.standing(group), units, gang)
            yield None
        for standing, kind in self._pods.waiting():
            pod = self._pods.pod(standing.owner)
            if pod is not None:
                yield Waiting(standing, self.units_of(pod), WaitingPod(pod, kind))
            yield None

    def _gang(self, group: Group) -> WaitingGang:
        return WaitingGang(group, self.gangs.progress(group).waiting)
