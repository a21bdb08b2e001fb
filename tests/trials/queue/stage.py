"""Two replicas behind two kube-schedulers, namespaces with quotas, and paper nodes."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import yaml

from gpushare.contract import ANNOTATION_QUOTA, GATE_ADMISSION, LABEL_CARD_COUNT, LABEL_QUEUE
from gpushare.quota.quota import parse
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, LocalClusterError
from localcluster.gpushare import SCHEDULER_CONFIG, Gpushare
from localcluster.seats import Seats
from localcluster.wait import wait_until
from localcluster.workloads import pod
from tests.cluster.bringup import fresh
from tests.cluster.gangs import in_gang
from tests.cluster.gated import FLAGS, let_extender_release
from tests.cluster.kubernetes import chosen
from tests.trials.output import Say
from tests.trials.pod_ends import FINALIZER
from tests.trials.queue.history import QueueHistory
from tests.trials.queue.verdict import QuotaLog, Verdict, judged
from tests.trials.stage import paper_gpu_node

NAME: Final = "gpushare-queue"
NODES: Final = 20
CARDS: Final = 4  # of each node
UNITS: Final = 16  # of each GPU
ALL_CARDS: Final = NODES * CARDS
MODELS: Final = "Even", "Odd"  # of the nodes with these numbers
WAITED_SECONDS: Final = 60.0
_NAMESPACES: Final = "/api/v1/namespaces"
_MERGE: Final = "application/merge-patch+json"
_POLICY_IN_API: Final = 36  # the minor version from which on MutatingAdmissionPolicies are served
# The shortest that the extender accepts: the trial waits for the end of a lease at each kill.
_ELECTION: Final = {"leaseSeconds": 4.0, "renewSeconds": 2.0, "retrySeconds": 0.2}


@dataclass(frozen=True)
class Described:
    """A pod that asks for ``units`` on each of ``cards`` GPUs.

    ``gang`` has its name and minimum. ``is_kept``: a finalizer delays its end. ``grace`` is in
    seconds.
    """

    name: str
    namespace: str
    units: int
    cards: int = 1
    is_gated: bool = True
    grace: int = 0
    gang: tuple[str, int] | None = None
    is_kept: bool = False

    def pod(self) -> dict[str, Any]:
        meta: dict[str, Any] = {"labels": {}}
        if self.cards > 1:
            meta["labels"][LABEL_CARD_COUNT] = str(self.cards)
        if self.is_kept:
            meta["finalizers"] = [FINALIZER]
        made = pod(
            self.name,
            self.units * self.cards,
            metadata=meta,
            terminationGracePeriodSeconds=self.grace,
        )
        if self.is_gated:
            made["spec"]["schedulingGates"] = [{"name": GATE_ADMISSION}]
        if self.gang is not None:
            in_gang(made, *self.gang, is_gated=self.is_gated)
        return made


def gang(
    name: str, namespace: str, size: int, units: int, *, minimum: int = 0, **more: Any
) -> list[Described]:
    """Describe the members of a gang, by default of all that are needed."""
    wanted = name, minimum or size
    return [
        Described(f"{name}-{number}", namespace, units, gang=wanted, **more)
        for number in range(size)
    ]


@dataclass
class Stage:
    """Creates namespaces and pods, and ends them; ``lost`` must stay empty."""

    seats: Seats
    history: QueueHistory
    say: Say
    lost: list[str] = field(default_factory=list)
    quotas: QuotaLog = field(default_factory=QuotaLog)
    _configurations: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # by seat
    _namespaces: set[str] = field(default_factory=set)
    _settings: dict[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        return self.seats.cluster

    @property
    def models(self) -> dict[str, str]:
        """Return the model of each GPU, by UUID."""
        return {uuid: model_of(uuid) for uuid in self.history.sizes}

    def namespace(self, name: str, quota: str | None = None, *, is_queued: bool = True) -> None:
        """Create a namespace, and return once pods can be created in it."""
        labels = {LABEL_QUEUE: "true"} if is_queued else {}
        meta = {"name": name, "labels": labels}
        described = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
        with self.cluster.api() as api:
            api.request("POST", _NAMESPACES, described)
        self._namespaces.add(name)
        self.set_quota(name, quota)
        path = f"{_NAMESPACES}/{name}/serviceaccounts/default"
        wait_until("the ServiceAccount of a namespace", lambda: self._missing(path), seconds=60)

    def set_quota(self, namespace: str, quota: str | None) -> None:
        body = {"metadata": {"annotations": {ANNOTATION_QUOTA: quota}}}
        path = f"{_NAMESPACES}/{namespace}"
        with self.cluster.api() as api:
            meta = api.request("PATCH", path, body, content_type=_MERGE)["metadata"]
        found = None if quota is None else parse(quota)
        self.quotas.put(namespace, int(meta["resourceVersion"]), time.monotonic(), found)

    def create(self, *described: Described) -> None:
        with self.cluster.api() as api:
            for each in described:
                api.request("POST", f"{_NAMESPACES}/{each.namespace}/pods", each.pod())

    def delete(self, *pods: tuple[str, str], grace: int = 0) -> None:
        """Delete pods by namespace and name; those that are gone already are left out."""
        with self.cluster.api() as api:
            for namespace, name in pods:
                path = f"{_NAMESPACES}/{namespace}/pods/{name}"
                try:
                    api.request("DELETE", path, {"gracePeriodSeconds": grace})
                except ApiError as err:
                    if err.status != HTTPStatus.NOT_FOUND:
                        raise

    def succeed(self, namespace: str, name: str) -> None:
        """Let a pod end by itself, as its kubelet would say."""
        path = f"{_NAMESPACES}/{namespace}/pods/{name}/status"
        with self.cluster.api() as api:
            api.request("PATCH", path, {"status": {"phase": "Succeeded"}}, content_type=_MERGE)

    def bound(self) -> set[str]:
        """Return the names of all pods that use GPUs."""
        return {e.name for e in self.history.present() if e.is_bound and not e.is_gone}

    def wait_bound(self, *names: str, seconds: float = WAITED_SECONDS) -> None:
        def late() -> str | None:
            return ", ".join(sorted(set(names) - self.bound()))[:300] or None

        wait_until("pods to be bound", late, seconds=seconds, interval=0.02)

    def bound_of_gangs(self) -> Counter[str]:
        """Count the bound members of each gang."""
        found = Counter[str]()
        for name, members in self.history.gangs().items():
            found[name] = sum(each.is_bound for each in members)
        return found

    def partial(self) -> dict[str, int]:
        """Return the gangs with some members bound, but fewer than they need."""
        members, bound = self.history.gangs(), self.bound_of_gangs()
        whole = self._were_whole()
        return {
            name: number
            for name, number in bound.items()
            if 0 < number < members[name][0].minimum and name not in whole
        }

    def _were_whole(self) -> set[str]:
        ever = Counter(e.gang for e in list(self.history.pods.values()) if e.gang and e.is_bound)
        least = {e.gang: e.minimum for e in list(self.history.pods.values()) if e.gang}
        return {name for name, number in ever.items() if number >= least[name]}

    def wait_whole(self, seconds: float = WAITED_SECONDS) -> None:
        """Wait until no gang is in part."""

        def some() -> str | None:
            return str(found) if (found := self.partial()) else None

        wait_until("no gang to be in part", some, seconds=seconds, interval=0.1)

    def clear(self) -> None:
        """Delete all pods at once, and wait until the watch has shown it."""

        def some() -> str | None:
            with self.cluster.api() as api:
                for name in self._namespaces:
                    api.request("DELETE", f"{_NAMESPACES}/{name}/pods", {"gracePeriodSeconds": 0})
            found = len(self.history.present())
            return f"{found} pods" if found else None

        wait_until("no pod to be left", some, seconds=WAITED_SECONDS, interval=0.5)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over the extenders."""
        return sum(self.seats.metric(seat, name) for seat in self.seats.names)

    def leader_metric(self, name: str) -> float:
        """Return a metric of the extender that decides, asked from the host."""
        seat = self.seats.leading_extender()
        return self.seats.metric(seat, name) if seat else 0.0

    def configure(self, **settings: Any) -> None:
        """Restart the extenders with these settings, if they have others."""
        if settings == self._settings:
            return
        for seat in self.seats.names:
            whole = dict(self._configurations[seat])
            for key, value in settings.items():
                before = whole.get(key)
                whole[key] = before | value if isinstance(before, dict) else value
            path = self.cluster.state.config / f"extender-{seat}.yaml"
            path.write_text(yaml.safe_dump(whole), encoding="utf-8")
        self._settings = settings
        for seat in self.seats.names:
            self.seats.restart(seat)
        self.seats.wait_leading_extender()

    def play(self, name: str, part: Callable[[], str]) -> None:
        """Run a part, which returns its figures; say them and judge the watch of that time."""
        begun, before = time.monotonic(), len(self.lost)
        try:
            self.seats.wait_leading_extender()
            figures = part()
        except LocalClusterError as err:
            figures = "broke off"
            self.lost.append(f"{name}: {err}")
        self.clear()
        verdict = self.verdict()
        self.lost += [f"{name}: {each}" for each in [*self.history.judge(), *verdict.over]]
        self.history.begin()
        took, lost = time.monotonic() - begun, len(self.lost) - before
        self.say(f"{name}: {figures}; {verdict}; {lost} wrong; {took:.0f} s")

    def verdict(self) -> Verdict:
        """Judge the quotas at all Bindings of the part so far."""
        return judged(self.history.moments, self.quotas, self.models)

    def _missing(self, path: str) -> str | None:
        with self.cluster.api() as api:
            try:
                api.get(path)
            except ApiError as err:
                return str(err)
        return None


def node_names() -> Sequence[str]:
    return [f"q{number:02}" for number in range(NODES)]


def model_of(uuid: str) -> str:
    """Return the model of a GPU of these nodes."""
    number = int(uuid.split("-")[1].removeprefix("q"))
    return MODELS[number % len(MODELS)]


@contextmanager
def queue_stage(say: Say) -> Iterator[Stage]:
    """Bring up the cluster and two seats with an extender and a kube-scheduler each."""
    names = node_names()
    nodes = [
        paper_gpu_node(name, CARDS, UNITS, model=MODELS[number % len(MODELS)])
        for number, name in enumerate(names)
    ]
    sizes = {f"GPU-{name}-{index}": UNITS for name in names for index in range(CARDS)}
    flags = () if chosen().version.minor >= _POLICY_IN_API else FLAGS
    with fresh((), nodes, name=NAME, api_server_flags=flags, progress=say) as cluster:
        Gpushare(cluster).apply_access()
        let_extender_release(cluster)
        seats = Seats.prepare(cluster, 2, SCHEDULER_CONFIG, unit="MiB")
        configurations = {seat: _configuration(cluster, seat) for seat in seats.names}
        for seat in seats.names:
            seats.start_extender(seat)
            seats.start_scheduler(seat)
        with QueueHistory(cluster, sizes) as history:
            made = Stage(seats, history, say, _configurations=configurations)
            made.seats.wait_leading_extender()
            yield made


def _configuration(cluster: Cluster, seat: str) -> dict[str, Any]:
    """Return the extender's configuration, with short times for the lease."""
    path = cluster.state.config / f"extender-{seat}.yaml"
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings["leaderElection"] |= _ELECTION
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return settings
