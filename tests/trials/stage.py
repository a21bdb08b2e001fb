"""Paper nodes with cards, and an extender behind the proxy that injects faults."""

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.annotations import inventory
from gpushare.cards.model import Card, Inventory
from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import NAMESPACE, Gpushare
from localcluster.pki import write_kubeconfig
from localcluster.specs import PaperNode
from localcluster.wait import wait_until
from localcluster.workloads import pod
from tests.cluster.expect import bind
from tests.cluster.history import RESOURCE, History
from tests.fakes.apiserver_proxy import Asked, Fault, Kind, Proxy
from tests.trials.cards_over_time import held_now, wrong_moments
from tests.trials.retries import retried_pods

LABEL = {"trial/faults": "true"}
UNITS = 25
PODS = "/api/v1/namespaces/default/pods"
_CREATORS = 4


def paper_gpu_node(
    name: str,
    cards: int,
    units: int,
    *,
    unit_mib: int = 1,
    labels: Mapping[str, str] | None = None,
    model: str = "",
) -> PaperNode:
    """Describe a node with an inventory of ``cards`` cards of ``units`` each."""
    made = tuple(
        Card(index, f"GPU-{name}-{index}", units, tag=f"a{index}", minor=index, model=model)
        for index in range(cards)
    )
    text = inventory.encode(Inventory(unit_mib, made, "0.1.0", "late"))
    return PaperNode(
        name,
        capacity={RESOURCE: str(units * cards), "aliyun.com/gpu-count": str(cards), "pods": "1000"},
        labels=labels or {},
        annotations={"gpushare.aliyun.com/inventory": text},
    )


def small_pod(name: str, units: int, **spec: Any) -> dict[str, Any]:
    """Describe a pod for the paper nodes; without a kubelet its deletion takes effect at once."""
    return pod(name, units, nodeSelector=LABEL, terminationGracePeriodSeconds=0, **spec)


@dataclass(frozen=True)
class Injected:
    """A fault for ``times`` of the requests that match."""

    kind: Kind
    matches: Callable[[Asked], bool]
    times: int = 20
    seconds: float = 0.0


class Stage:
    """Create pods that fill the nodes, and judge how they were bound."""

    def __init__(self, gpushare: Gpushare, proxy: Proxy, history: History, nodes: int, cards: int):
        self.gpushare, self.proxy, self.history = gpushare, proxy, history
        self.sizes = {
            f"GPU-{name}-{index}": UNITS for name in node_names(nodes) for index in range(cards)
        }
        self._begun = len(history.changes)

    @property
    def cluster(self) -> Cluster:
        return self.gpushare.cluster

    def pods_that_fit(self, units: int) -> int:
        return len(self.sizes) * (UNITS // units)

    def inject(self, faults: Sequence[Injected]) -> list[Fault]:
        return [self.proxy.fault(**vars(each)) for each in faults]

    def create(self, prefix: str, count: int, units: int) -> None:
        """Create pods from several threads at once."""

        def some(first: int) -> None:
            with self.cluster.api() as api:
                for number in range(first, count, _CREATORS):
                    api.request("POST", PODS, small_pod(f"{prefix}-{number}", units))

        with ThreadPoolExecutor(_CREATORS) as pool:
            for each in [pool.submit(some, first) for first in range(_CREATORS)]:
                each.result()

    def create_one(self, described: dict[str, Any]) -> None:
        with self.cluster.api() as api:
            api.request("POST", PODS, described)

    def ours(self) -> list[dict[str, Any]]:
        """Return all pods of the paper nodes, read from the API server without the proxy."""
        with self.cluster.api() as api:
            items: list[dict[str, Any]] = api.get(PODS)["items"]
        return [each for each in items if each["spec"].get("nodeSelector") == LABEL]

    def bound(self) -> int:
        return sum(bool(each["spec"].get("nodeName")) for each in self.ours())

    def wait_bound(self, count: int, *, seconds: float) -> None:
        """Return once so many pods are bound."""

        def missing() -> str | None:
            found = self.bound()
            return None if found == count else f"{found} are"

        wait_until(f"{count} pods to be bound", missing, seconds=seconds, interval=0.3)

    def wait_counted(self, *, seconds: float = 40) -> None:
        """Return once the ledger equals a fresh count and nothing is reserved."""

        def differs() -> str | None:
            try:
                nodes = self.gpushare.inspect()
            except ApiError as err:
                return str(err)
            cards = [card for node in nodes for card in node["devs"] if card["uuid"] in self.sizes]
            reserved = sum(card["reserved"] for card in cards)
            if reserved:
                return f"{reserved} units are reserved"
            ledger = {card["uuid"]: card["usedGPU"] for card in cards if card["usedGPU"]}
            counted = held_now(self.ours())
            return None if ledger == counted else f"ledger {ledger}, counted {counted}"

        wait_until("the ledger to be the fresh count", differs, seconds=seconds, interval=0.3)

    def judge(self) -> list[str]:
        """Return what was wrong at any moment since ``clear`` was last called."""
        return wrong_moments(self.history.changes[self._begun :], self.sizes)

    def clear(self) -> None:
        """Delete the pods; return once the ledger knows. What is judged next begins here."""
        with self.cluster.api() as api:
            for each in self.ours():
                path = f"{PODS}/{each['metadata']['name']}?gracePeriodSeconds=0"
                api.request("DELETE", path)
        self.wait_counted()
        self._begun = len(self.history.changes)

    def was_bound(self, name: str) -> bool:
        """Return whether the last pod of that name was ever bound."""
        return any(change.node for change in self.history.of(name))

    def bind_by_hand(self, name: str, node: str) -> str:
        """Ask the extender for a binding, without kube-scheduler; return its error."""
        with self.cluster.api() as api:
            uid = api.get(f"{PODS}/{name}")["metadata"]["uid"]
        return bind(self.gpushare, name, uid, node)

    def metric(self, name: str) -> float:
        """Return the sum of all series of a metric of the extender."""
        connection = http.client.HTTPConnection("127.0.0.1", 29766, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as problem:
            raise ApiError(0, f"the extender's metrics: {problem}") from problem
        finally:
            connection.close()
        lines = (each for each in text.splitlines() if each.startswith((f"{name} ", f"{name}{{")))
        return sum(float(each.rpartition(" ")[2]) for each in lines)


def node_names(count: int) -> list[str]:
    return [f"f{number:02}" for number in range(count)]


def steered_kubeconfig(cluster: Cluster, proxy: Proxy, folder: Path) -> Path:
    """Write a kubeconfig by which the extender reaches the API server through a proxy."""
    direct = cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
    return write_kubeconfig(
        folder / "steered.kubeconfig",
        server=proxy.url,
        authority=proxy.authority,
        user={"tokenFile": str(direct.with_suffix(".token"))},
    )


@contextmanager
def stage(
    gpushare: Gpushare, history: History, folder: Path, *, nodes: int, cards: int
) -> Iterator[Stage]:
    """Add paper nodes and restart the extender behind the proxy; undo both at the end."""
    cluster = gpushare.cluster
    names = node_names(nodes)
    with Proxy(cluster.server, cluster.state.pki / "ca.crt", folder) as proxy:
        steered = steered_kubeconfig(cluster, proxy, folder)
        cluster.add_paper_nodes(
            *(paper_gpu_node(name, cards, UNITS, labels=LABEL) for name in names)
        )
        try:
            gpushare.restart_extender(kubeconfig=str(steered))
            made = Stage(gpushare, proxy, history, nodes, cards)
            made.wait_counted()
            with retried_pods(cluster):
                yield made
            proxy.heal()
            made.clear()
        finally:
            proxy.heal()
            cluster.remove_paper_nodes(*names)
            gpushare.restart_extender()
