"""Makes room for pods and gangs by evicting pods of a lower priority, and gives them that room."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.preemption.preemptors import Preemptor, Preemptors
from extender.decisions.preemption.records import PreemptionRecord
from extender.decisions.scheduling import Scheduling
from extender.gangs.planning import GangPlanning
from extender.gangs.pokes import Pokes
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.metrics.counters import PREEMPTIONS_IN_VAIN
from extender.preemption.budgets import BudgetWatch
from extender.preemption.evicting import VictimEvictions
from extender.preemption.planning import Attempt, PreemptionPlanning
from extender.settings.configuration import PreemptionSettings
from extender.watch.events import Notice
from gpushare.errors import RequestError
from gpushare.ledger.holds import Claim
from gpushare.planning.shapes import Reader

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 0.2
UNCHANGED_SECONDS: Final = 30.0
MOST_DOUBLED: Final = 5  # from a second
SEARCHES_AT_ONCE: Final = 20  # in one round
ROUND_SECONDS: Final = 0.1  # of a CPU, after which no further search begins in a round
RESTS: Final = 20  # times as long as a search that found no plan has taken, until the next one
FIRST_PART: Final = 16  # of the work that a search may take, in the first one; then twice as much
OPEN_SECONDS: Final = 5.0  # in which a plan that was stopped is replaced
TAKEOVER_SECONDS: Final = 3.0


@dataclass(slots=True)
class _Search:
    """The last search for an owner: what it was based on, when it began, what it cost.

    It was the one with this number. ``gave_up``: the next one, for which ``part`` is, does more.
    """

    revision: tuple[int, int, int] = (0, 0, 0)
    at: float = -inf
    times: int = 0
    part: int = FIRST_PART
    seconds: float = 0.0
    gave_up: bool = False


class Evictor:
    """One plan at a time for each pod and gang that waits.

    A plan claims its room before anybody is evicted. The claim becomes a hold once all victims are
    gone. If one of them does not end in time, another plan with others replaces it.
    """

    def __init__(
        self,
        *,
        scheduling: Scheduling,
        planning: GangPlanning,
        budgets: BudgetWatch,
        writer: Writer,
        releaser: Releaser,
        right: PatchRight,
        notice: Notice,
        settings: PreemptionSettings,
    ) -> None:
        self._state, self._ledger = scheduling.state, scheduling.state.ledger
        self._clock, self._preemptions = scheduling.state.clock, scheduling.preemptions
        self._gangs, self._planning, self._budgets = scheduling.gangs, planning, budgets
        self._right, self._pokes = right, Pokes(releaser, right, self._clock)
        self._proposals, self._is_prompt = scheduling.proposals, not settings.delay_seconds
        self._preemptors = Preemptors(
            self._state,
            scheduling.gangs,
            self._preemptions,
            scheduling.nominated,
            settings.delay_seconds,
        )
        self._plans = PreemptionPlanning(
            scheduling,
            planning,
            self._preemptors,
            budgets,
        )
        self._evictions = VictimEvictions(
            state=self._state,
            preemptions=self._preemptions,
            preemptors=self._preemptors,
            budgets=budgets,
            writer=writer,
            releaser=releaser,
            right=right,
            notice=notice,
        )
        self._is_taken_over = True
        self._running: set[str] = set()  # owners
        self._searched: dict[str, _Search] = {}  # by owner
        self._turns: dict[str, float] = {}  # by namespace, when its last search began
        self._given: dict[str, PreemptionRecord] = {}  # until their pods are bound

    async def take_over(self) -> None:
        """Claim again what a former leader was making room for; call it before the first answer.

        What takes longer than TAKEOVER_SECONDS is done before the first plan.
        """
        self._is_taken_over = False
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKEOVER_SECONDS):
                if await self._right.is_given():
                    await self._budgets.known.wait()
                    await self._claim_begun()

    async def _claim_begun(self) -> None:
        for preemptor in await self._planning.slices.run(self._preemptors.begun()):
            await self._plans.claim(preemptor, may_evict=True, is_begun=True)
        self._is_taken_over = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._go_on_with_all(tasks))
            while True:
                await self._plan_some(tasks)
                await asyncio.sleep(EVERY_SECONDS)

    async def _go_on_with_all(self, tasks: asyncio.TaskGroup) -> None:
        """Go on with all plans while others are searched, which may take seconds."""
        while True:
            is_given = await self._right.is_given()
            self._proposals.evicts = is_given and self._budgets.known.is_set() and self._is_prompt
            for record in self._preemptions.all():
                if is_given:
                    await self._go_on(record, tasks)
                else:
                    self._end(record)
            self._check_given()
            await asyncio.sleep(EVERY_SECONDS)

    async def _plan_some(self, tasks: asyncio.TaskGroup) -> None:
        """Make some of the plans that are due, in turns of the namespaces."""
        if not await self._right.is_given() or not self._budgets.known.is_set():
            return
        if not self._is_taken_over:
            await self._claim_begun()
        exists = self._preemptors.exists
        self._preemptions.keep_only(exists)
        self._searched = {owner: each for owner, each in self._searched.items() if exists(owner)}
        found = await self._planning.slices.run(self._preemptors.due())
        due = [each for each in found if self._is_due(each)]
        turns = {each.namespace for each in due}
        self._turns = {name: at for name, at in self._turns.items() if name in turns}
        without_victims: set[object] = set()  # shapes and priorities
        seconds, searches = 0.0, 0
        while due and seconds < ROUND_SECONDS and searches < SEARCHES_AT_ONCE:
            preemptor = min(due, key=self._order)
            due.remove(preemptor)
            kind = self._kind(preemptor)
            if kind in without_victims:
                continue
            await self._planning.slices.pause()
            attempt = await self._plan(preemptor, tasks)
            if attempt.record is None:
                without_victims.add(kind)
            seconds, searches = seconds + attempt.seconds, searches + 1

    async def _plan(self, preemptor: Preemptor, tasks: asyncio.TaskGroup) -> Attempt:
        """Search victims, at first with a part of the work, so that others have their turn soon."""
        owner, now = preemptor.owner, self._clock.monotonic()
        search = self._searched.get(owner)
        search = _Search() if search is None else search
        search.revision, search.at, search.times = self._revision(preemptor), now, search.times + 1
        self._searched[owner] = search
        self._turns[preemptor.namespace] = now
        may_evict = not self._preemptions.has_to_wait(owner, now)
        attempt = await self._plans.claim(preemptor, may_evict=may_evict, part=search.part)
        search.seconds, search.gave_up = attempt.seconds, attempt.gave_up and search.part > 1
        if search.gave_up:
            search.part //= 2
        record = attempt.record
        if record is not None:
            extra = {"for": record.name, "victims": len(record.victims)}
            log.info("room is claimed", extra={**extra, "slots": len(record.slots)})
            self._begin(record, tasks)
        return attempt

    def _order(self, preemptor: Preemptor) -> tuple[float, float, int]:
        """Return what sorts those first whose namespace, and who, had no turn for longest.

        Of these the most important come first. By importance alone, searches that find nothing
        would keep all others waiting.
        """
        search = self._searched.get(preemptor.owner)
        turn = self._turns.get(preemptor.namespace, -inf)
        return turn, search.at if search is not None else -inf, -preemptor.priority

    def _is_due(self, preemptor: Preemptor) -> bool:
        """Return whether a search may find what the last one has not.

        Searches that find nothing become rarer, long ones most. That a pod may be a victim again
        is no change of the cluster.
        """
        search = self._searched.get(preemptor.owner)
        if search is None:
            return True
        seconds = UNCHANGED_SECONDS
        if search.gave_up or search.revision != self._revision(preemptor):
            seconds = min(UNCHANGED_SECONDS, 2.0 ** min(search.times - 1, MOST_DOUBLED))
        return self._clock.monotonic() - search.at >= max(seconds, RESTS * search.seconds)

    def _revision(self, preemptor: Preemptor) -> tuple[int, int, int]:
        version = preemptor.group.version if preemptor.group is not None else 0
        state = self._state
        version += self._budgets.version + state.namespaces.version
        return state.ledger.changes.now, state.resource_changes.now, version

    def _kind(self, preemptor: Preemptor) -> object:
        """Return what is equal for pods for which a search finds the same."""
        if preemptor.group is None:
            pod = preemptor.pods[0]
            scope = self._state.namespaces.scope(pod.metadata.namespace)
            with suppress(RequestError):
                return Reader(self._state).shape_of(pod).key, preemptor.priority, scope
        return preemptor.owner

    async def _go_on(self, record: PreemptionRecord, tasks: asyncio.TaskGroup) -> None:
        is_gone = self._state.ending.is_gone
        if not self._are_waiting(record):
            self._end(record)
            if self._preemptors.exists(record.owner):
                self._note_given(record)  # by admission, for example
        elif record.is_stopped:
            self._replace(record)
        elif record.victims and not record.evicted and record.owner not in self._running:
            self._begin(record, tasks)
        elif all(is_gone(pod.uid) for pod in record.victims):
            await self._give_room(record, tasks)
        elif any(map(self._is_late, record.evicted)):
            log.warning("a pod outlives its grace period", extra={"for": record.name})
            self._count_in_vain(record)
            self._replace(record)

    def _begin(self, record: PreemptionRecord, tasks: asyncio.TaskGroup) -> None:
        if record.victims:
            self._running.add(record.owner)
            tasks.create_task(self._carry_out(record))

    async def _carry_out(self, record: PreemptionRecord) -> None:
        try:
            await self._evictions.carry_out(record)
        finally:
            self._running.discard(record.owner)

    def _are_waiting(self, record: PreemptionRecord) -> bool:
        return all(map(self._preemptors.still_waits, record.pods))

    def _is_late(self, uid: str) -> bool:
        """Return whether a pod has outlived its grace period, or what counts of it."""
        ending = self._state.ending
        is_being_deleted = ending.seconds_left(uid) is not None
        return is_being_deleted and not ending.will_end(uid) and not ending.is_gone(uid)

    async def _give_room(self, record: PreemptionRecord, tasks: asyncio.TaskGroup) -> None:
        """Turn the claim into a hold, and have the pods tried again."""
        if any(self._ledger.reserve_of(each.pod_uid, each.node) for each in record.slots):
            return  # kube-scheduler has tried it by itself, and it is being bound there
        revision = self._ledger.changes.now, self._state.resource_changes.now
        group = self._state.groups.named(record.owner)
        if record.tried == revision and self._plans.waits_for_others(record):
            return
        if await self._planning.hold_claimed(record.owner, record.slots, record.pods, group):
            log.info("room is given", extra={"for": record.name})
            self._preemptions.drop(record.owner)
            self._note_given(record)
            for pod in record.pods.values():
                if not pod.gates:
                    tasks.create_task(self._pokes.poke(pod))
        elif self._plans.waits_for_others(record):
            record.tried = revision
        elif not record.victims:
            self._end(record)
        else:
            is_outranked = self._plans.is_outranked(record)
            extra = {"for": record.name, "outranked": is_outranked}
            log.warning("claimed room cannot be used", extra=extra)
            if not is_outranked:  # a GPU has failed, a node was cordoned, its CPU was taken
                self._count_in_vain(record)
            record.must_wait = True
            self._replace(record)

    def _note_given(self, record: PreemptionRecord) -> None:
        """Let the next plan wait if kube-scheduler rejects the pod where it has got room.

        This is forgotten once the pod is bound.
        """
        self._given[record.owner] = record
        self._preemptions.wait_longer(record.owner, self._clock.monotonic())

    def _check_given(self) -> None:
        """Count the rooms that were given and not used, because kube-scheduler rejects the pods."""
        for owner, record in list(self._given.items()):
            is_left = self._are_waiting(record)
            if is_left or not self._preemptors.exists(owner):
                del self._given[owner]
            if is_left:
                log.warning("room is not used", extra={"for": record.name})
                self._count_in_vain(record)

    def _replace(self, record: PreemptionRecord) -> None:
        """Let another plan replace one that was stopped; nobody gets what it has freed until then.

        It is made with what is already ending; if that fails too, not at once.
        """
        self._end(record)
        self._searched.pop(record.owner, None)
        if record.evicted:
            until = self._clock.monotonic() + OPEN_SECONDS
            self._ledger.keep(Claim(record.owner, record.slots, until, record.priority))
        if record.must_wait or not self._preemptions.may_try_again(record):
            self._preemptions.wait_longer(record.owner, self._clock.monotonic())

    def _count_in_vain(self, record: PreemptionRecord) -> None:
        if record.evicted:
            PREEMPTIONS_IN_VAIN.inc()

    def _end(self, record: PreemptionRecord) -> None:
        record.is_stopped = True
        self._preemptions.drop(record.owner)
        self._ledger.drop(Claim, record.owner)
