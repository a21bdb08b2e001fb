"""Know how far each gang is: its members, its plan, and what is kept for it (pure).

A gang without a plan keeps nothing. A plan has a slot for each missing member; its slots are held
together. A member passes only with a slot, and is bound only while all others up to the minimum
are bound or have slots. Once the minimum is bound, members are placed one by one.

What members are answered is in ``members``, what is planned for a gang in ``plans``, and which
gangs need something in ``stages``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.former import FormerGangs
from extender.decisions.gangs.record import GangRecord, Revision
from gpushare.annotations.slot_hint import is_released
from gpushare.groups.group import Group
from gpushare.groups.reasons import NOT_ASKED
from gpushare.groups.sources import key_of
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import ZoneRole
from gpushare.quota.order import Given, Standing

HELD_SECONDS: Final = 30.0  # without a sign of life from a member, and none bound
MOST_TIMES: Final = 10  # the time of the configuration, which a PodGroup may ask for


@dataclass(frozen=True, slots=True)
class GangPolicy:
    """``complete_seconds`` is how long a gang may take from its first bound member to its minimum.

    A PodGroup may state another time, at most MOST_TIMES as long. ``roles`` restrict zones to gangs
    of some sizes.
    """

    complete_seconds: float = 300.0
    roles: tuple[ZoneRole, ...] = ()


_POLICY: Final = GangPolicy()


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
    ``gates_stay``: whether this replica decides, and may not remove gates.
    """

    def __init__(self, state: ClusterState, policy: GangPolicy = _POLICY) -> None:
        self.state, self._ledger, self._groups = state, state.ledger, state.groups
        self.policy = policy
        self.records: dict[str, GangRecord] = {}
        self._former = FormerGangs()
        self.may_keep, self.admits, self.gates_stay = True, False, False
        state.ended_of = self.ended_of

    def group_of(self, pod: Pod) -> Group | None:
        """Return the gang of a pod as the watch has shown it."""
        return self._groups.of(pod.uid)

    def record(self, group: Group) -> GangRecord:
        """Return what is known about a gang; a new record if it is a new one."""
        owner = str(group.key)
        record = self.records.get(owner)
        if record is None:
            record = GangRecord(owner)
            if self.is_current(group):
                self.records[owner] = record
        return record

    def is_current(self, group: Group) -> bool:
        """Return whether a gang has members, and others of its name are not a new gang."""
        return self._groups.get(group.key) is group

    def known(self, group: Group) -> GangRecord | None:
        """Return what is known about a gang beyond its members; None if that is nothing."""
        return self.records.get(str(group.key))

    def ended_of(self, group: Group) -> int:
        """Return how many members have succeeded, as far as the API server was asked for them."""
        record = self.known(group)
        return record.ended if record is not None else 0

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
        state = self.state
        namespaces = state.namespaces.version
        return self._ledger.changes.now, state.resource_changes.now, namespaces, group.version

    def standing(self, group: Group) -> Standing:
        """Return what the gang is ordered by among all that waits."""
        record = self.records.get(str(group.key))
        has_begun = record is not None and bool(record.plan or group.bound)
        # Members beyond the minimum have no precedence: a gang may have any number of them.
        is_started = has_begun and group.bound + self.ended_of(group) < group.minimum
        namespace = group.key.namespace
        given = Given.PART if is_started else self.state.head_claims.given(str(group.key))
        return Standing(group.priority, given, namespace, group.created, str(group.key))

    def is_queued(self, group: Group) -> bool:
        """Return whether members without a gate get their room in the order of the queue too."""
        return self.admits and self.state.namespaces.is_queued(group.key.namespace)

    def complete_seconds(self, group: Group) -> float:
        """Return the time from the first bound member of a gang to its minimum."""
        configured = self.policy.complete_seconds
        return min(group.complete_seconds or configured, configured * MOST_TIMES)

    def held_until(self, record: GangRecord) -> float:
        """Return when the hold of a gang ends that has not begun, if no other member is offered.

        A member about which kube-scheduler never asks must not hold the room for longer than the
        configuration says, whatever the gang asks for.
        """
        latest = record.held_at + self.policy.complete_seconds
        return min(self.state.clock.monotonic() + HELD_SECONDS, latest)

    def problem_of(self, group: Group) -> Reason | None:
        """Return why no member may be placed, as long as that does not change."""
        return group.problem or (None if self.is_asked_about(group) else NOT_ASKED)

    def is_asked_about(self, group: Group) -> bool:
        """Return whether each member without a node is left to a scheduler that asks us.

        kube-scheduler does not ask about members without GPU memory, but a scheduler that asks
        about the others places them too.
        """
        return self.state.callers.are_ours(group.schedulers)

    def lacking(self, group: Group, record: GangRecord) -> int:
        """Return how many members up to the minimum have neither a node nor a slot.

        Return 0 once the gang was whole: its members are placed one by one.
        """
        if record.is_whole:
            return 0
        placed = group.bound + record.ended + self._ledger.slot_count(record.owner)
        return max(0, group.minimum - placed)

    def has_members(self, group: Group, record: GangRecord) -> bool:
        """Return whether the minimum could be placed, given enough room."""
        return group.count + record.ended >= group.minimum

    def is_due(self, group: Group, record: GangRecord) -> bool:
        """Return whether something has changed since the last plan failed, and it has rested."""
        rests = record.rests(self.state.clock.monotonic(), group.version)
        return not rests and self.has_changed(group, record)

    def has_changed(self, group: Group, record: GangRecord) -> bool:
        """Return whether something has changed since the last plan failed."""
        if self.state.clock.monotonic() < record.wait_until:
            return False
        return record.tried != self.revision(group)

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

        A binding that is being written decides as one that is: two at once must not differ.
        kube-scheduler binds members without GPU memory itself, in a zone of the gang only if a gate
        was removed from them: where they are decides nothing.
        """
        if not group.zone_key:
            return None
        found = None
        for pod in group.present():
            if pod.node and self.state.pod(pod.uid) is None:
                continue
            decided = pod.node or self.reserved_on(pod)
            zone = self._label(decided or self.node_of(pod), group.zone_key)
            if zone is not None and decided:
                return zone
            found = found or zone
        return found

    def may_be_in_any_zone(self, group: Group) -> bool:
        """Return whether a member is being bound to a node that is not known.

        It may be created again, in any zone, before the binding is written.
        """
        if not group.zone_key:
            return False
        nodes = (self.reserved_on(pod) for pod in group.present() if not pod.node)
        return any(name and self.state.node(name) is None for name in nodes)

    def outside(self, group: Group) -> list[Slot]:
        """Return the slots that are not in the zone of their gang: it may lose a node, for example.

        Where members are bound decides, else where the most important one has its slot.
        """
        zone = self.zone_of(group)
        hold = self._ledger.hold_of(str(group.key)) if zone is not None else None
        slots = hold.slots if hold is not None else ()
        return [slot for slot in slots if self._label(slot.node, group.zone_key) != zone]

    def give_up(self, group: Group) -> None:
        """Let go of all that is kept for a gang of which no member is bound."""
        record = self.record(group)
        self._ledger.drop(Hold, record.owner)
        record.plan = ""
        record.offered.clear()

    def speaks(self, pod: Pod) -> bool:
        """Return whether Events about the pod are written: of a gang, only one member gets them."""
        group = self._groups.of(pod.uid)
        return group is None or self.speaker(group) in {"", pod.uid}

    def is_binding(self, group: Group) -> bool:
        """Return whether the binding of a member is being written, or its outcome is unknown."""
        slots = filter(None, (self._ledger.slot_of(uid) for uid in group.members))
        return any(self._ledger.reserve_of(each.pod_uid, each.node) is not None for each in slots)

    def speaker(self, group: Group) -> str:
        """Return the first member with GPU memory and without a node; empty without any."""
        waiting = (each.uid for each in group.present() if not each.node)
        return next((uid for uid in waiting if self.state.pod(uid) is not None), "")

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
            self._drop(before, pod)
        if after is not None:
            record = self.records.get(str(after.key))
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
        pod = group.members[uid] if group is not None else None
        self._groups.forget(uid)
        if group is not None and pod is not None:
            self._drop(group, pod)

    def tied(self, group: Group) -> list[Pod]:
        """Return the members without a node that were released into a zone, and must go there."""
        return [pod for pod in group.present() if group.zone_key and is_released(pod)]

    def ended(self, group: Group, number: int, controllers: frozenset[str]) -> None:
        """Note how many members have succeeded, of those that these controllers created."""
        if not self.is_current(group):
            return
        record = self.record(group)
        record.ended, record.ended_of = number, controllers
        self._check(group)

    def recall(self, group: Group, record: GangRecord) -> None:
        """Place members alone that replace the last ones of a gang that was whole."""
        now, controllers = self.state.clock.monotonic(), map(_controller_uid, group.present())
        if self._former.includes(record.owner, frozenset(controllers), now):
            self.become_whole(record)

    def broke(self, group: Group) -> None:
        """Let go of all that is kept for a gang that has begun and gets no minimum."""
        self.give_up(group)
        record = self.record(group)
        record.is_broken = True
        record.wait_longer(self.state.clock.monotonic())

    def is_broken(self, pod: Pod) -> bool:
        """Return whether the gang of a pod is to be evicted."""
        group = self._groups.of(pod.uid)
        return group is not None and self.record(group).is_broken

    def begin_again(self, group: Group) -> None:
        """Let a broken gang, of which nothing more can be evicted, look for room again.

        Its time begins when it is planned again.
        """
        record, now = self.record(group), self.state.clock.monotonic()
        record.is_broken, record.begun_at = False, max(now, record.wait_until)

    def forget_plans(self) -> None:
        """Forget all plans: another replica decides. The caller drops the holds.

        No plan that is being made is kept any more, until this replica takes over again.
        """
        self.may_keep = self.admits = self.gates_stay = False
        for record in self.records.values():
            record.plan, record.tried, record.no_room = "", None, None
            record.holds_more = False
            record.offered.clear()
            record.avoid.clear()

    def _drop(self, group: Group, pod: Pod) -> None:
        """Take note that a pod is no member of ``group`` any more."""
        self._ledger.drop_slot(pod.uid)
        record = self.records.get(str(group.key))
        if record is not None:
            record.offered.discard(pod.uid)
            record.avoid.pop(pod.uid, None)
        if group.members:
            self._check(group)
        elif record is not None:
            if record.is_whole:
                self._former.put(record.owner, (pod.controller_uid,), self.state.clock.monotonic())
            self._ledger.drop(Hold, record.owner)
            del self.records[record.owner]

    def _check(self, group: Group) -> None:
        """Note how far a gang is; one that is invalid or lacks members lets go of its slots."""
        record = self.records.get(str(group.key))
        if record is None:
            if not (group.bound and group.is_ours):
                return
            record = self.record(group)
        if record.is_whole and group.bound:
            return
        now = self.state.clock.monotonic()
        if record.ended and record.ended_of.isdisjoint(map(_controller_uid, group.present())):
            record.ended = 0  # those of an earlier run
        if record.is_whole and not record.ended:
            # All members are gone: others with the same name are a new gang.
            self._former.put(record.owner, map(_controller_uid, group.present()), now)
            self._ledger.drop(Hold, record.owner)
            record = self.records[record.owner] = GangRecord(record.owner)
        if group.bound and self._has_minimum(group, record):
            self.become_whole(record)
        elif group.begun:
            if record.begun_at is None:
                record.begun_at = now
                self._ledger.renew(record.owner, inf)
                self._ledger.make_firm(record.owner)
        else:
            self._has_not_begun(group, record)

    def _has_not_begun(self, group: Group, record: GangRecord) -> None:
        if record.begun_at is not None:  # what was kept without an end has one again
            now = self.state.clock.monotonic()
            self._ledger.renew(record.owner, now + HELD_SECONDS)
        record.begun_at, record.is_broken, record.may_have_worked = None, False, False
        may_start = self.problem_of(group) is None and self.has_members(group, record)
        if record.plan and not may_start:
            self.give_up(group)

    def become_whole(self, record: GangRecord) -> None:
        """Note that the minimum is bound, or was once: members are placed one by one now."""
        record.is_whole, record.is_broken, record.wait_seconds = True, False, 0.0
        self._ledger.renew(record.owner, self.state.clock.monotonic() + HELD_SECONDS)

    def _has_minimum(self, group: Group, record: GangRecord) -> bool:
        """Return whether the minimum is bound; while the minimum is unknown, nobody can say."""
        return group.problem is None and group.bound + record.ended >= group.minimum

    def reserved_on(self, pod: Pod) -> str:
        """Return the node to which a binding is being written; empty without one."""
        nodes = sorted(self._ledger.reserved_on(pod.uid))
        return next((at for at in nodes if self._ledger.reserve_of(pod.uid, at) is not None), "")

    def node_of(self, pod: Pod) -> str:
        """Return the node to which a member is bound, or that of its slot; empty without any."""
        slot = self._ledger.slot_of(pod.uid)
        return pod.node or (slot.node if slot is not None else "")

    def cooling(self) -> frozenset[str]:
        """Return the nodes that take no pods with GPU memory for a while."""
        return frozenset(self.state.failing_nodes.cooling(self.state.clock.monotonic()))

    def _label(self, node: str, key: str) -> str | None:
        found = self.state.node(node)
        return found.labels.get(key) if found is not None else None


def _controller_uid(pod: Pod) -> str:
    return pod.controller_uid
