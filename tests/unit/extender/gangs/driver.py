"""A cluster in memory and a kube-scheduler of a few lines, for the leader's work on gangs."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from extender.binding.binder import Binder
from extender.gangs.answers import GangAnswers
from extender.gangs.duties import GangDuties
from extender.gangs.planning import GangPlanning
from extender.settings.configuration import GangSettings, Policy
from extender.watch.cluster import ClusterWatch
from extender.wire import BindingArgs
from gpushare.groups.reasons import BEING_PLANNED
from gpushare.objects.model import Node, Pod
from tests.builders import node
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import DELETED, ScriptedKube, changed


class GangCluster:
    """``sizes`` are the GPUs of each node, ``labels`` the labels of some.

    ``kube`` answers what the duties of the leader read beside the watch.
    """

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, ...]],
        labels: Mapping[str, Mapping[str, str]] | None = None,
        gangs: GangSettings | None = None,
        kube: Any = None,
    ) -> None:
        self.time, self.kube, self._version = FakeClock(), ScriptedKube(), 0
        self.listed = kube
        self.events: list[tuple[str, str, str]] = []
        self.cluster = ClusterWatch(
            1, self._notice, self.time, Policy(candidates=8), gangs or GangSettings()
        )
        self.nodes: dict[str, Node] = {}
        for name, cards in sizes.items():
            made = node(name, *cards)
            self.put_node(changed(made, {"labels": dict((labels or {}).get(name, {}))}))
        scheduling = self.cluster.scheduling
        self.gangs, self.planning = scheduling.gangs, GangPlanning(scheduling)
        self.answers = GangAnswers(self.cluster.scheduling, self.planning, self.cluster.grace)
        self.binder = Binder(scheduling, self.kube, self.time)
        self.duties = GangDuties(scheduling, self.planning, self.kube, kube, self._notice)

    def _notice(self, about: Pod | Node, reason: str, message: str) -> None:
        self.events.append((about.metadata.name, reason, message))

    def put_node(self, made: Node) -> None:
        self.nodes[made.name] = made
        self.cluster.node_changed(made)

    def delete_node(self, name: str) -> None:
        self.cluster.node_deleted(self.nodes.pop(name))

    def add(self, *pods: Pod) -> None:
        for each in pods:
            self._version += 1
            pod = changed(each, {"resource_version": str(self._version)})
            self.kube.pods[pod.metadata.name] = pod
            self.cluster.pod_changed(pod)

    def delete(self, *names: str) -> None:
        for name in names:
            self.cluster.pod_deleted(self.kube.pods.pop(name))

    def terminate(self, name: str) -> None:
        self.add(changed(self.kube.pods[name], DELETED))

    async def offered(self, name: str, nodes: Iterable[str] | None = None) -> tuple[list[str], str]:
        """Return the nodes that filter offers, and one of the reasons for the others.

        Asks again while a plan takes longer than an answer may, as on a busy machine.
        """
        asked = list(self.nodes if nodes is None else nodes)
        while True:
            found = await self.answers.filter(self.kube.pods[name], asked)
            texts = [*found.failed.values(), *found.final.values()]
            if BEING_PLANNED.text not in texts:
                return found.fitting, texts[0] if texts else ""
            await asyncio.sleep(0)

    async def is_retried(self, name: str) -> bool:
        """Return whether kube-scheduler tries the pod again even if nothing changes."""
        return (await self.answers.filter(self.kube.pods[name], self.nodes)).is_retried

    async def schedule(self, *names: str, without: Collection[str] = ()) -> dict[str, str]:
        """Try each pod once, as kube-scheduler does; return the nodes of those that are bound."""
        for name in names:
            if self.kube.pods[name].node:
                continue
            fitting, _ = await self.offered(name, (n for n in self.nodes if n not in without))
            if fitting:
                await self.bind(name, fitting[0])
        return self.bound(*names)

    async def bind(self, name: str, at: str) -> None:
        meta = self.kube.pods[name].metadata
        await self.binder.bind(BindingArgs(name, meta.namespace, meta.uid, at))
        self.add(self.kube.pods[name])

    def bound(self, *names: str) -> dict[str, str]:
        pods = {name: self.kube.pods[name] for name in names or self.kube.pods}
        return {name: pod.node for name, pod in pods.items() if pod.node}

    @property
    def held(self) -> int:
        """The number of slots that are kept for pods without a node."""
        return sum(len(kept.slots) for kept in self.cluster.ledger.kept())
