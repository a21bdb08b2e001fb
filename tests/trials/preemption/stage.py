"""Two replicas that evict behind two kube-schedulers, and paper nodes whose deleted pods end."""

import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPSConnection
from typing import Any, Final

import yaml

from gpushare.contract import GATE_ADMISSION, LABEL_CARD_COUNT
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, LocalClusterError
from localcluster.gpushare import COMPONENTS, SCHEDULER_CONFIG, Gpushare
from localcluster.seats import Seats
from localcluster.wait import wait_until
from localcluster.workloads import HOSTNAME, create_priority_classes, pod
from tests.cluster.bringup import fresh
from tests.cluster.gangs import in_gang
from tests.cluster.gated import let_extender_release
from tests.trials.output import Say
from tests.trials.preemption.history import EvictionHistory
from tests.trials.stage import paper_gpu_node

NAME: Final = "gpushare-preemption"
NODES: Final = 50
CARDS: Final = 4  # of each node
UNITS: Final = 16  # of each GPU
PODS: Final = "/api/v1/namespaces/default/pods"
EXTENDERS_OWN: Final = "gpushare_extender_evictions_total"  # for other reasons than preemption
IN_VAIN: Final = "gpushare_extender_preemptions_in_vain_total"
CLASSES: Final = {"p0": 0, "p1": 10, "p2": 20, "p3": 30, "p4": 40}
_FIRST: Final = "preemption/first-{}"  # label of the first nodes
PARTS: Final = 2, 8  # how many first nodes have a label
_SCHEDULER_PORT: Final = 10259
_ATTEMPTS: Final = re.compile(r"^scheduler_schedule_attempts_total\{.*\} (\S+)$", re.MULTILINE)
# The shortest that the extender accepts: the trial waits for the end of a lease at each kill.
_ELECTION: Final = {"leaseSeconds": 4.0, "renewSeconds": 2.0, "retrySeconds": 0.2}


@dataclass(frozen=True)
class Described:
    """A pod that asks for ``units`` on each of ``cards`` GPUs of some nodes.

    ``nodes``: only on so many, all or one of PARTS; ``node``: only on this one. ``gang`` has its
    name and minimum. ``grace`` is in seconds.
    """

    name: str
    units: int
    level: int = 0  # of CLASSES
    cards: int = 1
    is_gated: bool = False
    grace: int = 1
    nodes: int = NODES
    node: str = ""
    gang: tuple[str, int] | None = None

    def pod(self) -> dict[str, Any]:
        labels = {LABEL_CARD_COUNT: str(self.cards)} if self.cards > 1 else {}
        made = pod(
            self.name,
            self.units * self.cards,
            metadata={"labels": labels},
            priorityClassName=f"p{self.level}",
            terminationGracePeriodSeconds=self.grace,
        )
        if self.node:
            made["spec"]["nodeSelector"] = {HOSTNAME: self.node}
        elif self.nodes < NODES:
            made["spec"]["nodeSelector"] = {_FIRST.format(self.nodes): "true"}
        if self.is_gated:
            made["spec"]["schedulingGates"] = [{"name": GATE_ADMISSION}]
        if self.gang is not None:
            in_gang(made, *self.gang, is_gated=self.is_gated)
        return made


@dataclass
class Stage:
    """Creates pods and ends them; ``lost`` must stay empty."""

    seats: Seats
    history: EvictionHistory
    say: Say
    lost: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        return self.seats.cluster

    def create(self, *described: Described) -> None:
        with self.cluster.api() as api:
            for each in described:
                api.request("POST", PODS, each.pod())

    def delete(self, *names: str, grace: int = 0) -> None:
        with self.cluster.api() as api:
            for name in names:
                try:
                    api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": grace})
                except ApiError as err:
                    if err.status != HTTPStatus.NOT_FOUND:  # it was evicted
                        raise

    def wait_bound(self, *names: str, seconds: float = 60) -> None:
        def late() -> str | None:
            bound = {each.name for each in self.history.present() if each.is_bound}
            return ", ".join(name for name in names if name not in bound)[:300] or None

        wait_until("pods to be bound", late, seconds=seconds, interval=0.02)

    def clear(self) -> None:
        """Delete all pods at once, and wait until the watch has shown it."""

        def some() -> str | None:
            with self.cluster.api() as api:
                api.request("DELETE", PODS, {"gracePeriodSeconds": 0})
            found = len(self.history.present())
            return f"{found} pods" if found else None

        wait_until("no pod to be left", some, seconds=60, interval=0.2)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over the extenders."""
        return sum(self.seats.metric(seat, name) for seat in self.seats.names)

    def claims(self) -> float:
        """Return how many claims the extender that decides keeps."""
        _, text = self.seats.ask(self.seats.wait_leading_extender(), "/metrics")
        (found,) = re.findall(r'^gpushare_plans\{what="claim"\} (\S+)$', text, re.MULTILINE)
        return float(found)

    def attempts(self) -> float:
        """Return how often the kube-schedulers have tried to place a pod."""
        pki = self.cluster.state.pki
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its own certificate
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        total = 0.0
        for seat in self.seats.names:
            address = self.seats.address(seat)
            with closing(
                HTTPSConnection(address, _SCHEDULER_PORT, timeout=10, context=context)
            ) as connection:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
            total += sum(map(float, _ATTEMPTS.findall(text)))
        return total

    def play(self, name: str, part: Callable[[], str]) -> None:
        """Run a part, which returns its figures; say them and judge the watch of that time."""
        begun, before = time.monotonic(), len(self.lost)
        try:
            self.seats.wait_leading_extender()
            figures = part()
            self.clear()
            wait_until("nothing to be claimed", self._claimed, seconds=20)
        except LocalClusterError as err:
            figures = "broke off"
            self.lost.append(f"{name}: {err}")
            self.clear()
        self.lost += [f"{name}: {each}" for each in self.history.judge()]
        if count := self.metric(EXTENDERS_OWN):
            self.lost.append(f"{name}: {count:.0f} pods were evicted for other reasons")
        self.history.begin()
        took, lost = time.monotonic() - begun, len(self.lost) - before
        self.say(f"{name}: {figures}; {lost} wrong; {took:.0f} s")

    def _claimed(self) -> str | None:
        found = self.claims()
        return f"{found:.0f} claims" if found else None


@contextmanager
def preemption_stage(say: Say) -> Iterator[Stage]:
    """Bring up the cluster and two seats with an extender and a kube-scheduler each."""
    names = node_names()
    nodes = [
        paper_gpu_node(
            name,
            CARDS,
            UNITS,
            labels={_FIRST.format(part): "true" for part in PARTS if number < part},
        )
        for number, name in enumerate(names)
    ]
    sizes = {f"GPU-{name}-{index}": UNITS for name in names for index in range(CARDS)}
    with fresh((), nodes, name=NAME, progress=say) as cluster:
        Gpushare(cluster).apply_access()
        let_extender_release(cluster)
        cluster.kubectl("apply", "-f", str(COMPONENTS / "preemption" / "access.yaml"))
        create_priority_classes(cluster, CLASSES)
        seats = Seats.prepare(cluster, 2, SCHEDULER_CONFIG, unit="MiB")
        for seat in seats.names:
            _configure(cluster, seat, {"preemption": {"enabled": True}})
            seats.start_extender(seat)
            seats.start_scheduler(seat)
        with EvictionHistory(cluster, sizes) as history:
            made = Stage(seats, history, say)
            made.seats.wait_leading_extender()
            yield made


def node_names(count: int = NODES) -> Sequence[str]:
    return [f"e{number:02}" for number in range(count)]


def _configure(cluster: Cluster, seat: str, more: Mapping[str, Any]) -> None:
    path = cluster.state.config / f"extender-{seat}.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) | more
    settings["leaderElection"] |= _ELECTION
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
