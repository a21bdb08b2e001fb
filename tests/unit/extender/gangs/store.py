"""An API server of pods and nodes in memory, whose writes and watches fail as a test wants."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Final, Literal

import msgspec

from gpushare.contract import GATE_ADMISSION
from gpushare.errors import ApiError, Conflict, NotFound, OutcomeUnknown, Replaced
from gpushare.objects.model import Node, Pod
from tests.unit.extender.scripted import changed

Outcome = Literal["done", "slow", "refused", "lost", "done, unknown", "late, unknown"]
Item = Pod | Node

SLOW_SECONDS: Final = 2.0
LATE_SECONDS: Final = 2.5  # less than a write may take
DELETED: Final = "2026-01-01T00:00:00Z"


@dataclass
class StoredBudget:
    """A PodDisruptionBudget for the pods whose names begin with ``prefix``."""

    prefix: str
    allowed: int


class Store:
    """``budgets`` are by name. An eviction of a pod in ``failing`` (names) answers with that
    code, and one in ``broken`` with 500 unless it is only tried. Pods in ``unwritable`` cannot be
    patched, which ``refused`` counts. Budgets of ``unknown_namespaces`` cannot be read.

    ``evicted`` are the names of evicted pods, in their order.

    ``listeners`` are called with each change: its kind, the object, whether it is deleted.

    ``outcomes`` are those of the next binding, by the pod's uid. ``begins`` is called when the
    server gets a Binding, and ``evicts`` when it grants an eviction.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.may_patch = now, True
        self.bound_at: dict[str, float] = {}  # by uid
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.listeners: list[Callable[[Item, bool], None]] = []
        self.begins: Callable[[Pod, str], None] = lambda *_: None
        self.evicts: Callable[[Pod], None] = lambda _: None
        self.version = 0
        self.budgets: dict[str, StoredBudget] = {}
        self.failing: dict[str, int] = {}
        self.broken: set[str] = set()
        self.unwritable: set[str] = set()
        self.refused = 0
        self.unknown_namespaces: set[str] = set()
        self.evicted: list[str] = []
        self._late: set[asyncio.Task[None]] = set()

    @property
    def server_date(self) -> str:
        return formatdate(self.now(), usegmt=True)

    def put(self, item: Item) -> None:
        self.version += 1
        made = changed(item, {"resource_version": str(self.version)})
        self._of(made)[made.metadata.name] = made
        for listener in self.listeners:
            listener(made, False)

    def remove(self, item: Item) -> None:
        self.version += 1
        self._of(item).pop(item.metadata.name)
        for listener in self.listeners:
            listener(item, True)

    def _of(self, item: Item) -> dict[str, Any]:
        return self.pods if isinstance(item, Pod) else self.nodes

    def current(self, pod: Pod) -> Pod | None:
        """Return a pod as it is now; None if it is gone."""
        found = self.pods.get(pod.metadata.name)
        return found if found is not None and found.uid == pod.uid else None

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str]) -> None:
        """As ``BindingREST.Create`` (pkg/registry/core/pod/storage/storage.go)."""
        now = self.current(pod)
        if now is None:
            raise NotFound(pod.key, code=404)
        if now.node or now.gates or now.metadata.deletion_timestamp:
            raise Conflict(f"{pod.key} is bound, gated or being deleted", code=409)
        written = {"annotations": now.annotations | dict(annotations)}
        self.bound_at[pod.uid] = self.now()
        self.put(changed(now, written, spec={"node_name": node}))

    # What the extender uses of ``Kube``:

    async def get_pod(self, namespace: str, name: str) -> Pod:
        await asyncio.sleep(0.002)
        if name not in self.pods:
            raise NotFound(f"{namespace}/{name}", code=404)
        return self.pods[name]

    async def bind_pod(
        self,
        pod: Pod,
        node: str,
        annotations: Mapping[str, str],
        *,
        seconds: float,
        may_go: Callable[[], object],
    ) -> None:
        outcome = self.outcomes.pop(pod.uid, "done")
        may_go()
        self.begins(pod, node)
        await asyncio.sleep(SLOW_SECONDS if outcome == "slow" else 0.005)
        if outcome == "refused":
            raise ApiError("refused", code=403)
        if outcome in {"done", "slow", "done, unknown"}:
            self.bind(pod, node, annotations)
        if outcome == "late, unknown":
            self._later(self._bind_late(pod, node, annotations))
        if outcome in {"lost", "done, unknown", "late, unknown"}:
            raise OutcomeUnknown("no answer")

    async def patch_pod(
        self,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        part: str = "",
        seconds: float,
        may_go: Callable[[], object],
    ) -> None:
        """Apply what the extender patches: its gate, a zone, annotations, or the nominated node."""
        may_go()
        await asyncio.sleep(0.005)
        now = self.pods.get(name)
        if now is None:
            raise NotFound(f"{namespace}/{name}", code=404)
        if name in self.unwritable:
            self.refused += 1
            raise ApiError("annotations are too long", code=422)
        meta, spec = patch["metadata"], patch.get("spec", {})
        if meta["uid"] != now.uid:
            raise Replaced(now.key, code=422)
        written = {"annotations": now.annotations | meta.get("annotations", {})}
        if part == "status":
            nominated = patch["status"]["nominatedNodeName"]
            self.put(changed(now, written, status={"nominated_node_name": nominated}))
            return
        gates = now.spec.scheduling_gates or ()
        if "schedulingGates" in spec:
            gates = tuple(gate for gate in gates if gate.name != GATE_ADMISSION)
        selector = (now.spec.node_selector or {}) | spec.get("nodeSelector", {})
        self.put(changed(now, written, spec={"scheduling_gates": gates, "node_selector": selector}))

    async def evict_pod(
        self, pod: Pod, *, any_version: bool = False, is_trial: bool = False, seconds: float
    ) -> None:
        """As EvictionREST.Create (pkg/registry/core/pod/storage/eviction.go)."""
        await asyncio.sleep(0.005)
        now = self.current(pod)
        if now is None:
            raise NotFound(pod.key, code=404)
        name = pod.metadata.name
        if name in self.failing:
            raise ApiError("as the test wants", code=self.failing[name])
        budgets = [each for each in self.budgets.values() if name.startswith(each.prefix)]
        if len(budgets) > 1:
            raise ApiError("more than one PodDisruptionBudget", code=500)
        if budgets and budgets[0].allowed <= 0:
            raise ApiError("a PodDisruptionBudget does not allow it", code=429)
        if is_trial:
            return
        if name in self.broken:
            raise ApiError("etcd is slow", code=500)
        for each in budgets:
            each.allowed -= 1
        self.evicted.append(name)
        self.evicts(now)
        self.delete(now)

    def delete(self, pod: Pod) -> None:
        """Begin to delete a pod; its node ends it later."""
        if pod.metadata.deletion_timestamp is None:
            meta = {"deletion_timestamp": DELETED, "deletion_grace_period_seconds": 2}
            self.put(changed(pod, meta))

    async def create_event(self, *_: object, **__: object) -> None: ...

    async def request(self, method: str, path: str, **_: object) -> bytes:
        """Return when a pod was bound, or whether pods may be patched."""
        if method == "POST":
            await asyncio.sleep(0.002)
            return msgspec.json.encode({"status": {"allowed": self.may_patch}})
        pod = await self.get_pod("default", path.rsplit("/", 1)[1])
        at = datetime.fromtimestamp(self.bound_at.get(pod.uid, 0.0), UTC).isoformat()
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        return msgspec.json.encode({"status": {"conditions": [condition]}})

    async def list_page(self, collection: Any, **_: object) -> bytes:
        """Return the pods that have succeeded, whatever else is selected."""
        await asyncio.sleep(0.002)
        items = [pod for pod in self.pods.values() if pod.status.phase == "Succeeded"]
        return msgspec.json.encode({"metadata": {}, "items": items})

    async def _bind_late(self, pod: Pod, node: str, annotations: Mapping[str, str]) -> None:
        await asyncio.sleep(LATE_SECONDS)
        with suppress(ApiError):
            self.bind(pod, node, annotations)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
