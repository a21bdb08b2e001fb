"""Decide what kube-scheduler is answered about members of gangs (pure)."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from extender.decisions.filter import Filtered
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import GangRecord
from gpushare.groups.group import Group
from gpushare.groups.reasons import (
    BROKEN,
    FEW_MEMBERS,
    NO_ROOM,
    NO_SLOT,
    ONE_BY_ONE,
    OTHER_ZONE,
    SURPLUS,
    UNKNOWN_ZONE,
)
from gpushare.groups.sources import key_of
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.planning.reasons import TOO_MANY_KINDS
from gpushare.quota.reasons import NOT_ADMITTED, TEXTS

AGAIN_SECONDS: Final = 1.0  # between two plans of a waiting gang before answers
GATHERING_SECONDS: Final = 60.0  # in which members of a gang that is created at once appear


class Missing(Enum):
    """What has to happen before a member of a gang can be answered."""

    WATCH = auto()  # the watch is behind kube-scheduler
    PLAN = auto()
    REPAIR = auto()  # another slot, on one of the nodes that are asked about


class Members:
    """Answers filter, bind and preempt for pods that may be members of gangs."""

    def __init__(self, gangs: Gangs) -> None:
        self._gangs, self._state = gangs, gangs.state
        self._ledger, self._groups = gangs.state.ledger, gangs.state.groups

    def decide(self, pod: Pod, nodes: Sequence[str]) -> Filtered | Missing | None:
        """Answer for a member of a gang; None if the pod is placed like one without a gang."""
        slot = self._ledger.slot_of(pod.uid)
        key = key_of(pod)
        if key is None:
            is_kept = slot is not None and slot.node in nodes
            return _only(slot.node) if slot is not None and is_kept else None
        group = self._groups.of(pod.uid)
        if group is None or group.key != key:
            return Missing.WATCH
        record = self._gangs.record(group)
        problem = self._gangs.problem_of(group)
        if problem is not None and not record.is_whole:
            return self.refuse(nodes, problem)
        if slot is not None:
            return self._with_slot(group, record, pod, slot, nodes)
        if record.is_whole:
            is_open = self._gangs.may_be_in_any_zone(group)
            return self._without_zone(nodes) if is_open else None
        if record.is_broken:
            return self.refuse(nodes, BROKEN)
        if not self._gangs.has_members(group, record):
            now = self._state.clock.monotonic()
            if record.lacks_since is None:
                record.lacks_since = now
            # All of them have to be asked about before one passes, and a member that is created
            # later is no event at which kube-scheduler tries these again.
            is_new = now - record.lacks_since < GATHERING_SECONDS
            is_retried = is_new and not self._state.is_plain(group)
            return self.refuse(nodes, FEW_MEMBERS, is_retried=is_retried)
        if record.plan and not self._gangs.lacking(group, record):
            return self.refuse(nodes, SURPLUS)
        return self._without_room(group, record, nodes)

    def refuse(self, nodes: Sequence[str], why: Reason, *, is_retried: bool = False) -> Filtered:
        """Reject a pod on all nodes of the cluster, so that nothing is preempted for it.

        kube-scheduler takes the status of nodes that it has rejected itself from this answer too
        (schedule_one.go, findNodesThatPassExtenders).
        """
        final = dict.fromkeys((*nodes, *self._state.nodes), why.text)
        return Filtered(final=final, is_retried=is_retried)

    def why_no_room(self, group: Group) -> Reason:
        """Return why the last plan for a gang has failed."""
        found = self._gangs.record(group).no_room
        is_told = found is not None and (
            found.reason == TOO_MANY_KINDS or found.reason.text in TEXTS
        )
        return found.reason if found is not None and is_told else NO_ROOM

    def why_not_bind(self, pod: Pod, node: str) -> Reason | None:
        """Return why a pod must not be bound to a node now; None for one without a gang."""
        key = key_of(pod)
        if key is None:
            return None
        group = self._groups.of(pod.uid)
        if group is None or group.key != key:
            return NO_SLOT
        record, slot = self._gangs.record(group), self._ledger.slot_of(pod.uid)
        is_new = self._ledger.reserve_of(pod.uid, node) is None
        if is_new and self._gangs.may_be_in_any_zone(group):
            return UNKNOWN_ZONE
        if record.is_whole:
            return None if self._gangs.in_zone(pod, [node]) else OTHER_ZONE
        if group.problem is not None:
            return group.problem
        if slot is None or slot.node != node:
            return NO_SLOT
        if not self._gangs.in_zone(pod, [node]):
            return OTHER_ZONE
        if self._gangs.lacking(group, record):
            return NO_ROOM if self._gangs.has_members(group, record) else FEW_MEMBERS
        return None

    def may_preempt(self, pod: Pod) -> bool:
        """Return whether kube-scheduler may evict pods for this one."""
        if key_of(pod) is None:
            return True
        group = self._groups.of(pod.uid)
        return group is not None and self._gangs.record(group).is_whole

    def _without_room(
        self, group: Group, record: GangRecord, nodes: Sequence[str]
    ) -> Filtered | Missing:
        """Answer for a member of a gang that had no room when it was last planned, if it was.

        kube-scheduler asks about all members of all waiting gangs, and waits for each answer. Where
        there is a queue, the gang is planned in its turn, and its members are tried again then.
        """
        if self._gangs.is_queued(group):
            is_tried = record.no_room is not None
            return self.refuse(nodes, self.why_no_room(group) if is_tried else NOT_ADMITTED)
        if not self._gangs.has_changed(group, record):
            return self.refuse(nodes, self.why_no_room(group))
        if record.rests(self._state.clock.monotonic(), group.version, AGAIN_SECONDS):
            why = self.why_no_room(group)
            return self.refuse(nodes, why, is_retried=not self._gangs.admits)
        if self._gangs.may_be_in_any_zone(group):
            return self._without_zone(nodes)
        return Missing.PLAN

    def _without_zone(self, nodes: Sequence[str]) -> Filtered:
        """Reject a pod for now: the outcome of a binding is no event for kube-scheduler."""
        return self.refuse(nodes, UNKNOWN_ZONE, is_retried=True)

    def _with_slot(
        self, group: Group, record: GangRecord, pod: Pod, slot: Slot, nodes: Sequence[str]
    ) -> Filtered | Missing:
        if self._gangs.lacking(group, record):
            return self._without_room(group, record, nodes)
        if slot.node not in nodes:
            if list(nodes) == [pod.status.nominated_node_name]:
                # kube-scheduler asks about all nodes if the nominated one is rejected. The slot
                # has moved since: on all of them it is among those that are asked about.
                return Filtered(final=dict.fromkeys(nodes, NO_SLOT.text))
            record.offered.discard(pod.uid)
            if self._gangs.may_be_in_any_zone(group):
                return self._without_zone(nodes)
            return Missing.REPAIR
        if record.begun_at is None and pod.uid not in record.offered:
            self._ledger.renew(record.owner, self._gangs.held_until(record))
        record.offered.add(pod.uid)
        # Rules that only kube-scheduler knows may still reject a member: then none passes before
        # all up to the minimum have been offered their nodes.
        is_sure = record.is_whole or self._state.is_plain(group)
        if not is_sure and group.bound + len(record.offered) + record.ended < group.minimum:
            return self.refuse(nodes, ONE_BY_ONE, is_retried=True)
        return _only(slot.node)


def _only(node: str) -> Filtered:
    return Filtered(fitting=[node], best=node, is_short=True)
