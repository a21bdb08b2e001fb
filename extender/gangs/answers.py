"""Answers kube-scheduler's calls about members of gangs, and passes on all others."""

from collections.abc import Mapping, Sequence
from typing import Final

from extender.decisions.autoscaling.placeholders import PLACEHOLDER, is_placeholder
from extender.decisions.filter import Filtered, reject_all
from extender.decisions.gangs.members import Missing
from extender.decisions.preemption.proposals import Proposals, Veto
from extender.decisions.scheduling import Scheduling
from extender.gangs.planning import GangPlanning
from extender.watch.grace import Grace
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.errors import GpushareError
from gpushare.groups.reasons import NO_NODE, OTHER_ZONE
from gpushare.objects.model import Pod
from gpushare.placement.reasons import NOT_MANAGED

MEMBER_OF_GANG: Final = "no pod is evicted for a single member of a gang"


class NotWatchedYet(GpushareError):
    """The watch has not shown the pod yet; kube-scheduler tries it again soon."""


class GangAnswers:
    def __init__(self, scheduling: Scheduling, planning: GangPlanning, grace: Grace) -> None:
        self._gangs, self._members = scheduling.gangs, scheduling.members
        self._callers = scheduling.state.callers
        self._planning, self._grace = planning, grace

    async def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        """Return the nodes to offer to a pod. Raise NotWatchedYet if its gang is not known."""
        self._callers.note(pod)
        if is_placeholder(pod):
            return reject_all(nodes, PLACEHOLDER.text)
        if not asks_for_share(pod):
            # It cannot pass: kube-scheduler would leave its binding to bind, too.
            return reject_all(nodes, NOT_MANAGED.text)
        found = await self._of_member(pod, nodes)
        if found is not None and await self._grace.waited(pod, found):
            found = await self._of_member(pod, nodes)
        if found is None:
            inside = self._gangs.in_zone(pod, nodes)
            found = await self._grace.filter(pod, inside)
            if not found.is_short and len(inside) < len(nodes):
                outside = set(nodes).difference(inside)
                found.final |= dict.fromkeys(outside, OTHER_ZONE.text)
            return found
        self._grace.note(pod, len(nodes), found)
        return found

    async def preempt(self, pod: Pod, proposed: Mapping[str, Sequence[str]]) -> Proposals:
        """Sort proposed nodes; for a member of a gang none is kept."""
        if not self._members.may_preempt(pod):
            return Proposals.none(proposed, Veto.MEMBER_OF_GANG, MEMBER_OF_GANG)
        return await self._grace.preempt(pod, proposed)

    async def _of_member(self, pod: Pod, nodes: Sequence[str]) -> Filtered | None:
        """Return the answer for a member of a gang; None for a pod that is placed by itself."""
        found = self._members.decide(pod, nodes)
        if found is Missing.WATCH:
            await self._grace.wait()
            found = self._members.decide(pod, nodes)
        return await self._completed(pod, nodes, found) if isinstance(found, Missing) else found

    async def _completed(self, pod: Pod, nodes: Sequence[str], missing: Missing) -> Filtered | None:
        group = self._gangs.group_of(pod)
        if missing is Missing.WATCH or group is None:
            raise NotWatchedYet("the pod's gang is not known yet: the pod is tried again shortly")
        with self._planning.slices.hurry():  # kube-scheduler waits with all its pods
            if missing is Missing.REPAIR:
                await self._planning.repair(group, pod, nodes)
                why = NO_NODE
            else:
                await self._planning.plan(group)
                why = self._members.why_no_room(group)
        found = self._members.decide(pod, nodes)
        return self._members.refuse(nodes, why) if isinstance(found, Missing) else found
