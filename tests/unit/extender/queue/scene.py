"""A cluster with a queue, whose namespaces, pods and gangs a test makes in a few words."""

import asyncio
import datetime as dt
from collections.abc import Mapping

from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.queue.admission import Admission
from extender.settings.configuration import QueueSettings
from gpushare.answers.explain import PodView, explain
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_QUOTA, GATE_ADMISSION, LABEL_QUEUE
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import SchedulingGate
from gpushare.process.time_slices import run_all
from gpushare.quota.namespaces import Metadata, NamespaceObject, namespace_of
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.queue.test_admission import Patched
from tests.unit.extender.scripted import changed

KUEUE = "kueue.x-k8s.io/admission"


class Scene:
    def __init__(
        self,
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        settings: QueueSettings | None = None,
    ) -> None:
        self.cluster = GangCluster(sizes or {"n": (16,)})
        self.state = self.cluster.cluster.state
        self.api = Patched(self.cluster)
        right = PatchRight(self.api, self.cluster.time)
        self.admission = Admission(
            self.cluster.gangs,
            self.cluster.planning,
            Releaser(self.api),
            right,
            settings or QueueSettings(),
        )

    def namespace(
        self,
        name: str,
        quota: str | None = None,
        *,
        ends: bool = False,
        is_queued: bool = True,
    ) -> None:
        notes = {} if quota is None else {ANNOTATION_QUOTA: quota}
        end = "2026-01-01T00:00:00Z" if ends else None
        meta = Metadata(name, "1", end, {LABEL_QUEUE: "true"} if is_queued else {}, notes)
        self.state.namespaces.put(namespace_of(NamespaceObject(meta)))

    def running(self, name: str, units: int, namespace: str = "team", at: str = "n") -> None:
        made = pod(name, units, node=at, annotations={ANNOTATION_CARDS: "GPU-0"})
        self.cluster.add(changed(made, {"namespace": namespace}))

    def pod(
        self,
        name: str,
        units: int,
        namespace: str = "team",
        *,
        age: int = 60,
        gates: tuple[str, ...] = (GATE_ADMISSION,),
        priority: int = 0,
        scheduler: str = "",
    ) -> None:
        """Add a pod that was created ``age`` seconds ago."""
        meta = {"namespace": namespace, "creation_timestamp": self._created(age)}
        spec = {
            "scheduling_gates": tuple(map(SchedulingGate, gates)) or None,
            "priority": priority,
            "scheduler_name": scheduler or None,
        }
        self.cluster.add(changed(pod(name, units), meta, spec=spec))

    def gang(
        self,
        name: str,
        units: int,
        count: int,
        minimum: int | str,
        *,
        namespace: str = "team",
        age: int = 60,
    ) -> None:
        """Add a gang with the members ``NAME-0``, ``NAME-1`` and so on."""
        for number in range(count):
            made = member(
                f"{name}-{number}",
                name,
                minimum,
                namespace=namespace,
                units=units,
                gates=(GATE_ADMISSION,),
                created=self._created(age),
            )
            self.cluster.add(made)

    async def round(self) -> None:
        """Let the leader go once through all that waits; the API server does not answer."""
        never = asyncio.Event()

        async def release_pod(*_):
            await never.wait()

        if self.api.allowed:
            self.api.release_pod = release_pod
        tasks: list[asyncio.Task[None]] = []

        class Group:
            def create_task(self, work):
                tasks.append(asyncio.ensure_future(work))

        await self.admission.check(Group())
        await self.admission.check_claims()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def go_on(self) -> None:
        """Let the time pass in which pods without a gate should have come."""
        self.cluster.time.now += 31
        self.cluster.cluster.expire_plans()
        await self.round()

    def find(self, name: str) -> Pod:
        return self.cluster.kube.pods[name]

    def explained(self, name: str) -> PodView:
        return run_all(explain(self.state, self.find(name), None, now=0.0))

    def listed(self, namespace: str = "", most: int = 1000):
        return run_all(self.state.queue.entries(namespace, most))

    def order(self) -> list[str]:
        return [each.name for each in self.listed().entries if each.place]

    def _created(self, age: int) -> str:
        at = self.cluster.time.wall_ns() / 1e9 - age
        return dt.datetime.fromtimestamp(at, dt.UTC).isoformat()
