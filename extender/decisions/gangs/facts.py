"""What people see of the gangs that the extender knows (pure)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import GangRecord
from extender.decisions.gangs.stages import GangStages
from extender.decisions.queue.quota_views import QuotaViews
from gpushare.answers import gang_text
from gpushare.answers.gangs import GangFacts, GangFigures, GangView, Phase
from gpushare.answers.group_states import GroupStates
from gpushare.answers.preemptions import PreemptionFacts
from gpushare.answers.queue.over_quota import OverQuota, is_over
from gpushare.groups.group import Group
from gpushare.groups.reasons import NOT_ASKED

_NANOSECONDS = 1e9


class GangViews:
    """Implements GangStates. Plans are known only to the replica that decides."""

    def __init__(self, state: ClusterState, gangs: Gangs) -> None:
        self._state, self._gangs, self._stages = state, gangs, GangStages(gangs)
        self._lacking = QuotaViews(state).lacking
        self._shown = GroupStates(state.groups, state.request_of, state.unit_mib, self._now)

    def views(self) -> Iterator[GangView]:
        self._shown.forget()
        for group in list(self._state.groups):
            if group.is_ours:
                yield self._view(group)

    def view_of(self, uid: str) -> GangView | None:
        group = self._state.groups.of(uid)
        return self._view(group) if group is not None and group.is_ours else None

    @property
    def gates_stay(self) -> bool:
        return self._gangs.gates_stay

    def figures(self) -> GangFigures:
        phases: Counter[str] = Counter()
        waiting = 0
        for group in self._state.groups:
            if not group.is_ours:
                continue
            phase = self._phase(group, self._gangs.known(group))
            phases[phase.value] += 1
            if phase is not Phase.PLACED:
                waiting += group.count - group.bound
        now = self._state.clock.monotonic()
        begun = [record.begun_at for _, record in self._stages.begun()]
        longest = max((now - at for at in begun if at is not None and at < now), default=0.0)
        return GangFigures(phases, waiting, longest)

    def facts(self, group: Group) -> GangFacts:
        state, gangs = self._state, self._gangs
        found = replace(
            self._shown.facts(group),
            zone=gangs.zone_of(group) or "",
            complete_seconds=gangs.complete_seconds(group),
            gates_stay=gangs.gates_stay and bool(group.gated),
            evicting=self._evicting(group),
        )
        record = gangs.known(group)
        problem = gangs.problem_of(group)
        if problem is NOT_ASKED and not (record is not None and record.is_whole):
            found = replace(found, problem=problem, phase=Phase.INVALID)
        if record is None:
            return found
        now = state.clock.monotonic()
        return replace(
            found,
            over_quota=self._over_quota(group, record),
            phase=self._phase(group, record),
            slots=state.ledger.slot_count(record.owner),
            no_plan=record.no_room,
            retry_seconds=max(0.0, record.wait_until - now),
            starting_seconds=0.0 if record.begun_at is None else max(0.0, now - record.begun_at),
            stranded=0 if record.begun_at is None else len(record.avoid),
        )

    def _over_quota(self, group: Group, record: GangRecord) -> OverQuota | None:
        """Return what the quota lacks if it was the reason why there is no plan."""
        reason = record.no_room.reason if record.no_room is not None else None
        if reason is None or not is_over(reason):
            return None
        waiting = self._gangs.progress(group).waiting
        return self._lacking.of_gang(reason, waiting, self._gangs.lacking(group, record))

    def _evicting(self, group: Group) -> PreemptionFacts | None:
        """Return what is evicted for the gang; members without a slot do not show it."""
        preemptions = self._state.preemptions
        waiting = (uid for uid, pod in group.members.items() if not pod.node)
        found = map(preemptions.of, waiting if preemptions.count else ())
        return next((facts for facts in found if facts is not None), None)

    def _view(self, group: Group) -> GangView:
        return gang_text.view(self.facts(group), self._now())

    def _now(self) -> float:
        return self._state.clock.wall_ns() / _NANOSECONDS

    def _phase(self, group: Group, record: GangRecord | None) -> Phase:
        if (record is not None and record.is_whole) or group.is_ending:
            return Phase.PLACED
        if self._gangs.problem_of(group) is not None:
            return Phase.INVALID
        if record is not None and record.is_broken:
            return Phase.BROKEN
        if record is not None and (record.plan or group.bound):
            return Phase.STARTING
        ended = record.ended if record is not None else 0
        if group.count + ended < group.minimum:
            return Phase.WAITING_FOR_MEMBERS
        return Phase.WAITING_FOR_ROOM
