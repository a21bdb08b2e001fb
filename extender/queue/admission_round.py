"""Goes once through all that waits, in order, and keeps room for what fits."""

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from extender.decisions.gangs.gangs import HELD_SECONDS, Gangs
from extender.decisions.gangs.stages import GangStages
from extender.decisions.queue.heads import Entry
from extender.decisions.queue.order import QueueOrder, Standing
from extender.decisions.queue.waiting_pods import Kind, WaitingPods
from extender.gangs.planning import GangPlanning, Kept
from extender.settings.configuration import QueueSettings
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.quota.reasons import TEXTS as QUOTA_TEXTS

ROUND_SECONDS: Final = 1.0  # for plans, of one round
EXAMINED_A_STEP: Final = 16
SHAPES_AT_ONCE: Final = 100  # that have no room, in one round

Admitted = Callable[[Group | Pod], Awaitable[None]]
Revision = tuple[int, int, int, int]


class AdmissionRound:
    """What has no room is passed by what comes after it, unless ``backfill`` is off.

    Pods of a shape that has no room are not tried again in a round. If room appears in the meantime
    it goes to the first in the order that fits. A namespace over its quota holds up no other one.

    A round ends before all entries were tried if too many have no room. The first half of the next
    one is for the first entries again, and the other half for those that were not tried yet. So
    each entry is tried before long, however many others have no room.

    As long as entries fit, there is a hurry: their pods could run already. A plan for what does not
    fit has time, and may be made again and again.

    ``is_cut_short`` says that the last round has ended by its time and the last entry did fit.
    ``without_room`` are the entries for which there was no room when they were last tried, those of
    the last round in its order and then those that it did not reach.
    """

    def __init__(
        self,
        gangs: Gangs,
        planning: GangPlanning,
        pods: WaitingPods,
        settings: QueueSettings,
    ) -> None:
        self._gangs, self._state, self._planning = gangs, gangs.state, planning
        self._stages, self._pods, self._settings = GangStages(gangs), pods, settings
        self.without_room: list[tuple[Standing, Entry]] = []
        self.is_cut_short = False
        self._fits = False  # whether the last plan has kept room
        self._tried: Revision | None = None
        self._order = self._new_order()
        self._failed: list[tuple[Standing, Entry]] = []
        self._tried_owners: set[str] = set()  # in rounds that ended before all entries were tried
        self._gave_way = False
        self._full: set[Hashable] = set()  # shapes
        self._closed: set[str] = set()  # namespaces whose first entry waits, without backfill
        self._blocking: set[str] = set()  # owners of the entries that nothing may pass, then
        self._full_at = (0, 0)  # the revision before the first of them was tried
        self._used: set[str] = set()  # nodes that have changed since then by what was kept here

    async def run(self, admitted: Admitted) -> None:
        """Keep room for what fits now, and report each gang and pod that has got it."""
        with self.pace():
            await self._planning.slices.run(self._pods.renew())
        is_new = self._begin()
        self.is_cut_short = False
        with self.pace():
            groups, is_due = await self._planning.slices.run(self._groups_without_plan())
        is_unblocked = not all(map(self._waits, self._blocking))
        if not (is_new or is_due or is_unblocked or self._tried_owners):
            return
        self._blocking.clear()
        with self.pace():
            await self._planning.slices.run(self._fill(groups))
        await self._planning.slices.pause()
        left_out = await self._try_all(admitted)
        before, left = self.without_room, self._order.owners() | left_out
        not_reached = [each for each in before if each[0].owner in left]
        self.without_room = [*self._failed, *not_reached]

    async def _try_all(self, admitted: Admitted) -> set[str]:
        """Try entries in order until the round ends; return the owners of those left out."""
        clock, examined = self._state.clock, 0
        now = clock.monotonic()
        front_until, until = now + ROUND_SECONDS / 2, now + ROUND_SECONDS
        tried_before, left_out = set(self._tried_owners), set[str]()
        while (found := self._order.pop()) is not None:
            owner = found[0].owner
            examined += 1
            if examined % EXAMINED_A_STEP == 0:  # most need no plan, which pauses by itself
                await self._planning.slices.pause()
                now = clock.monotonic()
            is_front = len(self._full) < SHAPES_AT_ONCE // 2 and now < front_until
            if owner in tried_before and not is_front:
                left_out.add(owner)
                continue
            tried_before.discard(owner)
            self._tried_owners.add(owner)
            if not await self._admit(*found, admitted) and not self._settings.backfill:
                self._blocking.add(owner)
                break
            now = clock.monotonic()
            if now > until:
                self.is_cut_short = self._fits
                return left_out
            if len(self._full) >= SHAPES_AT_ONCE:
                return left_out
        self._tried_owners.clear()
        return left_out

    def _groups_without_plan(self) -> Generator[None, None, tuple[list[Group], bool]]:
        """Return the gangs to plan, and whether one of them is due."""
        found, is_due = list[Group](), False
        for group in self._stages.without_plan():
            if group is not None:
                found.append(group)
                is_due = is_due or self._gangs.is_due(group, self._gangs.record(group))
            yield
        return found, is_due

    def _fill(self, groups: Iterable[Group]) -> Generator[None, None, None]:
        for group in groups:
            self._order.put(self._gangs.standing(group), group)
            yield
        for standing, kind in self._pods.firsts():
            self._order.put(standing, kind)
            yield

    def pace(self) -> AbstractContextManager[None]:
        """Return what is entered for work that should go on fast as long as entries fit."""
        return self._planning.slices.hurry() if self._fits else nullcontext()

    def _begin(self) -> bool:
        """Return whether anything has changed since the last round for pods without a gang."""
        state = self._state
        ledger, resources = state.ledger.changes.now, state.resource_changes.now
        revision = ledger, resources, state.namespaces.version, self._pods.entered
        is_new = revision != self._tried
        if not self._tried_owners:  # otherwise those were tried before the latest changes
            self._tried = revision
        self._order, self._failed = self._new_order(), []
        self._full.clear()
        self._closed.clear()
        return is_new

    async def _admit(self, standing: Standing, entry: Entry, admitted: Admitted) -> bool:
        """Return False if there is no room for an entry."""
        if standing.namespace in self._closed:
            return True
        if not self._failed:
            self._note_revision()
        if isinstance(entry, Group):
            return await self._admit_gang(standing, entry, admitted)
        return await self._admit_pod(standing, entry, admitted)

    async def _admit_gang(self, standing: Standing, group: Group, admitted: Admitted) -> bool:
        gangs, record = self._gangs, self._gangs.record(group)
        if self._state.clock.monotonic() < record.wait_until:
            return True  # its members did not come: it holds up nobody
        if gangs.is_due(group, record) and await self._plan(group):
            hold = self._state.ledger.hold_of(standing.owner)
            self._used.update(slot.node for slot in (hold.slots if hold is not None else ()))
            await admitted(group)
            return True
        if record.no_room is None:
            return True  # nothing is missing, or it cannot be planned now
        if record.no_room.reason.text in QUOTA_TEXTS:
            return self._over_quota(standing)
        self._failed.append((standing, group))
        return False

    async def _admit_pod(self, standing: Standing, kind: Kind, admitted: Admitted) -> bool:
        pod = self._pods.pod(standing.owner)
        if pod is not None and self._state.ledger.slot_of(pod.uid) is None:
            if kind.shape in self._full:
                self._failed.append((standing, kind))
                return False
            self._gave_way = False
            kept = await self._keep(pod, standing)
            if kept is Kept.OVER_QUOTA:
                return self._over_quota(standing)
            if self._gave_way:
                self._order.put(standing, kind)
                return True
            if kept is not Kept.KEPT:
                self._full.add(kind.shape)
                self._failed.append((standing, kind))
                return False
            await admitted(pod)
        self._pods.took_slot(standing.owner)
        if (after := self._pods.first(kind)) is not None:
            self._order.put(after, kind)
        return True

    def _over_quota(self, standing: Standing) -> bool:
        if not self._settings.backfill:
            self._closed.add(standing.namespace)
            self._blocking.add(standing.owner)
        return True

    def _waits(self, owner: str) -> bool:
        group = self._state.groups.named(owner)
        if group is not None:
            return self._stages.is_without_plan(group)
        return self._pods.pod(owner) is not None

    async def _plan(self, group: Group) -> bool:
        with self.pace():
            self._fits = await self._planning.plan(group)
        return self._fits

    async def _keep(self, pod: Pod, standing: Standing) -> Kept:
        expires_at = self._state.clock.monotonic() + HELD_SECONDS
        ask = Ask(pod.uid, (pod,), 1, cooling=self._gangs.cooling())
        with self.pace():
            kept = await self._planning.hold_for(
                ask, expires_at, lambda node: self._may_use(node, standing)
            )
        self._fits = kept is Kept.KEPT
        return kept

    def _may_use(self, node: str, standing: Standing) -> bool:
        """Return False, and have earlier entries tried again, if the room has just appeared."""
        if self._failed and node not in self._used and self._has_changed(node):
            key, own = self._order.key, self._order.key(standing)
            again, later = list[tuple[Standing, Entry]](), list[tuple[Standing, Entry]]()
            for each in self._failed:
                (again if key(each[0]) < own else later).append(each)
            if again:
                self._failed = later
                for before, entry in again:
                    self._order.put(before, entry)
                    if isinstance(entry, Kind):
                        self._full.discard(entry.shape)
                self._note_revision()
                self._gave_way = True
                return False
        self._used.add(node)
        return True

    def _note_revision(self) -> None:
        """Room that appears on a node from now on goes to what has failed by then."""
        self._full_at = self._state.ledger.changes.now, self._state.resource_changes.now
        self._used.clear()

    def _has_changed(self, node: str) -> bool:
        """Return whether a node may have got room since the first entry had none."""
        both = self._state.ledger.changes, self._state.resource_changes
        for changes, at in zip(both, self._full_at, strict=True):
            names = changes.since(at)
            if names is None or node in names:
                return True
        return False

    def _new_order(self) -> QueueOrder[Entry]:
        return QueueOrder(self._settings.order, self._state.quotas.share)
