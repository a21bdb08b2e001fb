"""A queue of pods and gangs in several namespaces, served in virtual time."""

from collections.abc import Iterable

from extender.decisions.gangs.stages import GangStages
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.queue.admission import Admission
from extender.settings.configuration import QueueSettings
from gpushare.contract import ANNOTATION_QUOTA, GATE_ADMISSION
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import SchedulingGate
from gpushare.quota.namespaces import Metadata, NamespaceObject, namespace_of
from tests.builders import node, pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.queue.test_admission import Patched, check
from tests.unit.extender.scripted import changed

OURS = (SchedulingGate(GATE_ADMISSION),)
QUEUED = {"gpushare.aliyun.com/queue": "true"}


class Queue:
    """Names of pods are unique in all namespaces; a pod's uid is its name."""

    def __init__(self, sizes: dict[str, tuple[int, ...]], **settings: object) -> None:
        self.cluster = GangCluster(sizes)
        self.api = Patched(self.cluster)
        gangs, planning = self.cluster.gangs, self.cluster.planning
        right = PatchRight(self.api, self.cluster.time)
        self.admission = Admission(
            gangs, planning, Releaser(self.api), right, QueueSettings(**settings)
        )
        self.state = self.cluster.cluster.state
        self.ignored: set[str] = set()  # pods about which kube-scheduler does not ask
        self._created = 0

    def add_node(self, name: str, sizes: tuple[int, ...]) -> None:
        self.cluster.put_node(node(name, *sizes))

    def namespace(
        self,
        name: str,
        quota: str | None = None,
        labels: dict[str, str] | None = None,
        deleted: str | None = None,
    ) -> None:
        notes = {} if quota is None else {ANNOTATION_QUOTA: quota}
        found = NamespaceObject(Metadata(name, "1", deleted, labels or {}, notes))
        self.state.namespaces.put(namespace_of(found))

    def submit(
        self,
        name: str,
        units: int,
        namespace: str = "default",
        *,
        gang: str = "",
        minimum: int = 0,
        priority: int = 0,
        is_gated: bool = True,
        **more: object,
    ) -> None:
        """Create a pod; ``more`` is of its spec."""
        self._created += 1
        minutes, seconds = divmod(self._created, 60)
        hours, minutes = divmod(minutes, 60)
        created = f"2026-01-01T{hours:02}:{minutes:02}:{seconds:02}Z"
        if gang:
            made = member(name, gang, minimum, units=units, namespace=namespace)
        else:
            made = pod(name, units)
        gates = OURS if is_gated else None
        meta = {"uid": name, "namespace": namespace, "creation_timestamp": created}
        spec = {"scheduling_gates": gates, "priority": priority, **more}
        self.cluster.add(changed(made, meta, spec=spec))

    def submit_gang(
        self, gang: str, count: int, units: int, namespace: str = "default", **more: object
    ) -> None:
        for number in range(count):
            name = f"{gang}-{number}"
            self.submit(name, units, namespace, gang=gang, minimum=count, **more)

    async def serve(self, seconds: float = 0.0, *, every: float = 1.0) -> None:
        """Let the leader work for a while, and bind what kube-scheduler may bind by then.

        Both look at everything ``every`` so many seconds.
        """
        until = self.cluster.time.monotonic() + seconds
        while True:
            await check(self.admission)
            for name in list(self.cluster.kube.pods):
                if not self.cluster.kube.pods[name].gates and name not in self.ignored:
                    await self.cluster.schedule(name)
            if self.cluster.time.monotonic() >= until:
                return
            self.cluster.time.now += every
            self.cluster.cluster.expire_plans()
            list(GangStages(self.cluster.gangs).expired())

    def end(self, *names: str) -> None:
        self.cluster.delete(*names)

    def bound(self, names: Iterable[str] | None = None) -> set[str]:
        found = set(self.cluster.bound())
        return found if names is None else found & set(names)

    def gated(self) -> set[str]:
        return {name for name, each in self.cluster.kube.pods.items() if each.gates}

    def used(self, namespace: str) -> int:
        pods: list[Pod] = [each for each in self.cluster.kube.pods.values() if each.node]
        units = [self.state.request_of(each).units for each in pods if _is_in(each, namespace)]
        return sum(units)


def _is_in(found: Pod, namespace: str) -> bool:
    return found.metadata.namespace == namespace
