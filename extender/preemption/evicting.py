"""Evicts the victims of a plan: announced first, tried first, one after the other."""

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.cluster_state import ClusterState
from extender.decisions.preemption.preemptors import Preemptors
from extender.decisions.preemption.records import PreemptionRecord, Preemptions
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Outcome, Release, Releaser
from extender.metrics.counters import PREEMPTION_VICTIMS
from extender.preemption.budgets import BudgetWatch
from extender.watch.events import Notice
from gpushare.annotations.evicting_hint import PART, encode, hinted_victims
from gpushare.contract import ANNOTATION_EVICTING
from gpushare.errors import ApiError, Conflict, NotFound, NotLeading
from gpushare.objects.model import Pod
from gpushare.text.counted import counted
from gpushare.text.listed import listed

log = logging.getLogger(__name__)

A_SECOND: Final = 10  # evictions, for all plans together
ATTEMPTS: Final = 3  # of an eviction that fails for an unknown reason
RETRY_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 10.0  # until the watch shows an eviction
TRIED_AT_ONCE: Final = 16
MOST_NAMED: Final = 5  # victims in an Event
EVENT_OF_VICTIM: Final = "GpusharePreempted"
EVENT_OF_PREEMPTOR: Final = "GpusharePreempting"


class VictimEvictions:
    """Evicts at most A_SECOND pods a second, whatever they are evicted for."""

    def __init__(
        self,
        *,
        state: ClusterState,
        preemptions: Preemptions,
        preemptors: Preemptors,
        budgets: BudgetWatch,
        writer: Writer,
        releaser: Releaser,
        right: PatchRight,
        notice: Notice,
    ) -> None:
        self._state, self._clock = state, state.clock
        self._preemptions, self._preemptors, self._budgets = preemptions, preemptors, budgets
        self._writer, self._releaser = writer, releaser
        self._right, self._notice = right, notice
        self._next_at = float("-inf")
        self._sent: dict[str, float] = {}  # when pods were evicted, by uid
        self._trials = asyncio.Semaphore(TRIED_AT_ONCE)

    async def carry_out(self, record: PreemptionRecord) -> None:
        """Evict all victims of a plan; stop if one is refused, or nobody waits for it any more.

        The annotation comes first: the next leader goes on with the same victims. No pod is
        evicted before the API server has agreed to evict each of them, as far as it can tell.
        """
        try:
            outcome = await self._announce(record)
            if outcome is not Outcome.RELEASED:
                record.is_stopped = record.must_wait = True
                if outcome is Outcome.REFUSED:
                    self._right.doubt()
            elif not await self._may_evict_all(record):
                record.is_stopped = True
            elif not record.is_stopped:
                self._tell_preemptor(record)
                await self._evict_all(record)
        except NotLeading:
            record.is_stopped = True  # the next leader goes on

    async def _announce(self, record: PreemptionRecord) -> Outcome:
        pod = next(iter(record.pods.values()))
        if {victim.uid[:PART] for victim in record.victims} <= hinted_victims(pod):
            # A former leader has named them, and others whose end shows that it has begun.
            return Outcome.RELEASED
        written = {ANNOTATION_EVICTING: encode(record.victims)}
        patch = {"metadata": {"uid": pod.uid, "annotations": written}}
        return await self._releaser.patch(Release(pod, patch))

    async def _may_evict_all(self, record: PreemptionRecord) -> bool:
        """Return whether the API server would evict each victim now, and spare those it would not.

        It judges each by itself; a budget that allows one of two was counted by the plan.
        """
        answers = await asyncio.gather(*map(self._try, record.victims))
        for pod, may_go in zip(record.victims, answers, strict=True):
            if not may_go:
                self._preemptions.spare(pod.uid, self._clock.monotonic())
        return all(answers)

    async def _try(self, pod: Pod) -> bool:
        async with self._trials:
            try:
                await self._writer.try_eviction(pod)
            except (NotFound, Conflict):
                return True  # it is gone
            except ApiError as err:
                log.info("victim cannot be evicted", extra={"pod": pod.key, "why": str(err)})
                return False
            return True

    async def _evict_all(self, record: PreemptionRecord) -> None:
        for pods in await self._in_order(record.victims):
            for number, pod in enumerate(pods):
                if self._is_evicted(pod):
                    record.evicted.add(pod.uid)
                    continue
                await self._wait_for_turn()
                # A gang of which one member was evicted does not go on with the others.
                if not await self._evict(record, pod, may_stop=number == 0):
                    self._preemptions.spare(pod.uid, self._clock.monotonic())
                    record.is_stopped = True
                    return

    def _is_evicted(self, pod: Pod) -> bool:
        """Return whether a pod is gone or ending, or the watch will soon show that it is."""
        now = self._clock.monotonic()
        self._sent = {uid: at for uid, at in self._sent.items() if now - at < WATCH_SECONDS}
        state = self._state
        return pod.uid in self._sent or state.ending.is_gone(pod.uid) or state.will_end(pod.uid)

    async def _in_order(self, victims: Iterable[Pod]) -> list[list[Pod]]:
        """Return the victims, gangs that go as a whole together; first what may be refused."""
        gangs: dict[str, list[Pod]] = {}
        for pod in victims:
            group = self._state.group_of(pod.uid)
            gangs.setdefault(str(group.key) if group is not None else pod.uid, []).append(pod)
        found: list[list[Pod]] = []
        for owner, pods in gangs.items():
            group = self._state.groups.named(owner)
            is_whole = group is not None and group.bound == len(pods)
            found += [pods] if is_whole else [[pod] for pod in pods]
        namespaces = {pod.metadata.namespace for pods in found for pod in pods}
        budgets, _ = await self._budgets.of_pods_in(namespaces)
        return sorted(found, key=lambda pods: not any(pod.uid in budgets.of for pod in pods))

    async def _wait_for_turn(self) -> None:
        now = self._clock.monotonic()
        at = max(now, self._next_at)
        self._next_at = at + 1 / A_SECOND
        await asyncio.sleep(at - now)

    def _is_wanted(self, record: PreemptionRecord) -> bool:
        """Return whether all pods still wait, and their claim has not ended."""
        ledger = self._state.ledger
        return all(
            ledger.claim_slot_of(slot.pod_uid) == slot
            and self._preemptors.still_waits(slot.pod_uid)
            for slot in record.slots
        )

    async def _evict(self, record: PreemptionRecord, pod: Pod, *, may_stop: bool) -> bool:
        """Evict a pod; return False if it stays."""
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node, "for": record.name}
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS)
            if may_stop and (record.is_stopped or not self._is_wanted(record)):
                return False
            if self._is_evicted(pod):
                record.evicted.add(pod.uid)
                return True
            try:
                await self._writer.evict_pod(pod, any_version=True)
            except NotLeading:
                raise
            except NotFound:
                record.evicted.add(pod.uid)
                return True
            except ApiError as err:
                log.warning("victim not evicted", extra={**about, "why": str(err)})
                if err.code == HTTPStatus.TOO_MANY_REQUESTS:
                    return False  # a PodDisruptionBudget
                continue
            record.evicted.add(pod.uid)
            self._sent[pod.uid] = self._clock.monotonic()
            PREEMPTION_VICTIMS.inc()
            log.warning("pod evicted for a more important one", extra=about)
            self._tell_victim(record, pod)
            return True
        return False

    def _tell_preemptor(self, record: PreemptionRecord) -> None:
        named = listed([pod.key for pod in record.victims], MOST_NAMED)
        number = counted(len(record.victims), "pod")
        whom = "it" if record.owner in record.pods else record.name
        text = f"evicting {number} of lower priority for {whom}: {named}"
        self._notice(next(iter(record.pods.values())), EVENT_OF_PREEMPTOR, text)

    def _tell_victim(self, record: PreemptionRecord, pod: Pod) -> None:
        whom = f"{record.name} of priority {record.priority}"
        text = f"evicted for {whom}, which needs its GPU memory on node {pod.node}"
        self._notice(pod, EVENT_OF_VICTIM, text)
