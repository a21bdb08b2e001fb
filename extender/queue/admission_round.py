"""Goes once through all that waits, in order, and keeps room for what fits."""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, zip_longest
from math import inf
from typing import Final

from extender.decisions.gangs.gangs import HELD_SECONDS, Gangs
from extender.decisions.gangs.plans import GangPlans
from extender.decisions.gangs.stages import GangStages
from extender.decisions.queue.heads import Entry
from extender.decisions.queue.waiting_pods import Kind, WaitingPods
from extender.gangs.planning import GangPlanning, Kept
from extender.settings.configuration import QueueSettings
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.quota.order import QueueOrder, Standing
from gpushare.quota.reasons import TEXTS as QUOTA_TEXTS

FRONT_SECONDS: Final = 0.05  # for plans of the first entries in one round that find no room
TURNS_SECONDS: Final = 0.1  # and of the others
FITTING_SECONDS: Final = 1.0  # for plans of entries that fit
EXAMINED_A_STEP: Final = 16

Admitted = Callable[[Group | Pod], Awaitable[None]]
Revision = tuple[int, int, int, int]


class AdmissionRound:
    """What has no room is passed by what comes after it, unless ``backfill`` is off.

    Pods of a shape that has no room are not tried again in a round. If room appears in the meantime
    it goes to the first in the order that fits. A namespace over its quota holds up no other one.

    A round ends before all entries were tried if their plans take too much time. The first part of
    each round is for the first entries again, and the other part for those that were not tried yet:
    there namespaces take turns. So each entry is tried before long, however many others have no
    room, and a new one of another namespace in the next round.

    An entry for which GPUs are claimed is asked itself, whatever others of its shape were answered:
    the claim is in their way, and not in its own.

    As long as entries fit, there is a hurry: their pods could run already. A plan for what does not
    fit has time, and may be made again and again.

    ``is_passed_over`` returns whether an entry holds up nobody, also without ``backfill``: it would
    not fit even if all pods ended. One that needs more than the whole quota holds up nobody either.

    ``is_cut_short`` says that the last round has ended by its time while entries did fit.
    ``without_room`` are the entries for which there was no room when they were last tried, in
    order.
    """

    def __init__(
        self,
        gangs: Gangs,
        planning: GangPlanning,
        pods: WaitingPods,
        settings: QueueSettings,
        is_passed_over: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._gangs, self._state, self._planning = gangs, gangs.state, planning
        self._stages, self._pods, self._settings = GangStages(gangs), pods, settings
        self._plans = GangPlans(gangs)
        self.without_room: list[tuple[Standing, Entry]] = []
        self.is_cut_short = False
        self._fits = False  # whether the last plan has kept room
        self._tried: Revision | None = None
        self._order = self._new_order()
        self._failed: list[tuple[Standing, Entry]] = []
        self._aside: list[tuple[Standing, Entry]] = []  # those that hold up nobody
        self._is_passed_over = is_passed_over
        # Rounds count from 1. Those since the first one have together not tried all entries yet.
        self._number, self._first_number, self._is_incomplete = 0, 1, False
        self._tried_in: dict[str, int] = {}  # the number of the last round, by owner
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
        is_unblocked = not all(map(self._blocks, self._blocking))
        if not (is_new or is_due or is_unblocked or self._is_incomplete):
            return
        self._blocking.clear()
        with self.pace():
            await self._planning.slices.run(self._fill(groups))
        await self._planning.slices.pause()
        owners = {standing.owner for standing, _ in (*self._order.entries(), *self._aside)}
        self._tried_in = {each: at for each, at in self._tried_in.items() if each in owners}
        await self._try_all(admitted)
        not_tried = {each for each in owners if self._tried_in.get(each) != self._number}
        not_reached = [each for each in self.without_room if each[0].owner in not_tried]
        found = [*self._failed, *not_reached]
        found.sort(key=lambda each: self._order.key(each[0]))
        self.without_room = found

    async def _try_all(self, admitted: Admitted) -> None:
        """Try entries until the round ends."""
        backfill = self._settings.backfill  # without it, nothing comes before the first no anyway
        left = await self._try_some(FRONT_SECONDS if backfill else inf, (), admitted)
        self._is_incomplete = self.is_cut_short
        if not self.is_cut_short:
            turns = self._by_turns(left if backfill else self._aside)
            self._order = self._new_order()
            self._is_incomplete = bool(await self._try_some(TURNS_SECONDS, turns, admitted))

    async def _try_some(
        self, seconds: float, others: Iterable[tuple[Standing, Entry]], admitted: Admitted
    ) -> list[tuple[Standing, Entry]]:
        """Try entries in order, and then others; return what is left.

        It ends at an entry that nothing may pass, after ``seconds`` of plans without room, or after
        FITTING_SECONDS of plans with room. What other computations use meanwhile counts too.
        """
        slices, turns = self._planning.slices, deque(others)
        began, wasted, examined = slices.spent, 0.0, 0
        while (found := self._order.pop() or (turns.popleft() if turns else None)) is not None:
            examined += 1
            if examined % EXAMINED_A_STEP == 0:  # most need no plan, which pauses by itself
                await slices.pause()
            self.is_cut_short = slices.spent - began - wasted > FITTING_SECONDS
            if self.is_cut_short or wasted > seconds:
                return [found, *self._order.entries(), *turns]
            (standing, entry), before = found, slices.spent
            self._tried_in[standing.owner] = self._number
            if not await self._admit(standing, entry, admitted) and self._is_blocking(standing):
                self._blocking.add(standing.owner)
                return [*self._order.entries(), *turns]
            if not self._fits:
                wasted += slices.spent - before
        return []

    def _is_blocking(self, standing: Standing) -> bool:
        return not (self._settings.backfill or self._is_passed_over(standing.owner))

    def _by_turns(self, entries: Iterable[tuple[Standing, Entry]]) -> list[tuple[Standing, Entry]]:
        """Return the entries that were not tried since the first of these rounds.

        Namespaces take turns, first those of which none was tried for longest. Within one, those
        come first that have waited longest for a try.
        """
        turns: dict[str, list[tuple[int, Standing, Entry]]] = {}
        last = dict[str, int]()
        for standing, entry in entries:
            name, tried_in = standing.namespace, self._tried_in.get(standing.owner, 0)
            last[name] = max(tried_in, last.get(name, 0))
            if tried_in < self._first_number:
                turns.setdefault(name, []).append((tried_in, standing, entry))
        for here in turns.values():
            here.sort(key=lambda each: (each[0], each[1].age))
        together = zip_longest(
            *(turns[name] for name in sorted(turns, key=lambda name: last[name]))
        )
        return [each[1:] for some in together for each in some if each is not None]

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
        gangs = ((self._gangs.standing(group), group) for group in groups)
        entries: Iterable[tuple[Standing, Entry]] = chain(gangs, self._pods.firsts())
        for standing, entry in entries:
            yield
            if self._settings.backfill or not self._is_passed_over(standing.owner):
                self._order.put(standing, entry)
            else:
                self._aside.append((standing, entry))

    def pace(self) -> AbstractContextManager[None]:
        """Return what is entered for work that should go on fast as long as entries fit."""
        return self._planning.slices.hurry() if self._fits else nullcontext()

    def _begin(self) -> bool:
        """Return whether anything has changed since the last round for pods without a gang."""
        state = self._state
        ledger, resources = state.ledger.changes.now, state.resource_changes.now
        revision = ledger, resources, state.namespaces.version, self._pods.entered
        is_new = revision != self._tried
        self._number += 1
        if not self._is_incomplete:  # otherwise some were tried before the latest changes
            self._tried, self._first_number = revision, self._number
        self._order, self._aside, self._failed = self._new_order(), [], []
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
            return self._over_quota(standing, self._plans.ask(group))
        if not self._pods.can_group_ever_fit(group):
            return True
        self._failed.append((standing, group))
        return False

    async def _admit_pod(self, standing: Standing, kind: Kind, admitted: Admitted) -> bool:
        pod = self._pods.pod(standing.owner)
        if pod is not None and self._state.ledger.slot_of(pod.uid) is None:
            has_claim = self._state.ledger.claim_slot_of(pod.uid) is not None
            if kind.shape in self._full and not has_claim:
                self._failed.append((standing, kind))
                return False
            self._gave_way = False
            kept = await self._keep(pod, standing)
            if kept is Kept.OVER_QUOTA:
                return self._over_quota(standing, Ask(pod.uid, (pod,), 1))
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

    def _over_quota(self, standing: Standing, ask: Ask | None) -> bool:
        may_wait = ask is not None and self._state.quotas.may_ever_permit(ask)
        if may_wait and not self._settings.backfill:
            self._closed.add(standing.namespace)
            self._blocking.add(standing.owner)
        return True

    def _blocks(self, owner: str) -> bool:
        """Return whether an entry still holds up others."""
        if self._is_passed_over(owner):
            return False
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
