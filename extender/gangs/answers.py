"""Answers kube-scheduler's calls about members of gangs, and passes on all others."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from extender.decisions.autoscaling.placeholders import PLACEHOLDER, is_placeholder
from extender.decisions.filter import Filtered, reject_all
from extender.decisions.gangs.members import Missing
from extender.decisions.preemption.proposals import Proposals, Veto
from extender.decisions.scheduling import Scheduling
from extender.gangs.planning import GangPlanning
from extender.watch.grace import Grace
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.errors import GpushareError
from gpushare.groups.model import GroupKey
from gpushare.groups.reasons import BEING_PLANNED, NO_NODE, OTHER_ZONE
from gpushare.objects.model import Pod
from gpushare.placement.reasons import NOT_MANAGED

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.1  # for a plan: kube-scheduler waits meanwhile, with all its pods
MOST_OF_NAMESPACE: Final = 8  # gangs that are planned at a time because they were asked about

MEMBER_OF_GANG: Final = "no pod is evicted for a single member of a gang"


class NotWatchedYet(GpushareError):
    """The watch has not shown the pod yet; kube-scheduler tries it again soon."""


class GangAnswers:
    def __init__(self, scheduling: Scheduling, planning: GangPlanning, grace: Grace) -> None:
        self._gangs, self._members = scheduling.gangs, scheduling.members
        self._callers = scheduling.state.callers
        self._planning, self._grace = planning, grace
        self._plans: dict[GroupKey, asyncio.Task[bool]] = {}

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
        if not self._may_plan(group.key):
            return self._members.refuse(nodes, BEING_PLANNED, is_retried=True)
        is_repair = missing is Missing.REPAIR
        plan = self._planning.repair(group, pod, nodes) if is_repair else self._planning.plan(group)
        if not await self._was_made(group.key, plan):
            return self._members.refuse(nodes, BEING_PLANNED, is_retried=True)
        why = NO_NODE if is_repair else self._members.why_no_room(group)
        found = self._members.decide(pod, nodes)
        return self._members.refuse(nodes, why) if isinstance(found, Missing) else found

    def _may_plan(self, key: GroupKey) -> bool:
        of_namespace = sum(each.namespace == key.namespace for each in self._plans)
        return key not in self._plans and of_namespace < MOST_OF_NAMESPACE

    async def _was_made(self, key: GroupKey, plan: Coroutine[Any, Any, bool]) -> bool:
        """Return whether a plan was made in time; else it goes on, also if the call has ended."""
        task = self._plans[key] = asyncio.create_task(plan)
        task.add_done_callback(lambda _: self._ended(key))
        with self._planning.slices.hurry():
            await asyncio.wait({task}, timeout=WAIT_SECONDS)
        if task.done():
            task.result()
        return task.done()

    def _ended(self, key: GroupKey) -> None:
        task = self._plans.pop(key)
        if not task.cancelled() and (err := task.exception()) is not None:
            log.error("plan for a gang failed", extra={"gang": str(key)}, exc_info=err)
