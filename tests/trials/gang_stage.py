"""Two replicas behind two kube-schedulers, paper nodes, and gangs on parts of these nodes."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.contract import LABEL_CARD_COUNT, LABEL_GANG
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, LocalClusterError
from localcluster.gpushare import SCHEDULER_CONFIG, Gpushare
from localcluster.seats import Seats
from localcluster.wait import wait_until
from tests.cluster.bringup import fresh
from tests.cluster.gangs import STAGE, UNITS, ZONE, member
from tests.cluster.gated import let_extender_release
from tests.fakes.apiserver_proxy import Proxy
from tests.trials.gang_history import GangHistory
from tests.trials.output import Say
from tests.trials.stage import paper_gpu_node, steered_kubeconfig

NAME: Final = "gpushare-gangs"
NODES: Final = 50
CARDS: Final = 2  # of each node
ZONES: Final = 2  # of equal size
ZONE_CARDS: Final = NODES * CARDS // ZONES
PODS: Final = "/api/v1/namespaces/default/pods"
PART: Final = "gangs/nodes"
PART_NODES: Final = 4  # in each part, numbered from 0
PART_CARDS: Final = PART_NODES * CARDS
_EVICTIONS: Final = "gpushare_extender_evictions_total"


@dataclass(frozen=True)
class Described:
    """A gang of ``size`` equal members that ask for ``units`` on each of ``cards`` GPUs.

    ``part`` restricts it to some nodes.
    """

    name: str
    size: int
    minimum: int
    units: int
    cards: int = 1
    is_gated: bool = False
    part: str = ""
    in_one_zone: bool = False

    def pod(self, number: int, owner: dict[str, Any]) -> dict[str, Any]:
        spec: dict[str, Any] = {"metadata": {"labels": {}, "ownerReferences": [owner]}}
        if self.cards > 1:
            spec["metadata"]["labels"][LABEL_CARD_COUNT] = str(self.cards)
        if self.part:
            spec["nodeSelector"] = {PART: self.part}
        return member(
            self.name,
            number,
            self.minimum,
            self.units * self.cards,
            in_one_zone=self.in_one_zone,
            is_gated=self.is_gated,
            **spec,
        )


@dataclass
class GangStage:
    """Creates gangs and ends them; ``lost`` must stay empty."""

    seats: Seats
    history: GangHistory
    say: Say
    owner: dict[str, Any]
    lost: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        return self.seats.cluster

    def create(self, *gangs: Described) -> None:
        """Create the gangs, a member of each in turn."""
        with self.cluster.api() as api:
            for number in range(max(each.size for each in gangs)):
                for each in gangs:
                    if number < each.size:
                        api.request("POST", PODS, each.pod(number, self.owner))

    def finish(self, *names: str) -> None:
        """Delete all members of gangs."""
        with self.cluster.api() as api:
            for name in names:
                self.history.finish(name)
                path = f"{PODS}?labelSelector={LABEL_GANG}%3D{name}"
                api.request("DELETE", path, {"gracePeriodSeconds": 0})

    def listed(self) -> Counter[str]:
        """Count the bound members of each gang by a fresh list."""
        with self.cluster.api() as api:
            items = api.get(PODS)["items"]
        return Counter(
            each["metadata"]["labels"][LABEL_GANG] for each in items if each["spec"].get("nodeName")
        )

    def wait_whole(self, *names: str, seconds: float) -> str:
        """Return the first of these gangs that is whole, once one is."""
        found: list[str] = []

        def missing() -> str | None:
            found[:] = [name for name in names if self.history.gang(name).is_whole]
            return None if found else str({n: self.history.gang(n).most for n in names})

        wait_until(f"{' or '.join(names)} to be whole", missing, seconds=seconds, interval=0.02)
        return found[0]

    def slots(self, name: str) -> int:
        """Return how many slots are kept for a gang, as the extenders say."""
        status, text = self.seats.ask(self.seats.names[0], "/gpushare-scheduler/gangs")
        if not text.startswith("{"):
            raise ApiError(status, f"gangs: {text}")
        return sum(each["slots"] for each in json.loads(text)["gangs"] if each["name"] == name)

    def play(self, name: str, part: Callable[[], str]) -> None:
        """Run a part, which returns its figures; say them and judge the watch of that time."""
        begun, before = time.monotonic(), len(self.lost)
        try:
            figures = part()
        except LocalClusterError as err:
            figures = "broke off"
            self.lost.append(f"{name}: {err}")
        self.clear()
        self.lost += [f"{name}: {each}" for each in self.history.judge()]
        self._judge_evictions(name)
        took, lost = time.monotonic() - begun, len(self.lost) - before
        self.say(f"{name}: {figures}; {lost} wrong; {took:.0f} s")

    def clear(self) -> None:
        """Delete all pods, and wait until the watch has shown it."""
        with self.cluster.api() as api:
            left = {each["metadata"]["labels"][LABEL_GANG] for each in api.get(PODS)["items"]}
        self.finish(*left)

        def some() -> str | None:
            with self.cluster.api() as api:
                found = len(api.get(PODS)["items"]) or self.history.pods_left()
            return f"{found} pods" if found else None

        wait_until("no pod to be left", some, seconds=60, interval=0.3)

    def _judge_evictions(self, name: str) -> None:
        for seat in self.seats.names:
            wait_until("its metrics", lambda seat=seat: self._unreadable(seat), seconds=20)
            if count := self.seats.metric(seat, _EVICTIONS):
                self.lost.append(f"{name}: {seat} has evicted {count:.0f} pods")

    def _unreadable(self, seat: str) -> str | None:
        try:
            self.seats.metric(seat, _EVICTIONS)
        except ApiError as err:
            return str(err)
        return None


@contextmanager
def gang_stage(say: Say) -> Iterator[GangStage]:
    """Bring up the cluster and two seats with an extender and a kube-scheduler each."""
    names = [f"g{number:02}" for number in range(NODES)]
    zones = {name: f"zone-{number % ZONES}" for number, name in enumerate(names)}
    nodes = [
        paper_gpu_node(
            name,
            CARDS,
            UNITS,
            labels={STAGE: "true", PART: str(number // PART_NODES), ZONE: zones[name]},
        )
        for number, name in enumerate(names)
    ]
    sizes = {f"GPU-{name}-{index}": UNITS for name in names for index in range(CARDS)}
    with fresh((), nodes, name=NAME, progress=say) as cluster:
        Gpushare(cluster).apply_access()
        let_extender_release(cluster)
        seats = Seats.prepare(cluster, 2, SCHEDULER_CONFIG, unit="MiB")
        for seat in seats.names:
            seats.start_extender(seat)
            seats.start_scheduler(seat)
        with GangHistory(cluster, sizes, zones) as history:
            made = GangStage(seats, history, say, _owner(cluster))
            made.seats.wait_leading_extender()
            yield made


@contextmanager
def behind_proxy(stage: GangStage, folder: Path, **election: float) -> Iterator[Proxy]:
    """Restart the extenders behind a proxy of the API server; ``election`` are lease settings."""
    cluster, seats = stage.cluster, stage.seats
    address, authority = cluster.network.host, cluster.state.pki / "ca.crt"
    with Proxy(cluster.server, authority, folder, address=address) as proxy:
        steered = steered_kubeconfig(cluster, proxy, folder)
        before = {}
        for seat in seats.names:
            path = cluster.state.config / f"extender-{seat}.yaml"
            before[path] = path.read_text(encoding="utf-8")
            settings = yaml.safe_load(before[path])
            settings["kubeconfig"] = str(steered)
            settings["leaderElection"] |= election
            path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        try:
            _restart(stage)
            yield proxy
        finally:
            proxy.heal()
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")
            _restart(stage)


def _restart(stage: GangStage) -> None:
    for seat in stage.seats.names:
        stage.seats.restart(seat)
    stage.seats.wait_leading_extender()


def _owner(cluster: Cluster) -> dict[str, Any]:
    """Return a reference to a controller: only pods with one are ever evicted."""
    described = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    with cluster.api() as api:
        made = api.request("POST", "/api/v1/namespaces/default/configmaps", described)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
