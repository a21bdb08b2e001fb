"""An API server whose answers are scripted: for outcomes that a real one cannot be made to give.

Its pods change only as a real one's would: a write that "landed" is there for the next read.
"""

import asyncio

import msgspec

from extender.binding.binder import Binder
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from extender.wire import BindingArgs
from gpushare.errors import Conflict, NotFound
from gpushare.objects.model import Pod
from tests.builders import node
from tests.fakes.clock import FakeClock


class ScriptedKube:
    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.bindings: list[tuple[str, str, dict[str, str]]] = []
        self.evicted: list[tuple[str, str]] = []
        self.outcomes: list[Exception | None] = []
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

    async def evict_pod(self, pod) -> None:
        if self.outcomes and (outcome := self.outcomes.pop(0)) is not None:
            raise outcome
        now = self.pods[pod.metadata.name].metadata
        if (now.uid, now.resource_version) != (pod.uid, pod.metadata.resource_version):
            raise Conflict("the precondition failed", code=409)
        self.evicted.append((pod.metadata.name, pod.uid))

    def land(self, pod, node, annotations) -> Pod:
        meta = msgspec.structs.replace(
            pod.metadata, annotations=pod.annotations | dict(annotations)
        )
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        self.pods[pod.metadata.name] = msgspec.structs.replace(pod, metadata=meta, spec=spec)
        return self.pods[pod.metadata.name]


class Bench:
    """A cluster of one node ``n``, a scripted API server and a binder before it."""

    def __init__(self, *sizes: int) -> None:
        self.kube, self.time = ScriptedKube(), FakeClock()
        self.told: list[tuple[str, str, str]] = []
        self.cluster = ClusterWatch(1, self.notice, self.time, Policy(candidates=8))
        self.cluster.node_changed(node("n", *sizes))
        self.binder = Binder(self.cluster.scheduling, self.kube, self.time)

    def notice(self, about, reason, message) -> None:
        self.told.append((about.metadata.name, reason, message))

    def add(self, *pods: Pod) -> None:
        for pod in pods:
            self.kube.pods[pod.metadata.name] = pod
            self.cluster.pod_changed(pod)

    async def bind(self, pod: Pod, node: str = "n") -> None:
        await self.binder.bind(args(pod, node))

    def watch_catches_up(self) -> None:
        self.cluster.pods_replaced(list(self.kube.pods.values()))

    @property
    def held(self) -> list[tuple[int, int]]:
        """Used and reserved units of each card."""
        return [(e.used, e.reserved) for e in self.cluster.ledger.account("n").cards]


def args(pod: Pod, node: str = "n", *, uid: str = "") -> BindingArgs:
    meta = pod.metadata
    return BindingArgs(meta.name, meta.namespace, uid or meta.uid, node)
