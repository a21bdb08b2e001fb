"""Find the gangs for which something has to be done now (pure)."""

from collections.abc import Iterator

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import GangRecord
from gpushare.groups.group import Group
from gpushare.objects.model import Pod


class GangStages:
    """Sorts gangs by what they need."""

    def __init__(self, gangs: Gangs) -> None:
        self._gangs, self._state = gangs, gangs.state
        self._ledger, self._groups = gangs.state.ledger, gangs.state.groups

    def expired(self) -> Iterator[GangRecord]:
        """Yield the gangs whose hold has expired before a member was bound."""
        now = self._state.clock.monotonic()
        for record in list(self._gangs.records.values()):
            if record.is_whole:
                self._more_expired(record, now)
                continue
            if not record.plan or record.begun_at is not None:
                continue
            if not self._ledger.slot_count(record.owner):
                record.plan = ""
                record.wait_longer(now)
                yield record

    def in_part(self) -> Iterator[Group]:
        """Yield the gangs that have some of their nodes or slots and lack others, if that is new.

        Those without a bound member do not wait for their time: they may have to let go. Others
        are planned again less and less often as long as they have no room.
        """
        now = self._state.clock.monotonic()
        for record in list(self._gangs.records.values()):
            has_begun = record.begun_at is not None
            if record.is_whole or record.is_broken or not (record.plan or has_begun):
                continue
            group = self._groups.named(record.owner)
            if group is None or not group.is_ours or not self._gangs.lacking(group, record):
                continue
            is_due = now >= record.wait_until or not has_begun
            is_due &= not record.rests(now, group.version)
            if is_due and record.tried != self._gangs.revision(group):
                yield group

    def stranded(self) -> Iterator[tuple[Group, list[Pod]]]:
        """Yield gangs that have not begun, and had no room in their zone for too long.

        With each come the members that are tied to the zone. kube-scheduler may have bound members
        without GPU memory: this does not help the others.
        """
        now = self._state.clock.monotonic()
        for record in list(self._gangs.records.values()):
            group, since = self._groups.named(record.owner), record.stranded_since
            if group is None or since is None:
                continue
            tied = self._gangs.tied(group)
            if group.begun or not tied:
                record.stranded_since = None
            elif now - since >= self._gangs.complete_seconds(group):
                yield group, tied

    def begun(self) -> Iterator[tuple[Group, GangRecord]]:
        """Yield the gangs of which some members are bound, and never the minimum was."""
        for record in list(self._gangs.records.values()):
            if record.begun_at is None or record.is_whole:
                continue
            group = self._groups.named(record.owner)
            if group is not None and group.is_ours:
                yield group, record

    def without_plan(self) -> Iterator[Group | None]:
        """Yield the gangs that have enough members and no plan for them, and None for each other.

        Members beyond the minimum count only if they are gated, because kube-scheduler does not
        ask about them, or if filter rejects them until it is their turn in the queue.
        """
        for group in list(self._groups):
            yield group if self.is_without_plan(group) else None

    def is_without_plan(self, group: Group) -> bool:
        """Return whether a gang has enough members and no plan for them, as ``without_plan``."""
        return (
            group.count > group.bound
            and group.is_ours
            and group.problem is None
            and self._lacks_plan(group)
            and (self._gangs.is_asked_about(group) or self._gangs.record(group).is_whole)
        )

    def complete(self) -> Iterator[Group | None]:
        """Yield the gangs whose minimum is placed or has slots, if members have no node yet.

        Yield None for each other one.
        """
        for group in list(self._groups):
            record = self._gangs.records.get(str(group.key))
            is_waiting = group.count > group.bound and group.problem is None
            if not is_waiting or record is None:
                yield None
            elif record.is_whole or (record.plan and not self._gangs.lacking(group, record)):
                yield group
            else:
                yield None

    def lacking_members(self) -> Iterator[tuple[Group, GangRecord]]:
        """Yield the gangs that have too few members, if one was rejected for it, gated or bound."""
        for record in list(self._gangs.records.values()):
            is_of_interest = record.lacks_since is not None or record.begun_at is not None
            group = self._groups.named(record.owner) if is_of_interest else None
            if group is None:
                continue
            if record.is_whole or self._gangs.has_members(group, record):
                record.lacks_since = None
                continue
            if record.lacks_since is None:
                record.lacks_since = self._state.clock.monotonic()
            yield group, record

    def _lacks_plan(self, group: Group) -> bool:
        record = self._gangs.record(group)
        if record.is_whole:
            is_queued = self._gangs.is_queued(group)
            waiting = self._gangs.progress(group).waiting if group.gated or is_queued else ()
            return any(is_queued or pod.has_our_gate for pod in waiting)
        if record.is_broken:
            return False
        if not self._gangs.has_members(group, record):
            if group.gated and record.lacks_since is None:  # kube-scheduler asks about none of them
                record.lacks_since = self._state.clock.monotonic()
            return False
        return not record.plan or self._gangs.lacking(group, record) > 0

    def _more_expired(self, record: GangRecord, now: float) -> None:
        """Let a whole gang rest if members beyond its minimum did not come to their slots."""
        if not record.holds_more or self._ledger.slot_count(record.owner):
            return
        record.holds_more = False
        group = self._groups.named(record.owner)
        waiting = self._gangs.progress(group).waiting if group is not None else ()
        if any(not pod.gates for pod in waiting):
            record.wait_longer(now)
        else:
            record.wait_seconds = 0.0
