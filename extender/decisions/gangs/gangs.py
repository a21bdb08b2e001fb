"""Decide what members of gangs are answered, and what is kept for them (pure).

A gang without a plan keeps nothing. A plan has a slot for each missing member; its slots are held
together. A member passes only with a slot, and is bound only while all others up to the minimum
are bound or have slots. Once the minimum is bound, members are placed one by one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.filter import Filtered
from extender.decisions.gangs.record import GangRecord, Revision
from gpushare.annotations.slot_hint import is_released
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.reasons import (
    BROKEN,
    FEW_MEMBERS,
    NO_ROOM,
    NO_SLOT,
    ONE_BY_ONE,
    OTHER_ZONE,
    SURPLUS,
)
from gpushare.groups.sources import key_of
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask, NoPlan, Plan, ZoneRole

HELD_SECONDS: Final = 30.0  # without a sign of life from a member, and none bound
MOST_UNFIT: Final = 64  # members of a gang whose rejected nodes are remembered
AGAIN_SECONDS: Final = 1.0  # between two plans of a waiting gang before answers
GATHERING_SECONDS: Final = 60.0  # in which members of a gang that is created at once appear


@dataclass(frozen=True, slots=True)
class GangPolicy:
    """``complete_seconds`` is how long a gang may take from its first bound member to its minimum.

    A PodGroup may state another time. ``roles`` restrict zones to gangs of some sizes.
    """

    complete_seconds: float = 300.0
    roles: tuple[ZoneRole, ...] = ()


_POLICY: Final = GangPolicy()


class Missing(Enum):
    """What has to happen before a member of a gang can be answered."""

    WATCH = auto()  # the watch is behind kube-scheduler
    PLAN = auto()
    REPAIR = auto()  # another slot, on one of the nodes that are asked about


@dataclass(frozen=True, slots=True)
class Progress:
    """The members that count, in the order of their importance, by how far they are."""

    bound: tuple[Pod, ...]
    slotted: tuple[Pod, ...]
    waiting: tuple[Pod, ...]  # without node and slot

    @property
    def unbound(self) -> tuple[Pod, ...]:
        return (*self.slotted, *self.waiting)


class Gangs:
    """All gangs that the watch has shown. Plans are made only by the replica that decides.

    ``may_keep``: whether plans may be kept; false once this replica has stopped deciding.
    ``admits``: whether waiting gangs are planned again also if kube-scheduler does not ask.
    """

    def __init__(self, state: ClusterState, policy: GangPolicy = _POLICY) -> None:
        self._state, self._ledger, self._groups = state, state.ledger, state.groups
        self._policy = policy
        self._records: dict[str, GangRecord] = {}
        self.may_keep, self.admits = True, False

    def group_of(self, pod: Pod) -> Group | None:
        """Return the gang of a pod as the watch has shown it."""
        return self._groups.of(pod.uid)

    def record(self, group: Group) -> GangRecord:
        """Return what is known about a gang; a new record if it is a new one."""
        owner = str(group.key)
        record = self._records.get(owner)
        if record is None:
            record = GangRecord(owner)
            if self._groups.get(group.key) is group:
                self._records[owner] = record  # else its last member has gone meanwhile
        return record

    def known(self, group: Group) -> GangRecord | None:
        """Return what is known about a gang beyond its members; None if that is nothing."""
        return self._records.get(str(group.key))

    def progress(self, group: Group) -> Progress:
        bound, slotted, waiting = [], [], []
        for pod in group.present():
            if pod.node:
                bound.append(pod)
            elif self._ledger.slot_of(pod.uid) is not None:
                slotted.append(pod)
            else:
                waiting.append(pod)
        return Progress(tuple(bound), tuple(slotted), tuple(waiting))

    def revision(self, group: Group) -> Revision:
        state = self._state
        return (self._ledger.changes.now, state.resource_changes.now, group.version)

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
        record = self.record(group)
        if group.problem is not None and not record.is_whole:
            return self.refuse(nodes, group.problem)
        if slot is not None:
            return self._with_slot(group, record, pod, slot, nodes)
        if record.is_whole:
            return None
        if record.is_broken:
            return self.refuse(nodes, BROKEN)
        if not self.has_members(group, record):
            now = self._state.clock.monotonic()
            if record.lacks_since is None:
                record.lacks_since = now
            # All of them have to be asked about before one passes, and a member that is created
            # later is no event at which kube-scheduler tries these again.
            is_retried = not group.is_plain and now - record.lacks_since < GATHERING_SECONDS
            return self.refuse(nodes, FEW_MEMBERS, is_retried=is_retried)
        if record.plan and not self.lacking(group, record):
            return self.refuse(nodes, SURPLUS)
        return self._without_room(group, record, nodes)

    def complete_seconds(self, group: Group) -> float:
        """Return the time from the first bound member of a gang to its minimum."""
        return group.complete_seconds or self._policy.complete_seconds

    def lacking(self, group: Group, record: GangRecord) -> int:
        """Return how many members up to the minimum have neither a node nor a slot."""
        placed = group.bound + record.ended + self._ledger.slot_count(record.owner)
        return max(0, group.minimum - placed)

    def has_members(self, group: Group, record: GangRecord) -> bool:
        """Return whether the minimum could be placed, given enough room."""
        return group.count + record.ended >= group.minimum

    def is_due(self, group: Group, record: GangRecord) -> bool:
        """Return whether something has changed since the last plan failed."""
        if self._state.clock.monotonic() < record.wait_until:
            return False
        return record.tried != self.revision(group)

    def refuse(self, nodes: Sequence[str], why: Reason, *, is_retried: bool = False) -> Filtered:
        """Reject a pod on all nodes of the cluster, so that nothing is preempted for it.

        kube-scheduler takes the status of nodes that it has rejected itself from this answer too
        (schedule_one.go, findNodesThatPassExtenders).
        """
        final = dict.fromkeys((*nodes, *self._state.nodes), why.text)
        return Filtered(final=final, is_retried=is_retried)

    def in_zone(self, pod: Pod, nodes: Sequence[str]) -> Sequence[str]:
        """Return the nodes that a pod may be offered: those of the zone of its gang."""
        group = self._groups.of(pod.uid)
        if group is None or not group.zone_key:
            return nodes
        zone = self.zone_of(group)
        if zone is None:
            return nodes
        return [name for name in nodes if self._label(name, group.zone_key) == zone]

    def zone_of(self, group: Group) -> str | None:
        """Return the zone in which members are bound or have slots; None if there are none.

        kube-scheduler binds members without GPU memory itself, in a zone of the gang only if a gate
        was removed from them: where they are decides nothing.
        """
        if not group.zone_key:
            return None
        found = None
        for pod in group.present():
            node = "" if pod.node and self._state.pod(pod.uid) is None else self._node_of(pod)
            zone = self._label(node, group.zone_key) if node else None
            if zone is not None and pod.node:
                return zone
            found = found or zone
        return found

    def outside(self, group: Group) -> list[Slot]:
        """Return the slots that are not in the zone of their gang: it may lose a node, for example.

        Where members are bound decides, else where the most important one has its slot.
        """
        hold, zone = self._ledger.hold_of(str(group.key)), self.zone_of(group)
        slots = hold.slots if hold is not None and zone is not None else ()
        return [slot for slot in slots if self._label(slot.node, group.zone_key) != zone]

    def ask(self, group: Group) -> Ask | None:
        """Return what to plan for a gang; None if nothing is missing or members are."""
        record, waiting = self.record(group), self.progress(group).waiting
        least = self.lacking(group, record)
        if group.problem is not None or record.is_broken or not waiting or least > len(waiting):
            return None
        return self._ask(group, record, waiting, least=least)

    def ask_again(self, group: Group, pod: Pod, nodes: Sequence[str]) -> Ask:
        """Return the plan to make for a member whose slot cannot be used, on one of ``nodes``."""
        return self._ask(group, self.record(group), (pod,), least=1, only=frozenset(nodes))

    def take(self, group: Group, plan: Plan) -> None:
        """Keep the slots of a plan beside those that the gang has already."""
        record, now = self.record(group), self._state.clock.monotonic()
        if not record.plan:
            record.plan, record.held_at = f"{self._state.clock.wall_ns():x}", now
            record.offered.clear()
        record.offered.difference_update(slot.pod_uid for slot in plan.slots)
        before = self._ledger.hold_of(record.owner)
        slots = {slot.pod_uid: slot for slot in (before.slots if before is not None else ())}
        slots |= {slot.pod_uid: slot for slot in plan.slots}
        is_begun = record.begun_at is not None and not record.is_whole
        expires_at = inf if is_begun else now + HELD_SECONDS
        self._ledger.keep(Hold(record.owner, tuple(slots.values()), expires_at))
        record.tried, record.no_room, record.stranded_since = None, None, None

    def failed(self, group: Group, found: NoPlan | None, revision: Revision) -> None:
        """Note that there is no room for a gang as long as nothing changes since ``revision``."""
        record = self.record(group)
        if group.gated and record.no_room is None and (speaker := self._speaker(group)):
            self._state.pods.report_again(speaker)
        record.tried, record.no_room = revision, found
        record.failed_at = self._state.clock.monotonic()
        if record.stranded_since is None and self.tied(group):
            record.stranded_since = self._state.clock.monotonic()
        if record.avoid:
            # Without these nodes there was no room; they may be offered again at any time.
            record.avoid.clear()
            record.tried = None
            record.wait_longer(self._state.clock.monotonic())

    def give_up(self, group: Group) -> None:
        """Let go of all that is kept for a gang of which no member is bound."""
        record = self.record(group)
        self._ledger.drop(Hold, record.owner)
        record.plan = ""
        record.offered.clear()

    def are_waiting(self, group: Group, slots: Iterable[Slot]) -> bool:
        """Return whether the pods of these slots are members that still need one."""
        if self._groups.get(group.key) is not group or self.record(group).is_broken:
            return False
        pods = (group.members.get(slot.pod_uid) for slot in slots)
        return all(pod and not pod.node and not pod.metadata.deletion_timestamp for pod in pods)

    def lets_go(self, group: Group) -> bool:
        """Let go of a part of a plan to which the rest cannot be added; return whether it has."""
        record = self.record(group)
        is_part = record.plan and record.begun_at is None and self.lacking(group, record)
        if not is_part or record.is_whole or self.is_binding(group):
            return False
        self.give_up(group)
        return True

    def unfit(self, pod: Pod, nodes: Sequence[str]) -> None:
        """Note that kube-scheduler offers only ``nodes`` for a member: others do not fit it."""
        group = self._groups.of(pod.uid)
        if group is None:
            return
        avoid = self.record(group).avoid
        if len(avoid) >= MOST_UNFIT:
            del avoid[next(iter(avoid))]
        avoid[pod.uid] = frozenset(self._state.node_names().difference(nodes))

    def why_not_bind(self, pod: Pod, node: str) -> Reason | None:
        """Return why a pod must not be bound to a node now; None for one without a gang."""
        key = key_of(pod)
        if key is None:
            return None
        group = self._groups.of(pod.uid)
        if group is None or group.key != key:
            return NO_SLOT
        record, slot = self.record(group), self._ledger.slot_of(pod.uid)
        if record.is_whole:
            return None if self.in_zone(pod, [node]) else OTHER_ZONE
        if group.problem is not None:
            return group.problem
        if slot is None or slot.node != node:
            return NO_SLOT
        if not self.in_zone(pod, [node]):
            return OTHER_ZONE
        if self.lacking(group, record):
            return NO_ROOM if self.has_members(group, record) else FEW_MEMBERS
        return None

    def may_preempt(self, pod: Pod) -> bool:
        """Return whether kube-scheduler may evict pods for this one."""
        if key_of(pod) is None:
            return True
        group = self._groups.of(pod.uid)
        return group is not None and self.record(group).is_whole

    def speaks(self, pod: Pod) -> bool:
        """Return whether Events about the pod are written: of a gang, only one member gets them."""
        group = self._groups.of(pod.uid)
        return group is None or self._speaker(group) in {"", pod.uid}

    def is_binding(self, group: Group) -> bool:
        """Return whether the binding of a member is being written, or its outcome is unknown."""
        slots = filter(None, (self._ledger.slot_of(uid) for uid in group.members))
        return any(self._ledger.reserve_of(each.pod_uid, each.node) is not None for each in slots)

    def _speaker(self, group: Group) -> str:
        """Return the first member with GPU memory and without a node; empty without any."""
        waiting = (each.uid for each in group.present() if not each.node)
        return next((uid for uid in waiting if self._state.pod(uid) is not None), "")

    def member_changed(self, pod: Pod) -> None:
        """Take note that a pod has another gang, node, gate or deletion timestamp."""
        before = self._groups.of(pod.uid)
        if before is None and key_of(pod) is None:
            return
        self._groups.update(pod)
        after = self._groups.of(pod.uid)
        if pod.node or pod.metadata.deletion_timestamp:
            self._ledger.drop_slot(pod.uid)
        if before is not None and before is not after:
            self._drop(before, pod.uid)
        if after is not None:
            record = self._records.get(str(after.key))
            if record is not None and pod.node:
                record.offered.discard(pod.uid)
            self._check(after)

    def refresh(self, name: str) -> None:
        """Note how far a gang is after its PodGroup may have changed."""
        group = self._groups.named(name)
        if group is not None:
            self._check(group)

    def member_gone(self, uid: str) -> None:
        """Take note that a pod has ended or is deleted."""
        group = self._groups.of(uid)
        self._groups.forget(uid)
        if group is not None:
            self._drop(group, uid)

    def expired(self) -> Iterator[GangRecord]:
        """Yield the gangs whose hold has expired before a member was bound."""
        now = self._state.clock.monotonic()
        for record in list(self._records.values()):
            if not record.plan or record.is_whole or record.begun_at is not None:
                continue
            if not self._ledger.slot_count(record.owner):
                record.plan = ""
                record.wait_longer(now)
                yield record

    def in_part(self) -> Iterator[Group]:
        """Yield the gangs that have some of their nodes or slots and lack others, if that is new.

        Those without a bound member do not wait for their time: they may have to let go.
        """
        now = self._state.clock.monotonic()
        for record in list(self._records.values()):
            has_begun = record.begun_at is not None
            if record.is_whole or record.is_broken or not (record.plan or has_begun):
                continue
            group = self._groups.named(record.owner)
            if group is None or not group.is_ours or not self.lacking(group, record):
                continue
            is_due = now >= record.wait_until or not has_begun
            if is_due and record.tried != self.revision(group):
                yield group

    def tied(self, group: Group) -> list[Pod]:
        """Return the members without a node that were released into a zone, and must go there."""
        return [pod for pod in group.present() if group.zone_key and is_released(pod)]

    def stranded(self) -> Iterator[tuple[Group, list[Pod]]]:
        """Yield gangs without a bound member that had no room in their zone for too long.

        With each come the members that are tied to the zone.
        """
        now = self._state.clock.monotonic()
        for record in list(self._records.values()):
            group, since = self._groups.named(record.owner), record.stranded_since
            if group is None or since is None:
                continue
            tied = self.tied(group)
            if group.bound or not tied:
                record.stranded_since = None
            elif now - since >= self.complete_seconds(group):
                yield group, tied

    def begun(self) -> Iterator[tuple[Group, GangRecord]]:
        """Yield the gangs of which some members are bound, and never the minimum was."""
        for record in list(self._records.values()):
            if record.begun_at is None or record.is_whole:
                continue
            group = self._groups.named(record.owner)
            if group is not None and group.is_ours:
                yield group, record

    def without_plan(self) -> list[Group]:
        """Return the gangs that have enough members and no plan for them, most urgent first.

        Members beyond the minimum count only if they are gated: kube-scheduler does not ask about
        them.
        """
        found = [
            group
            for group in self._groups
            if group.count > group.bound
            and group.is_ours
            and group.problem is None
            and self._lacks_plan(group)
        ]
        return sorted(found, key=lambda group: -group.priority)

    def complete(self) -> list[Group]:
        """Return the gangs whose minimum is placed or has slots, if members have no node yet."""
        return [
            group
            for group in self._groups
            if group.count > group.bound
            and group.problem is None
            and (record := self._records.get(str(group.key))) is not None
            and (record.is_whole or (record.plan and not self.lacking(group, record)))
        ]

    def lacking_members(self) -> Iterator[tuple[Group, GangRecord]]:
        """Yield the gangs that have too few members, if one was rejected for it or is bound."""
        for record in list(self._records.values()):
            is_of_interest = record.lacks_since is not None or record.begun_at is not None
            group = self._groups.named(record.owner) if is_of_interest else None
            if group is None:
                continue
            if record.is_whole or self.has_members(group, record):
                record.lacks_since = None
                continue
            if record.lacks_since is None:
                record.lacks_since = self._state.clock.monotonic()
            yield group, record

    def ended(self, group: Group, number: int, controllers: frozenset[str]) -> None:
        """Note how many members have succeeded, of those that these controllers created."""
        if self._groups.get(group.key) is not group:
            return  # it is gone, or others have its name
        record = self.record(group)
        record.ended, record.ended_of = number, controllers
        self._check(group)

    def has_begun(self, group: Group, age: float) -> None:
        """Note how many seconds ago the first member was bound, before this replica decided.

        The time of a gang goes on. If it is over the gang must have been whole: nobody who has
        worked for long is evicted by mistake.
        """
        if self._groups.get(group.key) is not group:
            return
        record = self.record(group)
        if age >= self.complete_seconds(group):
            self._become_whole(record)
        elif record.begun_at is not None:
            record.begun_at = min(record.begun_at, self._state.clock.monotonic() - age)

    def broke(self, group: Group) -> None:
        """Let go of all that is kept for a gang that has begun and gets no minimum."""
        self.give_up(group)
        record = self.record(group)
        record.is_broken = True
        record.wait_longer(self._state.clock.monotonic())

    def is_broken(self, pod: Pod) -> bool:
        """Return whether the gang of a pod is to be evicted."""
        group = self._groups.of(pod.uid)
        return group is not None and self.record(group).is_broken

    def begin_again(self, group: Group) -> None:
        """Let a broken gang, of which nothing more can be evicted, look for room again.

        Its time begins when it is planned again.
        """
        record, now = self.record(group), self._state.clock.monotonic()
        record.is_broken, record.begun_at = False, max(now, record.wait_until)

    def forget_plans(self) -> None:
        """Forget all plans: another replica decides. The caller drops the holds.

        No plan that is being made is kept any more, until this replica takes over again.
        """
        self.may_keep = self.admits = False
        for record in self._records.values():
            record.plan, record.tried, record.no_room = "", None, None
            record.offered.clear()
            record.avoid.clear()

    def _lacks_plan(self, group: Group) -> bool:
        record = self.record(group)
        if record.is_broken or not self.has_members(group, record):
            return False
        if record.is_whole:
            return group.gated > 0 and any(pod.has_our_gate for pod in self.progress(group).waiting)
        return not record.plan or self.lacking(group, record) > 0

    def _drop(self, group: Group, uid: str) -> None:
        """Take note that a pod is no member of ``group`` any more."""
        self._ledger.drop_slot(uid)
        record = self._records.get(str(group.key))
        if record is not None:
            record.offered.discard(uid)
            record.avoid.pop(uid, None)
        if group.members:
            self._check(group)
        elif record is not None:
            self._ledger.drop(Hold, record.owner)
            del self._records[record.owner]

    def _check(self, group: Group) -> None:
        """Note how far a gang is; a gang with too few members lets go of its slots."""
        record = self._records.get(str(group.key))
        if record is None:
            if not (group.bound and group.is_ours):
                return
            record = self.record(group)
        if record.is_whole and group.bound:
            return
        now = self._state.clock.monotonic()
        if record.ended and record.ended_of.isdisjoint(map(_controller_uid, group.present())):
            record.ended = 0  # those of an earlier run
        if record.is_whole and not record.ended:
            # All members are gone: others with the same name are a new gang.
            self._ledger.drop(Hold, record.owner)
            record = self._records[record.owner] = GangRecord(record.owner)
        if group.bound and self._has_minimum(group, record):
            self._become_whole(record)
        elif group.begun:
            if record.begun_at is None:
                record.begun_at = now
                self._ledger.renew(record.owner, inf)
        else:
            record.begun_at, record.is_broken = None, False
            if record.plan and not self.has_members(group, record):
                self.give_up(group)

    def _become_whole(self, record: GangRecord) -> None:
        record.is_whole, record.is_broken, record.wait_seconds = True, False, 0.0
        self._ledger.renew(record.owner, self._state.clock.monotonic() + HELD_SECONDS)

    def _has_minimum(self, group: Group, record: GangRecord) -> bool:
        """Return whether the minimum is bound; while the minimum is unknown, nobody can say."""
        return group.problem is None and group.bound + record.ended >= group.minimum

    def _without_room(
        self, group: Group, record: GangRecord, nodes: Sequence[str]
    ) -> Filtered | Missing:
        """Answer for a member of a gang that had no room when it was last planned, if it was.

        kube-scheduler asks about all members of all waiting gangs, and waits for each answer.
        """
        if not self.is_due(group, record):
            return self.refuse(nodes, NO_ROOM)
        is_same = record.tried is not None and record.tried[-1] == group.version
        if is_same and self._state.clock.monotonic() - record.failed_at < AGAIN_SECONDS:
            return self.refuse(nodes, NO_ROOM, is_retried=not self.admits)
        return Missing.PLAN

    def _with_slot(
        self, group: Group, record: GangRecord, pod: Pod, slot: Slot, nodes: Sequence[str]
    ) -> Filtered | Missing:
        if not record.is_whole and self.lacking(group, record):
            return self._without_room(group, record, nodes)
        if record.begun_at is None:
            # A member about which kube-scheduler never asks must not hold the room forever.
            latest = record.held_at + self.complete_seconds(group)
            now = self._state.clock.monotonic()
            self._ledger.renew(record.owner, min(now + HELD_SECONDS, latest))
        if slot.node not in nodes:
            record.offered.discard(pod.uid)
            return Missing.REPAIR
        record.offered.add(pod.uid)
        # Rules that only kube-scheduler knows may still reject a member: then none passes before
        # all up to the minimum have been offered their nodes.
        is_sure = record.is_whole or group.is_plain
        if not is_sure and group.bound + len(record.offered) + record.ended < group.minimum:
            return self.refuse(nodes, ONE_BY_ONE, is_retried=True)
        return _only(slot.node)

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
            zone=self.zone_of(group),
            cards=self._cards(group),
            roles=self._policy.roles,
            only=only,
            avoid=self._avoided(group, record, pods, only),
            cooling=self.cooling(),
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
        placed = [self._node_of(pod) for pod in group.present() if pod.keeps_apart]
        taken = frozenset(filter(None, placed))
        for pod in apart:
            avoided[pod.uid] = avoided.get(pod.uid, frozenset()) | (taken - {self._node_of(pod)})
        return avoided

    def _node_of(self, pod: Pod) -> str:
        """Return the node to which a member is bound, or that of its slot; empty without any."""
        slot = self._ledger.slot_of(pod.uid)
        return pod.node or (slot.node if slot is not None else "")

    def cooling(self) -> frozenset[str]:
        """Return the nodes that take no pods with GPU memory for a while."""
        return frozenset(self._state.failing_nodes.cooling(self._state.clock.monotonic()))

    def _cards(self, group: Group) -> int:
        found = 0
        for pod in group.present():
            try:
                found += self._state.request_of(pod).card_count
            except RequestError:
                continue  # asks for no GPU memory
        return found

    def _label(self, node: str, key: str) -> str | None:
        found = self._state.node(node)
        return found.labels.get(key) if found is not None else None


def _only(node: str) -> Filtered:
    return Filtered(fitting=[node], best=node, is_short=True)


def _controller_uid(pod: Pod) -> str:
    return pod.controller_uid
