"""Random lives of a queue that end: nobody arrives any more, and what runs ends."""

import random
from dataclasses import dataclass, replace

from gpushare.errors import ApiError
from gpushare.objects.model import Container, Pod, Resources, Taint
from gpushare.objects.scheduling import Toleration
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask, Plan
from gpushare.planning.waiting import ask_of
from gpushare.process.time_slices import Turns, run_all
from tests.builders import pod
from tests.unit.extender.queue.driver import QUEUED, Queue
from tests.unit.extender.scripted import changed

ARRIVALS = 20  # rounds in which pods and gangs may arrive
RUN_SECONDS = (20, 60)
RESERVE_SECONDS = (0, 30, 60)
STANDSTILL_SECONDS = 1200.0  # without a pod that runs: rests last for 300 s at most
STEP_SECONDS = 20
MAINTENANCE = Taint("maintenance", "NoSchedule")


@dataclass(frozen=True)
class Stuck:
    """What would fit on an empty cluster, and did not get room on one."""

    owners: tuple[str, ...]
    claims: tuple[str, ...]


class Life:
    """One cluster with a queue; everything in it follows from ``seed``.

    Some pods never come for their room: kube-scheduler has a rule of its own that keeps them from
    all nodes, they name another scheduler, or the API server refuses to release them. Some nodes
    get a taint, are cordoned, or lose CPU to pods without GPU memory.
    """

    def __init__(self, seed: int, order: str, *, backfill: bool) -> None:
        self._rng = rng = random.Random(seed)
        self._backfill = backfill
        sizes = {
            f"n{number}": tuple(rng.choice((8, 16, 16)) for _ in range(rng.randint(1, 3)))
            for number in range(rng.randint(1, 3))
        }
        self._queue = Queue(
            sizes, order=order, backfill=backfill, reserve_after_seconds=rng.choice(RESERVE_SECONDS)
        )
        self._queue.cluster.planning.slices = Turns(1.0, 0.0)  # no rests in real time
        self._refuse_some()
        total = sum(map(sum, sizes.values()))
        self._namespaces = [f"t{number}" for number in range(rng.randint(1, 4))]
        for name in self._namespaces:
            quota = rng.choice((None, None, total, max(16, total // 2)))
            labels = QUEUED if rng.random() < 0.9 else {}
            self._queue.namespace(name, None if quota is None else str(quota), labels=labels)
        self._priorities = (0,) if rng.random() < 0.6 else (0, 0, 5)
        self._never: set[str] = set()  # names of pods that nobody will bind
        self._unreleasable: set[str] = set()
        self._ends: dict[str, float] = {}
        self._count = 0

    async def stuck(self) -> Stuck | None:
        """Live; return what stays although there is room for it, or None if nothing does."""
        for _ in range(ARRIVALS):
            for _ in range(self._rng.randint(0, 2)):
                self._arrive()
            if self._rng.random() < 0.15:
                self._change_node()
            await self._serve(self._rng.randint(1, 5), every=1.0)
        idle = 0.0
        while idle < STANDSTILL_SECONDS:
            await self._serve(STEP_SECONDS, every=5.0)
            if not self._waiting():
                return None
            idle = 0.0 if self._queue.bound() else idle + STEP_SECONDS
        return self._what_fits()

    async def _serve(self, seconds: float, *, every: float) -> None:
        queue = self._queue
        await queue.serve(seconds, every=every)
        now = queue.cluster.time.monotonic()
        for name in queue.bound():
            self._ends.setdefault(name, now + self._rng.choice(RUN_SECONDS))
            if self._ends[name] <= now:
                queue.end(name)

    def _arrive(self) -> None:
        rng = self._rng
        self._count += 1
        units, namespace = rng.choice((2, 4, 8, 8, 16, 16)), rng.choice(self._namespaces)
        more = {"priority": rng.choice(self._priorities), "is_gated": rng.random() < 0.85}
        if rng.random() < 0.2:
            more["tolerations"] = (Toleration(MAINTENANCE.key, "Exists"),)
        if rng.random() < 0.05:
            more["scheduler_name"] = "somebody-else"
        names = [f"p{self._count}"]
        if rng.random() < 0.3:
            size = rng.randint(2, 4)
            names = [f"g{self._count}-{number}" for number in range(size)]
            more |= {"gang": f"g{self._count}", "minimum": rng.randint(1, size)}
        is_mixed = rng.random() < 0.3
        for number, name in enumerate(names):
            self._queue.submit(name, 4 if is_mixed and number else units, namespace, **more)
        if "scheduler_name" in more:
            self._never.update(names)
            self._queue.ignored.update(names)
        elif rng.random() < 0.1:
            self._never.update(names)
            (self._unreleasable if more["is_gated"] else self._queue.ignored).update(names)

    def _refuse_some(self) -> None:
        """Let the API server fail to release some pods: a webhook of their namespace is down."""
        release = self._queue.api.release_pod

        async def release_pod(pod: Pod, patch: object) -> None:
            if pod.metadata.name in self._unreleasable:
                raise ApiError("failed calling webhook", code=500)
            await release(pod, patch)

        self._queue.api.release_pod = release_pod

    def _change_node(self) -> None:
        rng, cluster = self._rng, self._queue.cluster
        node = cluster.nodes[rng.choice(sorted(cluster.nodes))]
        what = rng.choice(("taint", "cordon", "well", "well", "cpu"))
        if what == "cpu":
            requests = {"cpu": "1000"}
            web = pod(f"web-{self._count}", None, node=node.name)
            containers = (Container("main", Resources(requests, requests)),)
            self._queue.cluster.add(changed(web, spec={"containers": containers}))
            return
        spec = replace_spec(node.spec, what)
        cluster.put_node(changed(node, spec=spec))

    def _waiting(self) -> list[Pod]:
        pods = self._queue.cluster.kube.pods.values()
        return [each for each in pods if not each.node and each.metadata.name not in self._never]

    def _what_fits(self) -> Stuck | None:
        """Return which of those that wait would fit if nothing was kept for anybody."""
        state = self._queue.state
        kept = list(state.ledger.kept())
        claims = tuple(f"{type(each).__name__} {each.owner}" for each in kept)
        for each in kept:
            state.ledger.drop(type(each), each.owner)
        asks: dict[str, Ask] = {}
        for each in self._waiting():
            group = state.groups.of(each.uid)
            ask = Ask(each.uid, (each,), 1) if group is None else ask_of(group, state)
            is_whole = group is not None and group.bound >= group.minimum
            asks[ask.owner] = replace(ask, least=1) if is_whole else ask
        fitting = tuple(owner for owner, ask in sorted(asks.items()) if self._fits(ask))
        return Stuck(fitting, claims) if fitting else None

    def _fits(self, ask: Ask) -> bool:
        if not 0 < ask.least <= len(ask.members):
            return False
        limited = self._queue.state.quotas.limited(ask)
        if isinstance(limited, Reason):
            return False
        found = run_all(self._queue.cluster.planning.planner.plan(limited))
        return isinstance(found, Plan) and bool(found.slots)


def replace_spec(spec: object, what: str) -> dict[str, object]:
    return {
        "unschedulable": what == "cordon",
        "taints": (MAINTENANCE,) if what == "taint" else (),
    }
