"""Chooses victims in short slices, within the PodDisruptionBudgets, and claims what they leave."""

import time
from collections.abc import Collection, Generator
from dataclasses import dataclass, replace
from math import inf
from typing import Final, TypeVar

from extender.decisions.gangs.giving_way import make_way_for_claim
from extender.decisions.preemption.preemptors import Preemptor, Preemptors
from extender.decisions.preemption.records import PreemptionRecord
from extender.decisions.scheduling import Scheduling
from extender.gangs.planning import GangPlanning
from extender.metrics.counters import PREEMPTION_PLANS
from extender.preemption.budgets import BudgetWatch
from gpushare.contract import ANNOTATION_ASSUME_TIME
from gpushare.ledger.holds import Claim
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask, NoPlan
from gpushare.preemption.model import Budgets, Preemption
from gpushare.preemption.search import VictimSearch

# Until the budgets of all victims are known: without any, with those of the first victims'
# namespaces, with those of all namespaces, and again if new budgets appear meanwhile.
ROUNDS: Final = 5


T = TypeVar("T")


@dataclass(slots=True)
class Attempt:
    """What a search has found and cost.

    ``gave_up``: more work may find more. ``seconds`` are those of a CPU.
    """

    record: PreemptionRecord | None = None
    gave_up: bool = False
    seconds: float = 0.0


class PreemptionPlanning:
    def __init__(
        self,
        scheduling: Scheduling,
        planning: GangPlanning,
        preemptors: Preemptors,
        budgets: BudgetWatch,
    ) -> None:
        self._state, self._gangs = scheduling.state, scheduling.gangs
        self._preemptions, self._nominated = scheduling.preemptions, scheduling.nominated
        self._planning, self._preemptors, self._budgets = planning, preemptors, budgets
        self._search = VictimSearch(scheduling.state)

    async def claim(
        self, preemptor: Preemptor, *, may_evict: bool, is_begun: bool = False, part: int = 1
    ) -> Attempt:
        """Claim room for a preemptor that victims and pods about to end leave, if any does.

        Nothing is claimed if it needs victims and ``may_evict`` is false, if it fits without
        either, or if the quota of its namespace leaves too little. If a former leader has begun to
        evict for it, free room is claimed too, and the victims that it has announced go first. A
        plan of this leader that was stopped binds no later one. ``part`` limits the work, as in
        ``find``.
        """
        attempt = Attempt()
        attempt.record = await self._claimed(preemptor, attempt, may_evict, is_begun, part)
        return attempt

    async def _claimed(
        self, preemptor: Preemptor, attempt: Attempt, may_evict: bool, is_begun: bool, part: int
    ) -> PreemptionRecord | None:
        budgets, known, unknown = Budgets(), frozenset[str](), frozenset[str]()
        for _ in range(ROUNDS):
            ask = self._preemptors.ask(preemptor)
            if ask is None or not self._gangs.may_keep:
                return None
            rules = replace(
                self._state.victim_rules,
                leaving=self._leaving,
                undecided=self._nominated.possible_victims - self._nominated.victims,
                spared=self._preemptions.spared(self._state.clock.monotonic()),
                spared_namespaces=unknown,
                hinted=preemptor.hinted if is_begun else frozenset(),
                budgets=budgets,
            )
            limited = self._state.quotas.limited(ask)
            if isinstance(limited, Reason):
                return None
            ask = limited
            steps = _counted(self._search.find(ask, rules, part), attempt)
            found = await self._planning.slices.run(steps)
            # Nothing has run since the search ended.
            if isinstance(found, NoPlan):
                attempt.gave_up = found.gave_up
                PREEMPTION_PLANS.labels("given_up" if found.gave_up else "no_victims").inc()
                return None
            if self._state.quotas.exceeding(ask, found.plan.slots):
                return None
            is_left_alone = found.is_free and not is_begun
            if is_left_alone or (found.victims and not may_evict):
                return None
            unread = self._budgets.guarded({p.metadata.namespace for p in found.victims}) - known
            if not unread:
                return self._keep(preemptor, ask, found)
            others = self._state.namespace_use.namespaces() if known else ()
            known |= unread | self._budgets.guarded(others)
            budgets, unknown = await self._budgets.of_pods_in(known)
        attempt.gave_up = True
        PREEMPTION_PLANS.labels("given_up").inc()
        return None

    @property
    def _leaving(self) -> frozenset[str]:
        return self._preemptions.victims | self._nominated.victims

    def waits_for_others(self, record: PreemptionRecord) -> bool:
        """Return whether pods on the nodes of a plan that were about to end still are."""
        state, leaving = self._state, self._leaving
        there = (uid for uid in record.waits_for if not state.ending.is_gone(uid))
        return any(uid in leaving or state.will_end(uid) for uid in there)

    def _going_on(self, nodes: Collection[str]) -> frozenset[str]:
        """Return the pods on these nodes that are about to end, or to be evicted for others."""
        state = self._state
        ending = (uid for uid in state.ending.uids() if state.will_end(uid))
        return frozenset(
            uid for uid in {*ending, *self._leaving} if state.use.node_of(uid) in nodes
        )

    def is_outranked(self, record: PreemptionRecord) -> bool:
        """Return whether a more important pod has got room on the claimed GPUs since the claim."""
        ledger = self._state.ledger
        for slot in record.slots:
            new = (each for each in ledger.shares(slot.node) if self._is_new(each.pod_uid, record))
            users = [
                *((each.pod_uid, each.cards) for _, each in ledger.slots_on(slot.node)),
                *((each.pod_uid, each.cards) for each in ledger.reserves(slot.node)),
                *((each.pod_uid, each.cards) for each in new),
            ]
            for uid, cards in users:
                is_here = not set(slot.cards).isdisjoint(cards)
                if is_here and self._priority_of(uid) > record.priority:
                    return True
        return False

    def _is_new(self, uid: str, record: PreemptionRecord) -> bool:
        pod = self._state.pod(uid)
        at = pod.annotations.get(ANNOTATION_ASSUME_TIME, "") if pod is not None else ""
        return at.isascii() and at.isdecimal() and int(at) >= record.claimed_at_ns

    def _priority_of(self, uid: str) -> float:
        pod = self._state.pod(uid)
        return pod.priority if pod is not None else -inf

    def _keep(self, preemptor: Preemptor, ask: Ask, found: Preemption) -> PreemptionRecord | None:
        if not all(self._preemptors.may_claim(slot.pod_uid) for slot in found.plan.slots):
            return None
        PREEMPTION_PLANS.labels("victims" if found.victims else "ending").inc()
        state, pods = self._state, {pod.uid: pod for pod in ask.members}
        record = PreemptionRecord(
            preemptor.owner,
            preemptor.name,
            preemptor.priority,
            {slot.pod_uid: pods[slot.pod_uid] for slot in found.plan.slots},
            found.plan.slots,
            found.victims,
            state.clock.wall_ns(),
            self._going_on({slot.node for slot in found.plan.slots}),
        )
        claim = Claim(record.owner, record.slots, inf, record.priority)
        state.ledger.keep(claim)
        make_way_for_claim(self._gangs, claim)
        self._preemptions.put(record)
        return record


def _counted(steps: Generator[None, None, T], attempt: Attempt) -> Generator[None, None, T]:
    """Run steps, and count their time; what other tasks do meanwhile does not count."""
    while True:
        began = time.perf_counter()
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            attempt.seconds += time.perf_counter() - began
        yield
