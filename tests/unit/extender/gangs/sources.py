"""Gangs that are stated by any source, with gpushare's gate or without, and single pods."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from extender.settings.configuration import GangSettings
from gpushare.contract import GATE_ADMISSION
from gpushare.groups.model import GroupKey, Source
from gpushare.groups.pod_groups import value_of
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import SchedulingGate
from tests.builders import pod, run_to_end
from tests.gangs import member, pod_group
from tests.unit.extender.gangs.test_duties import ListedKube
from tests.unit.extender.queue.test_admission import check, stage
from tests.unit.extender.scripted import changed

WITH_OBJECTS: Final = (Source.NATIVE, Source.POD_GROUP)
OURS: Final = SchedulingGate(GATE_ADMISSION)
IDLE: Final = 2  # a gang without room is planned again after a second


class Stage:
    """The leader, and a kube-scheduler that tries the most important pod first, then the oldest.

    If gangs are gated, so are other pods; else the extender may not patch pods, as by default.
    """

    def __init__(
        self,
        source: Source,
        is_gated: bool,
        sizes: Mapping[str, tuple[int, ...]],
        labels: Mapping[str, Mapping[str, str]] | None = None,
        gangs: GangSettings | None = None,
    ) -> None:
        self.source, self.is_gated = source, is_gated
        self.cluster, self.api, self._admission = stage(
            sizes, labels, gangs=gangs, kube=ListedKube()
        )
        self.api.allowed = is_gated
        self.groups = self.cluster.cluster.state.groups
        for each in WITH_OBJECTS:
            run_to_end(self.groups.replaced_pod_groups(each, ()))

    def gang(
        self, name: str, amounts: Sequence[int | None], minimum: Any = None, **more: Any
    ) -> list[Pod]:
        """State a gang, whose members all have to start together by default; return them."""
        least = len(amounts) if minimum is None else minimum
        self.state(name, least, more.get("namespace", "default"), more.get("zone_key"))
        return [
            self.member(f"{name}-{number}", name, least, units=units, **more)
            for number, units in enumerate(amounts)
        ]

    def member(self, name: str, gang: str, minimum: Any, **more: Any) -> Pod:
        gates = (GATE_ADMISSION,) if self.is_gated else ()
        if self.source is Source.NATIVE:
            more.pop("zone_key", None)  # its PodGroup says it
        return member(name, gang, minimum, source=self.source, gates=gates, **more)

    def single(self, name: str, units: int, priority: int | None = None) -> Pod:
        gates = (OURS,) if self.is_gated else None
        return changed(pod(name, units), spec={"priority": priority, "scheduling_gates": gates})

    def state(
        self, gang: str, minimum: Any, namespace: str = "default", zone_key: str | None = None
    ) -> None:
        """Create or change the PodGroup of a gang, if its source has PodGroups."""
        spec: dict[str, Any] = {"minMember": minimum}
        if self.source is Source.NATIVE:
            topology = [{"key": zone_key}] if zone_key else []
            spec = {
                "schedulingPolicy": {"gang": {"minCount": minimum}},
                "schedulingConstraints": {"topology": topology},
            }
        if self.source in WITH_OBJECTS:
            found = pod_group(gang, spec, namespace=namespace)
            self.groups.put_pod_group(value_of(found, self.source))

    def unstate(self, gang: str) -> None:
        """Delete the PodGroup of a gang."""
        self.groups.drop_pod_group(GroupKey("default", self.source, gang))

    async def keep_room(self, gang: str) -> None:
        """Let the leader keep room for a gang that fits, before any member is bound."""
        if self.is_gated:
            await check(self._admission)
        else:
            await self.cluster.offered(next(self.of(gang)).metadata.name)
        assert self.cluster.held

    async def settle(self) -> Counter[str]:
        """Let everybody work until nothing changes; count the bound pods of each gang."""
        idle = 0
        while idle < IDLE:
            before = self.cluster.bound()
            await self.step()
            idle = 0 if self.cluster.bound() != before else idle + 1
        return Counter(name.rpartition("-")[0] for name in self.cluster.bound())

    async def step(self) -> None:
        """Let the leader work for a second, and kube-scheduler try each pod once."""
        await self.cluster.duties.check()
        if self.is_gated:
            await check(self._admission)
        for pods in self._attempts():
            await self._try(pods)
        self.cluster.time.now += 1

    def told(self) -> list[tuple[str, str]]:
        """Return the pods and texts of the Events on Pending pods, after twenty seconds."""
        for _ in range(20):
            self.cluster.time.now += 1
            run_to_end(self.cluster.cluster.report_pending())
        waiting = [each for each in self.cluster.events if each[1] == "GpushareWaiting"]
        return [(name, text) for name, _, text in waiting]

    def of(self, gang: str) -> Iterator[Pod]:
        pods = self.cluster.kube.pods
        return (pods[name] for name in list(pods) if name.rpartition("-")[0] == gang)

    async def check_waits(self, gang: str) -> None:
        """Check that nothing is kept, nominated or evicted for a gang."""
        for each in self.of(gang):
            assert not each.node
            assert self.cluster.cluster.ledger.slot_of(each.uid) is None
            if each.gates:
                assert each.metadata.name not in self.api.nominated
                continue
            answer = await self.cluster.answers.filter(each, list(self._open_to(each)))
            assert answer.fitting == []
            assert answer.final.keys() == self.cluster.nodes.keys()
            proposed = {name: ["uid-victim"] for name in self.cluster.nodes}
            assert (await self.cluster.answers.preempt(each, proposed)).kept == {}

    def _attempts(self) -> Iterable[list[Pod]]:
        """Return what is tried at a time: a pod, or all waiting members of a native gang."""
        pods = self.cluster.kube.pods.values()
        waiting = [pod for pod in pods if not (pod.node or pod.gates)]
        found: dict[str, list[Pod]] = {}
        for each in sorted(waiting, key=lambda pod: -pod.priority):
            found.setdefault(each.pod_group or each.uid, []).append(each)
        return found.values()

    async def _try(self, pods: list[Pod]) -> None:
        """Offer all of these nodes before one is bound."""
        offers = [
            (pod.metadata.name, await self.cluster.offered(pod.metadata.name, self._open_to(pod)))
            for pod in pods
        ]
        for name, (fitting, _) in offers:
            if fitting:
                await self.cluster.bind(name, fitting[0])

    def _open_to(self, pod: Pod) -> Iterator[str]:
        """Yield the nodes that kube-scheduler does not reject by itself."""
        selector = pod.spec.node_selector or {}
        for node in self.cluster.nodes.values():
            if selector.items() <= node.labels.items() and not node.spec.unschedulable:
                yield node.name
