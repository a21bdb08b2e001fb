"""An API server of pods and nodes in memory, whose writes and watches fail as a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Final, Literal

import msgspec

from gpushare.contract import GATE_ADMISSION
from gpushare.errors import ApiError, Conflict, NotFound, OutcomeUnknown, Replaced
from gpushare.kube.paths import disruption_budgets
from gpushare.objects.model import Node, Pod
from tests.unit.extender.scripted import changed

Outcome = Literal["done", "slow", "refused", "lost", "done, unknown", "late, unknown"]
Item = Pod | Node

BUDGETS: Final = disruption_budgets().path
SLOW_SECONDS: Final = 2.0
LATE_SECONDS: Final = 2.5  # less than a write may take
DELETED: Final = "2026-01-01T00:00:00Z"
GRACE_SECONDS: Final = 2  # of pods that have none
PREFIX: Final = "prefix"  # key of the label by which budgets find pods, by their names


@dataclass
class StoredBudget:
    """A PodDisruptionBudget for the pods of a namespace whose names begin with ``prefix``."""

    prefix: str
    allowed: int
    namespace: str = "default"
    policy: str | None = None
    healthy: int = 0
    desired: int = 0

    def selects(self, pod: Pod) -> bool:
        meta = pod.metadata
        return meta.namespace == self.namespace and meta.name.startswith(self.prefix)

    def body(self, name: str, version: int) -> dict[str, Any]:
        labels = {PREFIX: self.prefix} if self.prefix else {}
        return {
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "resourceVersion": str(version),
            },
            "spec": {
                "selector": {"matchLabels": labels},
                "unhealthyPodEvictionPolicy": self.policy,
            },
            "status": {
                "disruptionsAllowed": self.allowed,
                "currentHealthy": self.healthy,
                "desiredHealthy": self.desired,
            },
        }


class Store:
    """``budgets`` are by name, and changed by ``put_budget`` and ``drop_budgets``.

    An eviction of a pod in ``failing`` (names) answers with that code, and one in ``broken`` with
    500 unless it is only tried. Pods in ``unwritable`` cannot be patched, which ``refused`` counts.
    Pods of ``unlisted`` namespaces cannot be listed; ``lists`` counts the lists of budgets' pods.

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
        self.unlisted: set[str] = set()
        self.lists = 0
        self.evicted: list[str] = []
        self._budget_events: list[bytes] = []
        self._budget_changed = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()

    @property
    def server_date(self) -> str:
        return formatdate(self.now(), usegmt=True)

    def put(self, item: Item) -> None:
        self.version += 1
        written = {"resource_version": str(self.version)}
        if isinstance(item, Pod) and self.current(item) is None:
            created = datetime.fromtimestamp(int(self.now()), UTC)
            written["creation_timestamp"] = created.isoformat()
        made = changed(item, written)
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
        self.put(changed(now, written, spec={"node_name": node}, status={"phase": "Running"}))

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
        self,
        pod: Pod,
        *,
        any_version: bool = False,
        grace_seconds: int | None = None,
        is_trial: bool = False,
        seconds: float,
    ) -> None:
        """As EvictionREST.Create (pkg/registry/core/pod/storage/eviction.go)."""
        await asyncio.sleep(0.005)
        now = self.current(pod)
        if now is None:
            raise NotFound(pod.key, code=404)
        name = pod.metadata.name
        if name in self.failing:
            raise ApiError("as the test wants", code=self.failing[name])
        budgets = self._guarding(now)
        if len(budgets) > 1:
            raise ApiError("more than one PodDisruptionBudget", code=500)
        if budgets and self.budgets[budgets[0]].allowed <= 0:
            raise ApiError("a PodDisruptionBudget does not allow it", code=429)
        if is_trial:
            return
        if name in self.broken:
            raise ApiError("etcd is slow", code=500)
        for each in budgets:
            self.put_budget(
                each, replace(self.budgets[each], allowed=self.budgets[each].allowed - 1)
            )
        self.evicted.append(name)
        self.evicts(now)
        self.delete(now, grace_seconds)

    def delete(self, pod: Pod, grace: int | None = None) -> None:
        """Begin to delete a pod; its node ends it later."""
        if pod.metadata.deletion_timestamp is None:
            grace = pod.spec.termination_grace_period_seconds if grace is None else grace
            grace = GRACE_SECONDS if grace is None else grace
            meta = {"deletion_timestamp": DELETED, "deletion_grace_period_seconds": grace}
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
        """Return the budgets, the bound pods that one of them selects, or those that succeeded."""
        await asyncio.sleep(0.002)
        meta = {"resourceVersion": str(len(self._budget_events))}
        if collection.path == BUDGETS:
            items = [each.body(name, 1) for name, each in self.budgets.items()]
            return msgspec.json.encode({"metadata": meta, "items": items})
        if collection.field_selector != "spec.nodeName!=":
            succeeded = [pod for pod in self.pods.values() if pod.status.phase == "Succeeded"]
            return msgspec.json.encode({"metadata": {}, "items": succeeded})
        namespace = collection.path.split("/")[4]
        if namespace in self.unlisted:
            raise ApiError("no answer", code=500)
        self.lists += 1
        prefix = collection.label_selector.removeprefix(f"{PREFIX}=")
        of_all = StoredBudget(prefix, 0, namespace)
        pods = [pod for pod in self.pods.values() if pod.node and of_all.selects(pod)]
        return msgspec.json.encode({"metadata": {}, "items": pods})

    async def watch(self, collection: Any, *, since: str, **_: object) -> AsyncIterator[bytes]:
        """Yield the changes of budgets after a list."""
        assert collection.path == BUDGETS
        seen = int(since)
        while True:
            while seen < len(self._budget_events):
                seen += 1
                yield self._budget_events[seen - 1]
            self._budget_changed.clear()
            await self._budget_changed.wait()

    def put_budget(self, name: str, budget: StoredBudget) -> None:
        self.budgets[name] = budget
        self._tell_budget("MODIFIED", name, budget)

    def drop_budgets(self) -> None:
        for name, budget in self.budgets.items():
            self._tell_budget("DELETED", name, budget)
        self.budgets.clear()

    def _tell_budget(self, kind: str, name: str, budget: StoredBudget) -> None:
        body = budget.body(name, len(self._budget_events) + 1)
        self._budget_events.append(msgspec.json.encode({"type": kind, "object": body}))
        self._budget_changed.set()

    def _guarding(self, pod: Pod) -> list[str]:
        """Return the budgets that guard a pod (canIgnorePDB, and Create)."""
        if pod.status.phase == "Pending":
            return []
        found = [name for name, each in self.budgets.items() if each.selects(pod)]
        if len(found) == 1 and not pod.is_ready:
            budget = self.budgets[found[0]]
            is_healthy = budget.healthy >= budget.desired > 0
            return [] if is_healthy or budget.policy == "AlwaysAllow" else found
        return found

    async def _bind_late(self, pod: Pod, node: str, annotations: Mapping[str, str]) -> None:
        await asyncio.sleep(LATE_SECONDS)
        with suppress(ApiError):
            self.bind(pod, node, annotations)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
