"""A kube-scheduler: filters and prioritizes one pod at a time, and binds concurrently."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpushare.contract import RESOURCE_MEMORY
from tests.simulation.invariants import Invariants
from tests.simulation.network import Services
from tests.simulation.packing import asked
from tests.simulation.replica import Replica
from tests.simulation.store import Change, Object, gates_of, is_terminal, node_of, uid_of

HTTP_SECONDS: Final = 5.0  # httpTimeout of the extender
BACKOFF_SECONDS: Final = (1.0, 10.0)
# Pods that nothing happens to are tried again. The real one waits for 300 s; runs are to be short.
FLUSH_SECONDS: Final = 60.0
ASSUMED_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 0.003


@dataclass
class _Queued:
    pod: Object
    attempts: int = 0
    not_before: float = 0.0
    parked_until: float = 0.0  # an event ends it; else its time does
    is_being_bound: bool = False


class KubeScheduler:
    """Schedule the pods that name it, with the replica that ``extender`` returns.

    With ``counts_totals`` it skips nodes whose total of units is used up, as NodeResourcesFit does
    unless ``ignoredByScheduler`` is set.
    """

    def __init__(
        self,
        name: str,
        services: Services,
        invariants: Invariants,
        extender: Callable[[], Replica],
        *,
        counts_totals: bool,
    ) -> None:
        self._name, self._invariants, self._extender = name, invariants, extender
        self._loop, self._store, self._trace = services.loop, services.store, services.trace
        self._rng = services.faults.rng
        self._counts_totals = counts_totals
        self._queue: dict[str, _Queued] = {}
        self._assumed: dict[str, tuple[str, int, float]] = {}
        self._wake = asyncio.Event()
        self._binds: set[asyncio.Task[None]] = set()
        self._store.listeners.append(
            lambda change: self._loop.after(WATCH_SECONDS, self._told, change)
        )

    async def run(self) -> None:
        """Schedule until cancelled."""
        while True:
            entry = self._next()
            if entry is not None:
                await self._attempt(entry)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _told(self, change: Change) -> None:
        after, before = change.after, change.before
        if change.kind == "pods":
            uid = uid_of(after or before or {})
            mine = after is not None and after["spec"]["schedulerName"] in {self._name, "any"}
            if after is None or node_of(after) or is_terminal(after):
                self._queue.pop(uid, None)
                self._assumed.pop(uid, None)
            elif mine and uid not in self._queue:
                if not gates_of(after):
                    self._queue[uid] = _Queued(after)
            elif uid in self._queue:
                self._updated(self._queue[uid], after)
            if any(pod is not None and node_of(pod) for pod in (before, after)):
                self._unpark()
        elif change.kind == "nodes":
            self._unpark()
        self._wake.set()

    def _updated(self, entry: _Queued, pod: Object) -> None:
        """Take a new version: the pod is tried again unless only its status has changed."""
        if pod["spec"] != entry.pod["spec"] or _notes(pod) != _notes(entry.pod):
            entry.parked_until = 0.0
        entry.pod = pod

    def _unpark(self) -> None:
        """Try all pods again, as kube-scheduler does at every change of a pod with a node."""
        for entry in self._queue.values():
            entry.parked_until = 0.0

    def _next(self) -> _Queued | None:
        now = self._loop.now
        for entry in self._queue.values():
            if not entry.is_being_bound and max(entry.not_before, entry.parked_until) <= now:
                return entry
        return None

    def _pause(self) -> float:
        moments = (
            max(entry.not_before, entry.parked_until)
            for entry in self._queue.values()
            if not entry.is_being_bound
        )
        return max(0.001, min(moments, default=self._loop.now + FLUSH_SECONDS) - self._loop.now)

    async def _attempt(self, entry: _Queued) -> None:
        pod, name = entry.pod, entry.pod["metadata"]["name"]
        entry.attempts += 1
        first, most = BACKOFF_SECONDS
        entry.not_before = self._loop.now + min(most, first * 2 ** (entry.attempts - 1))
        names = [node for node in self._store.nodes if self._has_total(node, pod)]
        fitting = await self._fitting(pod, names)
        if not fitting:
            # A pod that no node would do for waits for an event; after an error it comes again.
            if fitting is not None:
                entry.parked_until = self._loop.now + FLUSH_SECONDS
            return
        scores = await self._call("prioritize", {"Pod": pod, "NodeNames": fitting}) or []
        best = max((each["Score"] for each in scores), default=0)
        node = self._rng.choice([e["Host"] for e in scores if e["Score"] == best] or fitting)
        self._assumed[uid_of(pod)] = node, asked(pod).total, self._loop.now + ASSUMED_SECONDS
        entry.is_being_bound = True
        self._trace.say(self._name, f"binds {name} to {node}")
        task = self._loop.create_task(self._bind(entry, pod, node))
        self._binds.add(task)
        task.add_done_callback(self._binds.discard)

    async def _fitting(self, pod: Object, names: list[str]) -> list[str] | None:
        """Return the nodes that the extender offers; None after an error.

        If it offers the nominated node, it is not asked about the others.
        """
        nominated = pod["status"].get("nominatedNodeName")
        if nominated in names and (found := await self._filtered(pod, [nominated])):
            return found
        return await self._filtered(pod, names) if names else []

    async def _filtered(self, pod: Object, names: list[str]) -> list[str] | None:
        found = await self._call("filter", {"Pod": pod, "NodeNames": names})
        return None if found is None or found.get("Error") else found["NodeNames"] or []

    async def _bind(self, entry: _Queued, pod: Object, node: str) -> None:
        uid, meta = uid_of(pod), pod["metadata"]
        await asyncio.sleep(self._rng.choice((0.0, 0.001, 0.05, 0.5)))  # volumes, other plugins
        body = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": uid,
            "Node": node,
        }
        answer = await self._call("bind", body)
        entry.is_being_bound = False
        if answer is not None and not answer.get("Error"):
            self._trace.say(self._name, f"hears that {meta['name']} is bound to {node}")
            self._invariants.answered_bound(uid, node)
            entry.parked_until = self._loop.now + ASSUMED_SECONDS  # until its watch shows it
        else:
            why = answer["Error"] if answer is not None else "no answer"
            self._trace.say(self._name, f"hears that {meta['name']} is not bound: {why}")
            self._assumed.pop(uid, None)
            self._unpark()
        self._wake.set()

    def _has_total(self, node: str, pod: Object) -> bool:
        if not self._counts_totals:
            return True
        there = (p for p in self._store.pods.values() if node_of(p) == node and not is_terminal(p))
        used = sum(asked(p).total for p in there)
        now = self._loop.now
        assumed = (each for each in self._assumed.values() if each[2] > now)
        used += sum(units for where, units, _ in assumed if where == node)
        allocatable = self._store.nodes[node]["status"]["allocatable"][RESOURCE_MEMORY]
        return used + asked(pod).total <= int(allocatable)

    async def _call(self, verb: str, body: dict[str, Any]) -> Any:
        """Return the decoded answer; None without an answer or if its status is not 200."""
        content = msgspec.json.encode(body)
        try:
            async with asyncio.timeout(HTTP_SECONDS):
                await asyncio.sleep(self._rng.uniform(0.0001, 0.001))
                status, answer = await self._extender().ask(verb, content)
        except (TimeoutError, ConnectionRefusedError) as err:
            self._trace.say(self._name, f"{verb}: {err!r}")
            return None
        if status != 200:
            self._trace.say(self._name, f"{verb}: {status} {answer.decode()}")
            return None
        return msgspec.json.decode(answer)


def _notes(pod: Object) -> tuple[Any, Any]:
    return pod["metadata"]["labels"], pod["metadata"]["annotations"]
