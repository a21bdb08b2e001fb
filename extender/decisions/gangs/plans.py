"""Decide what is planned for a gang, and keep what was planned (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from extender.decisions.gangs.gangs import HELD_SECONDS, Gangs
from extender.decisions.gangs.giving_way import make_way
from extender.decisions.gangs.record import GangRecord, Revision
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.ledger.holds import HOLD_PRIORITY, Hold, Slot
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask, NoPlan, Plan

MOST_UNFIT: Final = 64  # members of a gang whose rejected nodes are remembered


class GangPlans:
    """Asks for plans, and takes the slots of those that were made."""

    def __init__(self, gangs: Gangs) -> None:
        self._gangs, self._state = gangs, gangs.state
        self._ledger, self._groups = gangs.state.ledger, gangs.state.groups

    def ask(self, group: Group) -> Ask | None:
        """Return what to plan for a gang; None if nothing is missing, or it has to wait first."""
        record, waiting = self._gangs.record(group), self._gangs.progress(group).waiting
        if not self._gangs.is_asked_about(group):
            if not record.is_whole:
                return None
            waiting = tuple(filter(self._state.callers.ask_about, waiting))
        least = self._gangs.lacking(group, record)
        if group.problem is not None or record.is_broken or not waiting or least > len(waiting):
            return None
        if self._gangs.may_be_in_any_zone(group):
            return None  # the end of the binding changes the ledger: then this is asked again
        return self._ask(group, record, waiting, least=least)

    def ask_again(self, group: Group, pod: Pod, nodes: Sequence[str]) -> Ask | None:
        """Return the plan to make for a member whose slot cannot be used, on one of ``nodes``.

        None while nobody can say in which zone that would have to be.
        """
        if self._gangs.may_be_in_any_zone(group):
            return None
        return self._ask(group, self._gangs.record(group), (pod,), least=1, only=frozenset(nodes))

    def take(self, group: Group, plan: Plan) -> None:
        """Keep the slots of a plan beside those that the gang has already."""
        record, now = self._gangs.record(group), self._state.clock.monotonic()
        if not record.plan:
            record.plan, record.held_at = f"{self._state.clock.wall_ns():x}", now
            record.offered.clear()
        record.offered.difference_update(slot.pod_uid for slot in plan.slots)
        before = self._ledger.hold_of(record.owner)
        slots = {slot.pod_uid: slot for slot in (before.slots if before is not None else ())}
        slots |= {slot.pod_uid: slot for slot in plan.slots}
        priority, expires_at = HOLD_PRIORITY, now + HELD_SECONDS
        if record.begun_at is None and not record.is_whole:
            expires_at = self._gangs.held_until(record)
            if not self._gangs.is_binding(group):
                priority = group.priority
        elif not record.is_whole:
            expires_at = inf
        self._ledger.keep(Hold(record.owner, tuple(slots.values()), expires_at, priority))
        asked = min(group.members[slot.pod_uid].priority for slot in plan.slots)
        make_way(self._gangs, {slot.node for slot in plan.slots}, asked, record.owner)
        record.tried, record.no_room, record.stranded_since = None, None, None
        record.rest_seconds = 0.0
        record.holds_more = record.is_whole

    def failed(self, group: Group, found: NoPlan | None, revision: Revision) -> None:
        """Note that there is no room for a gang as long as nothing changes since ``revision``."""
        record, now = self._gangs.record(group), self._state.clock.monotonic()
        before, has_begun = record.no_room, record.begun_at is not None
        if has_begun and before is not None:
            record.rest_longer()
        is_new = before is None or (found is not None and found.reason != before.reason)
        if is_new and (speaker := self._gangs.speaker(group)):
            self._state.pods.report_again(speaker, at_once=before is None)
        record.tried, record.no_room, record.failed_at = revision, found, now
        if record.stranded_since is None and self._gangs.tied(group):
            record.stranded_since = now
        if record.avoid:
            # Without these nodes there was no room; they may be offered again at any time.
            record.avoid.clear()
            record.tried = None
            record.wait_longer(now)

    def are_waiting(self, group: Group, slots: Iterable[Slot]) -> bool:
        """Return whether the pods of these slots are members that still need one."""
        if not self._gangs.is_current(group) or self._gangs.record(group).is_broken:
            return False
        pods = (group.members.get(slot.pod_uid) for slot in slots)
        return all(pod and not pod.node and not pod.metadata.deletion_timestamp for pod in pods)

    def lets_go(self, group: Group) -> bool:
        """Let go of a part of a plan to which the rest cannot be added; return whether it has."""
        record = self._gangs.record(group)
        is_part = record.plan and record.begun_at is None and self._gangs.lacking(group, record)
        if not is_part or self._gangs.is_binding(group):
            return False
        self._gangs.give_up(group)
        return True

    def unfit(self, pod: Pod, nodes: Sequence[str]) -> None:
        """Note that kube-scheduler offers only ``nodes`` for a member: others do not fit it."""
        group = self._groups.of(pod.uid)
        if group is None:
            return
        avoid = self._gangs.record(group).avoid
        if len(avoid) >= MOST_UNFIT:
            del avoid[next(iter(avoid))]
        avoid[pod.uid] = frozenset(self._state.node_names().difference(nodes))

    def _ask(
        self,
        group: Group,
        record: GangRecord,
        pods: tuple[Pod, ...],
        *,
        least: int,
        only: frozenset[str] | None = None,
    ) -> Ask:
        return Ask(
            owner=record.owner,
            members=pods,
            least=least,
            zone_key=group.zone_key,
            zone=self._gangs.zone_of(group),
            cards=self._cards(group),
            roles=self._gangs.policy.roles,
            only=only,
            avoid=self._avoided(group, record, pods, only),
            cooling=self._gangs.cooling(),
        )

    def _avoided(
        self, group: Group, record: GangRecord, pods: tuple[Pod, ...], only: frozenset[str] | None
    ) -> Mapping[str, frozenset[str]]:
        """Return the nodes that a member must not get.

        Members that may be unable to share a node get none that another one has.
        """
        avoided = dict(record.avoid) if only is None else {}
        apart = [pod for pod in pods if pod.keeps_apart]
        if not apart:
            return avoided
        placed = [self._gangs.node_of(pod) for pod in group.present() if pod.keeps_apart]
        taken = frozenset(filter(None, placed))
        for pod in apart:
            others = taken - {self._gangs.node_of(pod)}
            avoided[pod.uid] = avoided.get(pod.uid, frozenset()) | others
        return avoided

    def _cards(self, group: Group) -> int:
        found = 0
        for pod in group.present():
            try:
                found += self._state.request_of(pod).card_count
            except RequestError:
                continue  # asks for no GPU memory
        return found
