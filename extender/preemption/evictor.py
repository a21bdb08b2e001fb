"""Makes room for pods and gangs by evicting pods of a lower priority, and gives them that room."""

import asyncio
import logging
import time
from contextlib import suppress
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
from extender.preemption.budgets import BudgetsUnknown, BudgetWatch
from extender.preemption.evicting import VictimEvictions
from extender.preemption.planning import PreemptionPlanning
from extender.settings.configuration import PreemptionSettings
from extender.watch.events import Notice
from gpushare.errors import RequestError
from gpushare.ledger.holds import Claim
from gpushare.planning.shapes import Reader

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 0.2
MOST_REST_SECONDS: Final = 2.0
REST: Final = 4  # times as long as a round took
AGAIN_SECONDS: Final = 1.0  # between two searches for a preemptor without victims
UNCHANGED_SECONDS: Final = 30.0
SEARCHES_AT_ONCE: Final = 20  # in one round
OPEN_SECONDS: Final = 5.0  # in which a plan that was stopped is replaced
TAKEOVER_SECONDS: Final = 3.0


class Evictor:
    """One plan at a time for each pod and gang that waits.

    A plan claims its room before anybody is evicted. The claim becomes a hold once all victims are
    gone, and ends if one of them outlives its grace period.
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
            notice=notice,
        )
        self._running: set[str] = set()  # owners
        self._tried: dict[str, tuple[tuple[int, int, int], float]] = {}  # revision and when

    async def take_over(self) -> None:
        """Claim again what a former leader was making room for; call it before the first answer."""
        with suppress(BudgetsUnknown, TimeoutError):
            async with asyncio.timeout(TAKEOVER_SECONDS):
                if not await self._right.is_given():
                    return
                await self._budgets.known.wait()
                for preemptor in await self._planning.slices.run(self._preemptors.begun()):
                    await self._plans.claim(preemptor, may_evict=True)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                began = time.perf_counter()
                await self.check(tasks)
                took = time.perf_counter() - began
                await asyncio.sleep(min(MOST_REST_SECONDS, max(EVERY_SECONDS, REST * took)))

    async def check(self, tasks: asyncio.TaskGroup) -> None:
        """Go on with all plans, and make those that are due."""
        if not await self._right.is_given():
            for record in self._preemptions.all():
                self._end(record)
            return
        for record in self._preemptions.all():
            await self._go_on(record, tasks)
        if not self._budgets.known.is_set():
            return
        await self._plan_all()
        for record in self._preemptions.all():
            await self._go_on(record, tasks)

    async def _plan_all(self) -> None:
        without_victims: set[object] = set()  # shapes and priorities
        searches = 0
        due = await self._planning.slices.run(self._preemptors.due())
        owners = {*self._preemptors.waiting, *(each.owner for each in self._preemptions.all())}
        self._preemptions.keep_only(owners)
        self._tried = {owner: tried for owner, tried in self._tried.items() if owner in owners}
        for preemptor in due:
            kind = self._kind(preemptor)
            if kind in without_victims or not self._is_due(preemptor):
                continue
            await self._planning.slices.pause()
            if not await self._plan(preemptor):
                without_victims.add(kind)
            searches += 1
            if searches == SEARCHES_AT_ONCE:
                break

    async def _plan(self, preemptor: Preemptor) -> bool:
        revision, now = self._revision(preemptor), self._clock.monotonic()
        self._tried[preemptor.owner] = revision, now
        may_evict = not self._preemptions.has_to_wait(preemptor.owner, now)
        try:
            record = await self._plans.claim(preemptor, may_evict=may_evict)
        except BudgetsUnknown as err:
            log.warning("no pod is evicted", extra={"for": preemptor.name, "why": str(err)})
            return False
        if record is not None:
            extra = {"for": record.name, "victims": len(record.victims), "slots": len(record.slots)}
            log.info("room is claimed", extra=extra)
        return record is not None

    def _is_due(self, preemptor: Preemptor) -> bool:
        """Return whether a search may find what the last one has not.

        Pods that could not be evicted for a while are no change of the cluster.
        """
        revision, at = self._tried.get(preemptor.owner, (None, float("-inf")))
        seconds = self._clock.monotonic() - at
        has_changed = revision != self._revision(preemptor)
        return seconds >= (AGAIN_SECONDS if has_changed else UNCHANGED_SECONDS)

    def _revision(self, preemptor: Preemptor) -> tuple[int, int, int]:
        version = preemptor.group.version if preemptor.group is not None else 0
        state = self._state
        return state.ledger.changes.now, state.resource_changes.now, self._budgets.version + version

    def _kind(self, preemptor: Preemptor) -> object:
        """Return what is equal for pods for which a search finds the same."""
        if preemptor.group is None:
            with suppress(RequestError):
                return Reader(self._state).shape_of(preemptor.pods[0]).key, preemptor.priority
        return preemptor.owner

    async def _go_on(self, record: PreemptionRecord, tasks: asyncio.TaskGroup) -> None:
        if not self._are_waiting(record):
            self._end(record)
        elif record.is_stopped:
            # Planned again with what is ending by now; if that is refused too, not at once.
            self._open(record, must_wait=not self._preemptions.may_try_again(record))
        elif record.victims and not record.evicted and record.owner not in self._running:
            self._running.add(record.owner)
            tasks.create_task(self._carry_out(record))
        elif all(self._state.ending.is_gone(uid) for uid in self._awaited(record)):
            await self._give_room(record, tasks)
        elif any(map(self._is_late, record.evicted)):
            self._give_up(record)
        elif any(map(self._stays, record.waits_for)):
            self._end(record)

    async def _carry_out(self, record: PreemptionRecord) -> None:
        try:
            await self._evictions.carry_out(record)
        except BudgetsUnknown:
            record.is_stopped = True
        finally:
            self._running.discard(record.owner)

    def _are_waiting(self, record: PreemptionRecord) -> bool:
        return all(map(self._preemptors.still_waits, record.pods))

    def _awaited(self, record: PreemptionRecord) -> list[str]:
        """Return the uids of the pods whose end the plan needs."""
        if record.victims:
            return [pod.uid for pod in record.victims]
        return list(record.waits_for)

    def _stays(self, uid: str) -> bool:
        """Return whether a pod does not end after all, or has outlived its grace period."""
        return not (self._state.ending.is_gone(uid) or self._plans.will_go(uid))

    def _is_late(self, uid: str) -> bool:
        """Return whether a pod has outlived its grace period."""
        ending = self._state.ending
        is_being_deleted = ending.seconds_left(uid) is not None
        return is_being_deleted and not ending.will_end(uid) and not ending.is_gone(uid)

    async def _give_room(self, record: PreemptionRecord, tasks: asyncio.TaskGroup) -> None:
        """Turn the claim into a hold, and have the pods tried again."""
        group = self._state.groups.named(record.owner)
        if await self._planning.hold_claimed(record.owner, record.slots, record.pods, group):
            log.info("room is given", extra={"for": record.name})
            self._preemptions.succeeded(record.owner)
            for pod in record.pods.values():
                if not pod.gates:
                    tasks.create_task(self._pokes.poke(pod))
            return
        is_outranked = self._plans.is_outranked(record)
        extra = {"for": record.name, "outranked": is_outranked}
        log.warning("claimed room cannot be used", extra=extra)
        if not is_outranked:  # a GPU has failed, a node was cordoned, its CPU was taken
            self._count_in_vain(record)
        self._open(record, must_wait=bool(record.evicted))

    def _open(self, record: PreemptionRecord, *, must_wait: bool) -> None:
        """Let another plan replace this one; until then nobody else gets its room."""
        self._preemptions.drop(record.owner)
        until = self._clock.monotonic() + OPEN_SECONDS
        self._ledger.keep(Claim(record.owner, record.slots, until, record.priority))
        self._tried.pop(record.owner, None)
        if must_wait:
            self._preemptions.wait_longer(record.owner, self._clock.monotonic())

    def _give_up(self, record: PreemptionRecord) -> None:
        log.warning("a pod outlives its grace period", extra={"for": record.name})
        self._count_in_vain(record)
        if record.victims:
            self._preemptions.wait_longer(record.owner, self._clock.monotonic())
        self._end(record)

    def _count_in_vain(self, record: PreemptionRecord) -> None:
        if record.evicted:
            PREEMPTIONS_IN_VAIN.inc()

    def _end(self, record: PreemptionRecord) -> None:
        record.is_stopped = True
        self._preemptions.drop(record.owner)
        self._ledger.drop(Claim, record.owner)
