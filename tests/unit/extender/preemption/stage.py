"""Replicas that evict pods, nodes that end pods, and a kube-scheduler that preempts by sums."""

import asyncio
import hashlib
from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from unittest.mock import patch

from extender.settings.configuration import GangSettings, PreemptionSettings
from extender.wire import BindingArgs
from gpushare.answers.preemptions import PreemptionFacts
from gpushare.contract import ANNOTATION_CARDS, GATE_ADMISSION, RESOURCE_MEMORY
from gpushare.errors import GpushareError
from gpushare.ledger.holds import Claim
from gpushare.objects.model import Node, OwnerReference, Pod, PodCondition
from gpushare.objects.scheduling import SchedulingGate
from tests import gangs
from tests.builders import node, pod
from tests.simulation import loop as virtual
from tests.simulation.loop import VirtualLoop, virtual_time
from tests.unit.extender.gangs.replica import Replica
from tests.unit.extender.gangs.store import Store
from tests.unit.extender.scripted import changed

STEP_SECONDS: Final = 0.0002  # of a computation
HTTP_SECONDS: Final = 5.0  # httpTimeout of the extender
GRACE_SECONDS: Final = 1.0  # that a pod takes to end
GANG: Final = "job"
ENABLED: Final = PreemptionSettings(enabled=True)


class Stage:
    """``nodes`` are the GPUs of each node. ``stuck`` pods never end; kube-scheduler knows a rule
    that keeps the ``rejected`` ones from all nodes, and does not try the ``untried``, nor those of
    another scheduler.

    kube-scheduler preempts unless ``preempts`` is false. ``nominated`` has the names of pods for
    which it has evicted others, with their victims.
    """

    def __init__(
        self, nodes: Mapping[str, Iterable[int]], settings: PreemptionSettings | None = ENABLED
    ) -> None:
        self.loop = VirtualLoop()
        self.store = Store(lambda: self.loop.now)
        self.settings, self.preempts = settings, True
        self.stuck: set[str] = set()
        self.rejected: set[str] = set()
        self.untried: set[str] = set()
        self.nominated: dict[str, list[str]] = {}
        self.ever_bound: dict[str, float] = {}
        self.errors: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[str] = set()
        self._awake = asyncio.Event()
        self.store.listeners.append(self._hear)
        for name, cards in nodes.items():
            self.store.put(node(name, *cards))
        self.replicas: list[Replica] = []

    # Time

    def start(self) -> None:
        """Bring up two replicas, of which the first leads, and kube-scheduler."""
        self.run(self._start())
        self._begin(self._schedule())

    def go(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run(asyncio.sleep(seconds))
        assert not self.errors
        assert not [each for replica in self.replicas for each in replica.errors]

    def go_until_evicted(self, number: int) -> None:
        """Let time pass until the extender has evicted so many pods."""
        for _ in range(1000):
            if len(self.evicted) >= number:
                return
            self.go(0.02)
        raise AssertionError(f"{self.evicted} were evicted")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with virtual_time(self.loop), patch.object(virtual, "COMPUTING_SECONDS", STEP_SECONDS):
            return self.loop.run_until_complete(work)

    def end(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    # Pods

    def put_bound(
        self,
        name: str,
        units: int,
        card: str = "GPU-0",
        at: str = "n",
        *,
        phase: str = "Running",
        ready: bool = True,
        **more: Any,
    ) -> None:
        """Put a pod that runs."""
        made = _made(name, units, **more)
        meta = {"annotations": made.annotations | {ANNOTATION_CARDS: card}}
        conditions = (PodCondition("Ready", str(ready)),)
        status = {"phase": phase, "conditions": conditions}
        self.store.put(changed(made, meta, spec={"node_name": at}, status=status))

    def put(self, name: str, units: int, **more: Any) -> None:
        """Put a pod that waits."""
        self.store.put(_made(name, units, **more))

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        pod = self.store.pods[name]
        self.store.put(changed(pod, {"annotations": pod.annotations | dict(annotations)}))

    def leader_stops(self) -> None:
        """Let the leader lose its lease; nobody leads then."""

        async def stop() -> None:
            self.leader.stop_leading()

        self.run(stop())

    def delete(self, name: str) -> None:
        self.store.delete(self.store.pods[name])

    def bound(self) -> dict[str, str]:
        return {name: each.node for name, each in sorted(self.store.pods.items()) if each.node}

    def card_of(self, name: str) -> str:
        return self.store.pods[name].annotations[ANNOTATION_CARDS]

    @property
    def leader(self) -> Replica:
        return next(replica for replica in self.replicas if replica.leads)

    @property
    def evicted(self) -> list[str]:
        return self.store.evicted

    def claims(self) -> list[Claim]:
        return [each for each in self.leader.ledger.kept() if isinstance(each, Claim)]

    def events(self, name: str) -> list[tuple[str, str]]:
        found = [each for replica in self.replicas for each in replica.events]
        return [(reason, text) for about, reason, text in found if about == name]

    def facts(self, name: str) -> PreemptionFacts | None:
        async def asked() -> PreemptionFacts | None:
            return self.leader.cluster.state.preemptions.of(uid_of(name))

        return self.run(asked())

    async def fail_over(self) -> None:
        """Kill the leader; the other replica leads once no write of it can land."""
        former = self.leader
        former.kill()
        self.replicas.remove(former)
        await asyncio.sleep(3.1)
        await self.replicas[0].take_over()
        self.replicas.append(self._replica())
        self._awake.set()

    async def _start(self) -> None:
        self.replicas = [self._replica(), self._replica()]
        await self.replicas[0].take_over()

    def _replica(self) -> Replica:
        made = Replica(self.store, GangSettings(complete_seconds=60), self.settings)
        made.start()
        return made

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(repr(task.exception()))

    def _hear(self, item: Pod | Node, is_gone: bool) -> None:
        self._awake.set()
        if isinstance(item, Pod) and not is_gone:
            name = item.metadata.name
            if item.node:
                self.ever_bound.setdefault(name, self.loop.now)
            if item.metadata.deletion_timestamp and item.uid not in self._ending:
                self._ending.add(item.uid)
                self._begin(self._end_pod(item))

    async def _end_pod(self, pod: Pod) -> None:
        await asyncio.sleep(GRACE_SECONDS if pod.node else 0.0)
        now = self.store.current(pod)
        if now is not None and now.metadata.name not in self.stuck:
            self.store.remove(now)

    # kube-scheduler

    async def _schedule(self) -> None:
        """Try all waiting pods whenever something has changed, the most important first."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            await asyncio.sleep(0.02)
            waiting = [
                each
                for each in self.store.pods.values()
                if not (each.node or each.gates or each.metadata.deletion_timestamp)
                and each.spec.scheduler_name is None
                and each.metadata.name not in self.untried
            ]
            for each in sorted(waiting, key=lambda each: -each.priority):
                with suppress(GpushareError, TimeoutError):
                    async with asyncio.timeout(HTTP_SECONDS):  # the leader may be killed
                        await self._try(each)

    async def _try(self, pod: Pod) -> None:
        if not any(replica.leads for replica in self.replicas):
            return
        leader = self.leader
        is_rejected = pod.metadata.name in self.rejected
        nodes = [n for n in self.store.nodes if not is_rejected and self._sum_fits(pod, n)]
        found = await leader.answers.filter(pod, nodes) if nodes else None
        if found is not None and found.fitting:
            args = BindingArgs(pod.metadata.name, "default", pod.uid, found.fitting[0])
            await leader.binder.bind(args)
            return
        if found is not None and found.is_retried:
            self.loop.call_later(1.0, self._awake.set)
            return
        if self.preempts:
            await self._preempt(pod, leader)
        now = self.store.current(pod)
        if now is not None and not now.node and now.condition("PodScheduled") is None:
            conditions = (PodCondition("PodScheduled", "False", "Unschedulable"),)
            self.store.put(changed(now, status={"conditions": conditions}))

    async def _preempt(self, pod: Pod, leader: Replica) -> None:
        """As DefaultPreemption, and with the extender's answer."""
        at = pod.status.nominated_node_name
        if at and any(e.metadata.deletion_timestamp and e.node == at for e in self._pods()):
            return  # PodEligibleToPreemptOthers
        proposed = {name: found for name in self.store.nodes if (found := self._victims(pod, name))}
        if not proposed:
            if at:  # without candidates it removes the nominated node; after a veto it does not
                self.store.put(changed(pod, status={"nominated_node_name": None}))
            return
        kept = (await leader.answers.preempt(pod, proposed)).kept
        if kept:
            name = min(kept, key=lambda each: (len(kept[each]), each))
            self._evict(pod, name, kept[name])

    def _victims(self, pod: Pod, name: str) -> list[str]:
        """Return the victims of one node: all lower pods, less those that can be put back."""
        lower = [e for e in self._on(name) if e.priority < pod.priority]
        kept = self._sum(name) - sum(map(units_of, lower)) + units_of(pod)
        if kept > self._size(name):
            return []
        victims = []
        for each in sorted(lower, key=lambda e: (-e.priority, e.metadata.name)):
            if kept + units_of(each) <= self._size(name):
                kept += units_of(each)
            else:
                victims.append(each.uid)
        return victims

    def _evict(self, pod: Pod, name: str, uids: Collection[str]) -> None:
        victims = [each for each in self._pods() if each.uid in uids]
        names = [each.metadata.name for each in victims]
        self.nominated.setdefault(pod.metadata.name, []).extend(names)
        for each in victims:
            self.store.delete(each)
        now = self.store.current(pod)
        if now is not None and not now.node:
            self.store.put(changed(now, status={"nominated_node_name": name}))

    def _pods(self) -> list[Pod]:
        return list(self.store.pods.values())

    def _on(self, name: str) -> list[Pod]:
        return [e for e in self._pods() if e.node == name and not e.metadata.deletion_timestamp]

    def _sum(self, name: str) -> int:
        return sum(units_of(e) for e in self._pods() if e.node == name)

    def _size(self, name: str) -> int:
        return int(self.store.nodes[name].allocatable[RESOURCE_MEMORY])

    def _sum_fits(self, pod: Pod, name: str) -> bool:
        """As NodeResourcesFit with nominated pods."""
        nominated = [
            e
            for e in self._pods()
            if e.status.nominated_node_name == name
            and not e.node
            and e.priority >= pod.priority
            and e.uid != pod.uid
        ]
        used = self._sum(name) + sum(map(units_of, nominated))
        return used + units_of(pod) <= self._size(name)


def units_of(pod: Pod) -> int:
    return int(pod.containers[0].limits[RESOURCE_MEMORY])


def _made(
    name: str,
    units: int,
    *,
    priority: int = 0,
    gang: str = "",
    minimum: int = 0,
    gated: bool = False,
    never: bool = False,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    grace: int | None = None,
    scheduler: str | None = None,
) -> Pod:
    if gang:
        made = gangs.member(name, gang, minimum, units=units, priority=priority)
    else:
        made = pod(name, units, labels=labels)
    spec: dict[str, Any] = {
        "priority": priority,
        "termination_grace_period_seconds": grace,
        "scheduler_name": scheduler,
    }
    if gated:
        spec["scheduling_gates"] = (SchedulingGate(GATE_ADMISSION),)
    if never:
        spec["preemption_policy"] = "Never"
    owner = OwnerReference(True, "Job", name, f"job-{name}")
    meta = {"owner_references": (owner,), "uid": uid_of(name), "namespace": namespace}
    return changed(made, meta, spec=spec)


def uid_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
