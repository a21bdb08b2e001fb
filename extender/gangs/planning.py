"""Makes plans for gangs in short slices, and keeps their slots in one step."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from extender.decisions.gangs.gangs import HELD_SECONDS
from extender.decisions.gangs.giving_way import make_way
from extender.decisions.gangs.plans import GangPlans
from extender.decisions.scheduling import Scheduling
from extender.metrics.counters import PLAN_SECONDS, PLANS
from gpushare.annotations.slot_hint import hinted_node
from gpushare.groups.group import Group
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask, NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.process.time_slices import Turns
from gpushare.quota.planned import planned
from gpushare.quota.reasons import TEXTS as QUOTA_TEXTS

log = logging.getLogger(__name__)

TRIES: Final = 3  # the cluster may change while a plan is made
SLICE_SECONDS: Final = 0.0005
RESTS: Final = 4.0  # times as long, for calls that are waited for


class Kept(Enum):
    """Whether slots were kept for a pod, or why not."""

    KEPT = auto()
    NO_ROOM = auto()
    OVER_QUOTA = auto()
    DENIED = auto()


class GangPlanning:
    """One plan is made at a time: two plans must not count on the same free GPUs.

    ``slices`` are for whatever else computes for gangs.
    """

    def __init__(self, scheduling: Scheduling) -> None:
        self._gangs, self._ledger = scheduling.gangs, scheduling.state.ledger
        self._state, self._quotas = scheduling.state, scheduling.state.quotas
        self._plans = GangPlans(scheduling.gangs)
        self.planner = Planner(scheduling.state)
        self._turn, self.slices = asyncio.Lock(), Turns(SLICE_SECONDS, RESTS)

    async def plan(self, group: Group, *, is_least: bool = False) -> bool:
        """Keep slots for the missing members of a gang; return False if there is no room.

        ``is_least``: only for as many members as are missing up to the minimum.
        """
        async with self._turn:
            for _ in range(TRIES):
                revision, ask = self._gangs.revision(group), self._plans.ask(group)
                if ask is None:
                    return False
                found = await self._made(ask)
                if is_least and isinstance(found, Plan):
                    found = replace(found, slots=found.slots[: ask.least])
                if isinstance(found, NoPlan) and self._plans.lets_go(group):
                    continue
                if isinstance(found, NoPlan) or not found.slots:
                    no_plan = found if isinstance(found, NoPlan) else None
                    self._plans.failed(group, no_plan, revision)
                    return False
                if self._take(group, ask, found):
                    return True
        return False

    async def repair(self, group: Group, pod: Pod, nodes: Sequence[str]) -> bool:
        """Keep another slot for a member, on one of ``nodes``.

        If there is none and nothing is bound yet, plan the whole gang without the other nodes.
        """
        async with self._turn:
            for _ in range(TRIES):
                slot = self._ledger.slot_of(pod.uid)
                if slot is None or slot.node in nodes:
                    return slot is not None  # by another plan
                ask = self._plans.ask_again(group, pod, nodes)
                if ask is None:
                    return False
                found = await self._made(ask)
                if isinstance(found, NoPlan):
                    break
                if self._take(group, ask, found):
                    return True
            has_begun = self._gangs.record(group).begun_at is not None
            if has_begun or self._gangs.is_binding(group):
                return False
            self._plans.unfit(pod, nodes)
            self._gangs.give_up(group)
        return await self.plan(group)

    async def hold_for(
        self, ask: Ask, expires_at: float, may_use: Callable[[str], bool] = lambda _: True
    ) -> Kept:
        """Keep slots for pods that are in no gang.

        ``may_use`` is asked about each node right before; DENIED if it denies one.
        """
        async with self._turn:
            found = await self._made(ask)
            pods = {pod.uid: pod for pod in ask.members}
            if isinstance(found, NoPlan):
                return Kept.OVER_QUOTA if found.reason.text in QUOTA_TEXTS else Kept.NO_ROOM
            if not self._gangs.may_keep:
                return Kept.DENIED
            if self.planner.unusable(found.slots, pods, ask.cooling):
                return Kept.NO_ROOM
            if not all(may_use(slot.node) for slot in found.slots):
                return Kept.DENIED
            self._keep(ask.owner, found.slots, pods, expires_at)
            return Kept.KEPT

    async def has_room_for(self, ask: Ask) -> bool:
        """Return whether pods that are in no gang fit now; nothing is kept for them."""
        return isinstance(await self._made(ask), Plan)

    async def hold_claimed(
        self, owner: str, slots: Sequence[Slot], pods: Mapping[str, Pod], group: Group | None
    ) -> bool:
        """Turn the claim of a gang, or of a pod without one, into a hold.

        Return False if not all slots of the claim are free by now.
        """
        async with self._turn:
            cooling = self._gangs.cooling()
            steps = self.planner.are_usable(slots, pods, cooling)
            if not (await self.slices.run(steps) and self._gangs.may_keep):
                return False
            if self.planner.unusable(slots, pods, cooling):
                return False  # by what has just changed
            if group is not None and not self._plans.are_waiting(group, slots):
                return False
            self._ledger.drop(Claim, owner)
            if group is None:
                expires_at = self._gangs.state.clock.monotonic() + HELD_SECONDS
                self._keep(owner, slots, pods, expires_at)
            else:
                self._plans.take(group, Plan(tuple(slots)))
            return True

    def _keep(
        self, owner: str, slots: Sequence[Slot], pods: Mapping[str, Pod], expires_at: float
    ) -> None:
        self._ledger.keep(Hold(owner, tuple(slots), expires_at))
        asked = min(pods[slot.pod_uid].priority for slot in slots)
        make_way(self._gangs, {slot.node for slot in slots}, asked, owner)

    async def _made(self, ask: Ask) -> Plan | NoPlan:
        began = time.perf_counter()
        nodes = ((pod.uid, hinted_node(pod)) for pod in ask.members)
        ask = replace(ask, hints={uid: node for uid, node in nodes if node})
        await self.slices.pause()  # a gang of a thousand was read
        found = await self.slices.run(planned(self.planner, self._quotas, self._state, ask))
        outcome = "fits" if isinstance(found, Plan) else "given_up" if found.gave_up else "no_room"
        PLANS.labels(outcome).inc()
        PLAN_SECONDS.observe(time.perf_counter() - began)
        return found

    def _take(self, group: Group, ask: Ask, plan: Plan) -> bool:
        """Keep the slots if they are still free; nothing else runs between the two."""
        pods = {pod.uid: pod for pod in ask.members}
        if not self._gangs.may_keep or self.planner.unusable(plan.slots, pods, ask.cooling):
            return False
        if not self._plans.are_waiting(group, plan.slots):
            return False
        self._plans.take(group, plan)
        log.info(
            "gang planned",
            extra={"gang": ask.owner, "slots": len(plan.slots), "zone": plan.zone},
        )
        return True
