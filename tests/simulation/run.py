"""One run: a cluster with faults for a while, then without any until it is settled."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from extender.gangs import duties
from extender.queue import admission
from extender.settings.configuration import Policy, PreemptionSettings, QueueSettings
from extender.watch import cluster as watch
from gpushare.contract import ANNOTATION_QUOTA, LABEL_QUEUE
from tests.simulation.apiserver import ApiServer
from tests.simulation.faults import Faults
from tests.simulation.gangs import Gangs
from tests.simulation.invariants import Invariants
from tests.simulation.loop import VirtualLoop, virtual_time
from tests.simulation.machine import Machine
from tests.simulation.network import Services
from tests.simulation.nodes import Nodes
from tests.simulation.pods import Pods
from tests.simulation.replica import Replica
from tests.simulation.scheduler import KubeScheduler
from tests.simulation.store import NAMESPACE, Object, Store, edited, gang_of, server_time
from tests.simulation.trace import Trace, TraceLogs

POLICIES: Final = (Policy(), Policy(node="spread"), Policy(node="prices"))
TROUBLE_SECONDS: Final = 60.0
SETTLED_WITHIN_SECONDS: Final = 700.0  # a gang that cannot be completed is evicted after 300 s
DRAINED_WITHIN_SECONDS: Final = 1800.0  # gangs and pods that did not use their room rest for 300 s
END_SECONDS: Final = 20.0  # between two times at which what runs ends
AUDIT_SECONDS: Final = 0.5  # more audits of the small ledger cost time and show nothing
DUTY_SECONDS: Final = 0.5  # so do more looks at a few gangs
LOOK_SECONDS: Final = 0.005  # two that decide for less show by what they write
WEBHOOK_SECONDS: Final = 60.0  # longer than room is kept for a pod that is to be released
KILLED_IN_A_GANG: Final = 0.25  # of the replicas that bind a member
# A replica that never saw a Lease takes it for missing all the time: it cannot know that somebody
# has deleted it. By then each replica has read it.
KNOWN_TO_ALL: Final = timedelta(seconds=25)
DRIFT: Final = 0.009  # two clocks then differ by less than lease.DRIFT


@dataclass(frozen=True, slots=True)
class Result:
    """``seconds`` are of virtual time."""

    seed: int
    violations: tuple[str, ...]
    seconds: float
    bindings: int
    trace: tuple[str, ...]


def simulate(seed: int, *, traced: bool = False) -> Result:
    """Run the simulation of a seed: the same on any machine."""
    before = random.getstate()
    random.seed(seed)
    loop = VirtualLoop()
    trace = Trace(lambda: loop.now, is_kept=traced)
    logs, level = TraceLogs(trace), logging.root.manager.disable
    names = ("extender", "gpushare", "asyncio")
    try:
        with (
            virtual_time(loop),
            patch.object(watch, "AUDIT_SECONDS", AUDIT_SECONDS),
            patch.object(duties, "EVERY_SECONDS", DUTY_SECONDS),
            patch.object(admission, "EVERY_SECONDS", DUTY_SECONDS),
        ):
            logging.disable(logging.NOTSET if traced else logging.CRITICAL)
            for name in names if traced else ():
                logging.getLogger(name).addHandler(logs)
                logging.getLogger(name).setLevel(logging.INFO)
            world = _World(seed, loop, trace)
            try:
                loop.run_until_complete(world.run())
            finally:
                loop.before_time_goes_on = lambda: None
                loop.run_until_complete(world.tear_down())
                loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
        for name in names if traced else ():
            logging.getLogger(name).removeHandler(logs)
            logging.getLogger(name).setLevel(logging.NOTSET)
        logging.disable(level)
        random.setstate(before)
    return Result(
        seed,
        tuple(world.invariants.violations),
        world.ended_at,
        world.invariants.bindings,
        tuple(trace.lines),
    )


class _World:
    def __init__(self, seed: int, loop: VirtualLoop, trace: Trace) -> None:
        self._loop, self._trace = loop, trace
        self._rng = rng = random.Random(seed)
        self._store = store = Store()
        self._all: dict[str, Replica] = {}
        quota = _quota(seed, store)
        self._queue, self._preemption = _queue(seed)
        self.invariants = Invariants(loop, store, self._all, quota)
        self.invariants.preempts = self._preemption.enabled
        self.ended_at = self._looks_at = 0.0
        may_patch = rng.random() < 0.5
        self._server = server = ApiServer(
            store,
            lambda: server_time(loop.now),
            may_patch=may_patch,
            arrives=self.invariants.binding_arrives,
            bound=self._bound,
            evicted=self.invariants.evicted,
        )
        self._faults = Faults(rng, rng.choice((0.02, 0.1, 0.2)), rng.choice((0.05, 0.3, 0.5)))
        self._disruption = rng.choice((0.02, 0.05, 0.12))
        self._services = Services(loop, store, server, self._faults, trace)
        self._nodes = Nodes(store, rng)
        few = rng.choice((0, 1, 4))
        self._policy = replace(rng.choice(POLICIES), candidates=few)
        self._replicas = [self._replica(slot) for slot in range(rng.choice((1, 2, 3, 3)))]
        loop.set_exception_handler(self._unexpected)
        loop.before_time_goes_on = self._look
        names = ("kube-scheduler", "second-scheduler")[: rng.choice((1, 2))]
        # During a failover of kube-scheduler two want all pods for a moment.
        asked_for = ("any",) if rng.random() < 0.3 else names
        priorities = (0, 0, 5) if self._preemption.enabled else (0,)
        self._pods = Pods(loop, store, rng, asked_for, priorities, may_gate=may_patch)
        self._gangs = Gangs(loop, store, rng, self._pods, may_gate=may_patch)
        self._share_of_gangs = rng.choice((0.1, 0.4))
        self._schedulers = [
            KubeScheduler(
                name,
                self._services,
                self.invariants,
                self._replica_of(rng.randrange(len(self._replicas))),
                counts_totals=rng.random() < 0.5,
            )
            for name in names
        ]
        self._running: list[asyncio.Task[None]] = []
        store.listeners.append(self._say)

    async def run(self) -> None:
        """Run until the first violation, or until all is settled."""
        self._running = [self._loop.create_task(each.run()) for each in self._schedulers]
        peace_at = self._loop.now + TROUBLE_SECONDS
        while self._loop.now < peace_at and not self.invariants.violations:
            await asyncio.sleep(self._rng.choice((0.01, 0.05, 0.2, 0.5)))
            self._trace.say("-", self._happen())
        self._make_peace()
        if self._queue == QueueSettings():  # otherwise GPUs are kept for those that come first
            await self._settle()
        await self._drain()
        await self._settle()
        self._trace.say("-", "; ".join(self.invariants.violations) or "all is settled")

    async def _settle(self) -> None:
        """Return once all that fits beside what runs is bound, and nothing is kept."""
        settled_by = self._loop.now + SETTLED_WITHIN_SECONDS
        why = "nobody has looked"
        while why and not self.invariants.violations:
            await asyncio.sleep(1.0)
            why = self.invariants.why_not_settled(self._replicas)
            if why and self._loop.now > settled_by:
                self.invariants.broken(f"not settled {SETTLED_WITHIN_SECONDS:.0f} s later: {why}")

    async def _drain(self) -> None:
        """Let what runs end until nothing waits that would fit an empty cluster."""
        drained_by = self._loop.now + DRAINED_WITHIN_SECONDS
        waiting = ["a leader"]
        while waiting and not self.invariants.violations:
            await asyncio.sleep(END_SECONDS)
            leader = next((each for each in self._replicas if each.decides), None)
            if leader is not None:
                waiting = self.invariants.would_fit_when_empty(leader)
            if waiting and self._loop.now > drained_by:
                text = f"{', '.join(waiting)} would fit an empty cluster"
                self.invariants.broken(f"{DRAINED_WITHIN_SECONDS:.0f} s later {text}")
            if waiting:
                self._pods.end_all()
                self._gangs.end_all(self.invariants.gangs.whole)

    async def tear_down(self) -> None:
        """End all tasks."""
        self.ended_at = self._loop.now
        self._trace.is_kept = False
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for replica in list(self._all.values()):
            replica.link.is_cut = True
            await replica.tear_down()
        left = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in sorted(left, key=hash):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _replica(self, slot: int) -> Replica:
        name = f"extender-{slot}.{len(self._all)}"
        rng = self._rng
        machine = Machine(
            name,
            lambda: self._loop.now,
            offset=rng.uniform(0, 1e5),
            rate=rng.uniform(1 - DRIFT, 1 + DRIFT),
            wall_offset=rng.uniform(-1e4, 1e4),
        )
        made = Replica(
            self._services,
            machine,
            policy=self._policy,
            queue=self._queue,
            preemption=self._preemption,
            schedulers=("kube-scheduler", "second-scheduler", "any"),
            decision_of=self.invariants.decision_of,
            others=self._all.__getitem__,
            broke=self.invariants.broken,
            binds=self.invariants.gangs.binding_begins,
            taken_over=self.invariants.gangs.taken_over,
        )
        self._all[name] = made
        return made

    def _replica_of(self, slot: int) -> Callable[[], Replica]:
        return lambda: self._replicas[slot]

    def _happen(self) -> str:
        """Let something happen; return what."""
        if self._rng.random() < self._disruption:
            return self._disrupt()
        roll = self._rng.random()
        if roll < 0.60:
            is_gang = self._rng.random() < self._share_of_gangs
            return self._gangs.create() if is_gang else self._pods.create()
        if roll < 0.82:
            return self._pods.delete_one()
        if roll < 0.84:
            return self._gangs.delete_one()
        if roll < 0.95:
            return self._nodes.change()
        return self._pods.create_bound(self._rng.choice(self._nodes.names))

    def _disrupt(self) -> str:
        rng, roll = self._rng, self._rng.random()
        slot = rng.randrange(len(self._replicas))
        replica = self._replicas[slot]
        link, name = replica.link, replica.machine.name
        if roll < 0.2:
            link.is_cut = True
            self._loop.after(rng.choice((0.5, 2, 4, 8, 20)), setattr, link, "is_cut", False)
            return f"{name} is cut off from the API server"
        if roll < 0.4:
            link.is_silent = True
            self._loop.after(rng.choice((1, 6, 30)), setattr, link, "is_silent", False)
            return f"the watches of {name} are silent"
        if roll < 0.55:
            link.stop_for(rng.choice((0.2, 2.0, 5.0, 8.0)))
            return f"{name} was to be stopped"
        if roll < 0.75:
            return self._end(slot, killed=rng.random() < 0.6)
        if roll < 0.85:
            self._store.compacted = self._store.version - rng.choice((0, 3, 10))
            return "the API server forgets old versions"
        if roll < 0.92:
            self._server.webhook_is_down = True
            self._loop.after(WEBHOOK_SECONDS, setattr, self._server, "webhook_is_down", False)
            return "the webhook of patches is down"
        return self._change_lease()

    def _bound(self, sender: str, pod: Object, binding: dict[str, Any]) -> None:
        """Judge a Binding; in the middle of a gang its replica is killed now and then."""
        self.invariants.bound(sender, pod, binding)
        if gang_of(pod) and self._faults.share and self._rng.random() < KILLED_IN_A_GANG:
            names = [each.machine.name for each in self._replicas]
            if sender in names:
                self._trace.say("-", self._end(names.index(sender), killed=True))

    def _end(self, slot: int, *, killed: bool) -> str:
        replica = self._replicas[slot]
        if killed:
            replica.kill()
        else:
            replica.terminate()
        self._loop.after(self._rng.choice((0.2, 1.0, 5.0)), self._start, slot, replica)
        return f"{replica.machine.name} is {'killed' if killed else 'asked to end'}"

    def _start(self, slot: int, before: Replica) -> None:
        if self._replicas[slot] is not before or self.ended_at:
            return
        if before.machine.state == "dead":
            self._replicas[slot] = self._replica(slot)
            self._trace.say(self._replicas[slot].machine.name, "starts")
        else:  # it is still releasing its lease
            self._loop.after(1.0, self._start, slot, before)

    def _change_lease(self) -> str:
        leases = self._store.objects["leases"]
        if not leases:
            return "there is no Lease yet"
        name, lease = next(iter(leases.items()))
        made_at = datetime.fromisoformat(lease["metadata"]["creationTimestamp"])
        is_known = server_time(self._loop.now) - made_at >= KNOWN_TO_ALL
        if is_known and self._rng.random() < 0.5:
            self._store.remove("leases", name)
            return "somebody deletes the Lease"
        after = edited(lease)
        holder = self._rng.choice(("somebody", "", self._rng.choice(self._replicas).machine.name))
        after["spec"]["holderIdentity"] = holder
        self._store.put("leases", after)
        return f"somebody writes {holder!r} into the Lease"

    def _make_peace(self) -> None:
        self._trace.say("-", "peace")
        self._faults.stop()
        self._nodes.restore()
        self._pods.remove_bound_by_hand()
        for slot, replica in enumerate(self._replicas):
            replica.link.is_cut = replica.link.is_silent = False
            replica.link.go_on()
            self._start(slot, replica)

    def _look(self) -> None:
        if self._loop.now >= self._looks_at:
            self._looks_at = self._loop.now + LOOK_SECONDS
            self.invariants.one_decides(self._replicas)

    def _say(self, change: Any) -> None:
        if not self._trace.is_kept:
            return
        item = change.after or change.before
        node = item["spec"].get("nodeName", "") if change.kind == "pods" else ""
        what = "removed" if change.after is None else "written"
        text = f"{change.kind} {item['metadata']['name']} {what} as {change.version} {node}"
        self._trace.say("apiserver", text.rstrip())

    def _unexpected(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.invariants.broken(f"{context.get('message')}: {context.get('exception')!r}")


def _quota(seed: int, store: Store) -> float:
    """Write the namespace of all pods; return its quota, which some runs do not have."""
    rng = random.Random(f"quota of {seed}")
    quota, is_queued = rng.choice((None, None, 16, 40)), rng.random() < 0.3
    annotations = {ANNOTATION_QUOTA: str(quota)} if quota is not None else {}
    labels = {LABEL_QUEUE: "true"} if is_queued else {}
    meta = {"name": NAMESPACE, "annotations": annotations, "labels": labels}
    store.put("namespaces", {"metadata": meta})
    return inf if quota is None else quota


def _queue(seed: int) -> tuple[QueueSettings, PreemptionSettings]:
    """Return how pods wait, and whether replicas evict pods for more important ones."""
    rng = random.Random(f"queue of {seed}")
    preemption = PreemptionSettings(enabled=rng.random() < 0.3)
    if rng.random() < 0.6:
        return QueueSettings(), preemption
    order, backfill = rng.choice(("fair", "fifo")), rng.random() < 0.7
    seconds = rng.choice((0, 10, 30))
    settings = QueueSettings(order=order, backfill=backfill, reserve_after_seconds=seconds)
    return settings, preemption
