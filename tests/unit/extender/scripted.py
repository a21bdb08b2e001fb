"""An API server whose answers are scripted: for outcomes that a real one cannot be made to give.

Its pods change only as a real one's would: a write that "landed" is there for the next read.
"""

import asyncio
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec
import pytest

from extender.binding.binder import Binder, BindRefused
from extender.binding.fenced_writer import Writer
from extender.binding.timing import WRITE_SECONDS
from extender.binding.unknown_outcomes import Reconciler
from extender.binding.write_journal import WriteJournal
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from extender.wire import BindingArgs
from gpushare.annotations import inventory
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_INVENTORY, RESOURCE_MEMORY
from gpushare.errors import ApiError, Conflict, NotFound, OutcomeUnknown
from gpushare.objects.model import Node, Pod
from tests.builders import node, pod, run_to_end
from tests.fakes.clock import FakeClock

PREFIX = "/gpushare-scheduler"
DELETED = {"deletion_timestamp": "2026-01-01T00:00:00Z"}


class ScriptedKube:
    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.bindings: list[tuple[str, str, dict[str, str]]] = []
        self.evicted: list[tuple[str, str]] = []
        self.grace_seconds: list[int | None] = []  # of those that were evicted
        self.outcomes: list[Exception | None] = []
        self.guarded: set[str] = set()  # pods that a budget keeps
        self.lands = True
        self.hold: asyncio.Event | None = None
        self.asked = asyncio.Event()
        self.read_error: Exception | None = None
        self.read_hold: asyncio.Event | None = None
        self.read_asked = asyncio.Event()

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """Read what is there now; with ``read_hold`` the answer is then long on its way."""
        if self.read_error is not None:
            raise self.read_error
        found = self.pods.get(name)
        self.read_asked.set()
        if self.read_hold is not None:
            await self.read_hold.wait()
        if found is None:
            raise NotFound(f"pod {namespace}/{name}", code=404)
        return found

    async def bind_pod(self, pod, node, annotations, *, seconds, may_go=None) -> None:
        self.bindings.append((pod.uid, node, dict(annotations)))
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if self.lands:
            self.land(pod, node, annotations)
        if outcome is not None:
            raise outcome

    async def evict_pod(self, pod, *, any_version=False, grace_seconds=None) -> None:
        if pod.metadata.name in self.guarded:
            raise ApiError("a budget forbids it", code=429)
        if self.outcomes and (outcome := self.outcomes.pop(0)) is not None:
            raise outcome
        now = self.pods[pod.metadata.name].metadata
        is_same = any_version or now.resource_version == pod.metadata.resource_version
        if now.uid != pod.uid or not is_same:
            raise Conflict("the precondition failed", code=409)
        self.evicted.append((pod.metadata.name, pod.uid))
        self.grace_seconds.append(grace_seconds)

    def land(self, pod, node, annotations) -> Pod:
        written = {"annotations": pod.annotations | dict(annotations)}
        landed = changed(pod, written, spec={"node_name": node})
        self.pods[pod.metadata.name] = landed
        return landed


class Bench:
    """A cluster of one node ``n``, a scripted API server and a binder before it.

    ``reasons`` say why it is not ready. With ``notes`` its writes are noted in that file.
    """

    def __init__(self, *sizes: int, notes: Path | None = None) -> None:
        self.kube, self.time = ScriptedKube(), FakeClock()
        self.told: list[tuple[str, str, str]] = []
        self.reasons: list[str] = []
        self.journal: WriteJournal | None = None
        self._sizes, self._notes = sizes, notes
        self._start()

    def _start(self) -> None:
        self.cluster = ClusterWatch(1, self.notice, self.time, Policy(candidates=8))
        self.cluster.node_changed(node("n", *self._sizes))
        kube = self.kube
        if self._notes is not None:
            self.journal = WriteJournal.open(self._notes, self.time)
            kube = Writer(self.kube, self.time, lambda: inf, self.journal)
        self.binder = Binder(self.cluster.scheduling, kube, self.time)
        self.reconciler = Reconciler(self.cluster.state, self.binder, self.kube, self.time)

    def die(self) -> None:
        """End the process at once; its file is all that it leaves."""
        self.journal.close()

    def restart(self) -> None:
        """Start another process, which knows nothing; let it list the cluster and take over."""
        self.die()
        self._start()
        if self.journal.must_wait:
            self.time.now += WRITE_SECONDS
        self.watch_catches_up()
        self.journal.take_over(self.cluster.state)

    def notice(self, about, reason, message) -> None:
        self.told.append((about.metadata.name, reason, message))

    def add(self, *pods: Pod) -> None:
        for each in pods:
            self.kube.pods[each.metadata.name] = each
            self.cluster.pod_changed(each)

    async def bind(self, pod: Pod, node: str = "n") -> None:
        await self.binder.bind(args(pod, node))

    async def lose(self, pod: Pod, *, landed: bool = False) -> None:
        """Bind a pod without an answer from the API server."""
        self.kube.outcomes, self.kube.lands = [OutcomeUnknown("no answer")], landed
        with pytest.raises(BindRefused, match="not known yet"):
            await self.bind(pod)
        self.kube.lands = True

    async def add_and_bind(self, pod: Pod, node: str = "n") -> None:
        self.add(pod)
        await self.bind(pod, node)

    async def settle(self, *, after: float = 0.0) -> None:
        self.time.now += after
        await self.reconciler.settle()

    def watch_catches_up(self) -> None:
        run_to_end(self.cluster.replacing_pods(list(self.kube.pods.values())))

    @property
    def held(self) -> list[tuple[int, int]]:
        """Used and reserved units of each card."""
        return [(e.used, e.reserved) for e in self.cluster.ledger.account("n").cards]


def args(pod: Pod, node: str = "n", *, uid: str = "") -> BindingArgs:
    meta = pod.metadata
    return BindingArgs(meta.name, meta.namespace, uid or meta.uid, node)


def changed(made, meta=None, *, spec=None, status=None):
    """The same object with other fields in these parts."""
    parts = (("metadata", meta), ("spec", spec), ("status", status))
    fields = {
        name: msgspec.structs.replace(getattr(made, name), **part) for name, part in parts if part
    }
    return msgspec.structs.replace(made, **fields)


def restocked(made, **fields) -> Node:
    """The same node with other fields in its inventory."""
    found = replace(inventory.decode(made.annotations[ANNOTATION_INVENTORY]), **fields)
    written = {ANNOTATION_INVENTORY: inventory.encode(found)}
    return changed(made, {"annotations": made.annotations | written})


def bound(name, units, card="GPU-0", node="n", **more) -> Pod:
    """A pod with a decision of ours."""
    return pod(name, units, node=node, annotations={ANNOTATION_CARDS: card}, **more)


def wire_pod(units="8", name="a", *, spec=None, **meta):
    """A pod as kube-scheduler sends it."""
    asks = {"limits": {RESOURCE_MEMORY: units}, "requests": {RESOURCE_MEMORY: units}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta},
        "spec": {"containers": [{"name": "main", "resources": asks}], **(spec or {})},
        "status": {},
    }
