"""Run a scenario step by step (pure).

A step is all that happens at one time: nodes change, pods are deleted, then Pending and new pods
are tried, by priority and then by age, like kube-scheduler's queue.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers.gangs import list_gangs
from gpushare.answers.sentences import Sentences
from gpushare.contract import (
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_ISOLATION,
    ANNOTATION_NODE_POLICY,
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
)
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.model import GroupKey
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import foreign_resources
from gpushare.placement.node_resources import OfferedResources
from gpushare.placement.rank import Policies
from gpushare.placement.verdict import request_of
from gpushare.process.time_slices import run_all
from gpushare.text.counted import counted
from gpusharectl.simulate import view
from gpusharectl.simulate.gain import gain
from gpusharectl.simulate.gangs import SimulatedGangs
from gpusharectl.simulate.other_systems.other_pods import gpus_of
from gpusharectl.simulate.scenario import PodEvent, Scenario
from gpusharectl.simulate.simulated_cluster import Reasons, SimulatedCluster
from gpusharectl.simulate.world import SimulatedWorld

WISHES: Final = (
    ANNOTATION_NODE_POLICY,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_ISOLATION,
)
NOT_SIMULATED: Final = (
    "kube-scheduler's own scores and its sampling of nodes",
    "preemption",
    "autoscaling",
    "failures after a decision",
)


@dataclass(slots=True)
class _Pod:
    """A pod in the queue; of one ``kind`` all fit or none."""

    event: PodEvent
    number: int
    kind: bytes
    says: str = ""  # why it could never run on any node

    @property
    def turn(self) -> tuple[int, int, int]:
        return -self.event.pod.priority, self.event.at, self.number


@dataclass(slots=True)
class _Moment:
    nodes: list[int] = field(default_factory=list)
    created: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)


class Run:
    """``steps`` may be taken once. The same scenario and policies always give the same steps."""

    def __init__(self, scenario: Scenario, policies: Policies) -> None:
        self.cluster = SimulatedCluster(scenario.unit_mib, policies)
        self.scenario, self.policies = scenario, policies
        self.gangs = SimulatedGangs(SimulatedWorld(self.cluster), scenario.pod_groups)
        self._sentences = Sentences(SimulatedWorld(self.cluster, self.gangs))
        self._bound: dict[int, Pod] = {}
        self._queue: dict[int, _Pod] = {}
        self._happened: list[view.Happened] = []
        self._touched: set[str] = set()
        self._reasons: dict[bytes, Reasons] = {}
        self._moments: dict[int, _Moment] = {}
        for number, event in enumerate(scenario.nodes):
            self._moments.setdefault(event.at, _Moment()).nodes.append(number)
        for number, pod in enumerate(scenario.pods):
            self._moments.setdefault(pod.at, _Moment()).created.append(number)
            if pod.delete is not None:
                self._moments.setdefault(pod.delete, _Moment()).deleted.append(number)

    @property
    def head(self) -> view.Head:
        named = sorted(self._named().items())
        return view.Head(
            version=view.VERSION,
            unit_mib=self.scenario.unit_mib,
            node_policy=self.policies.node.value,
            card_policy=self.policies.card.value,
            not_simulated=(*NOT_SIMULATED, *(f"{text} ({counted(n, 'pod')})" for text, n in named)),
            ignored=tuple(self.scenario.ignored.lines()),
        )

    def _named(self) -> Counter[str]:
        """Count the pods by what they use that is not simulated."""
        offered = OfferedResources(event.node for event in self.scenario.nodes)
        pods = (foreign_resources(event.pod) for event in self.scenario.pods)
        unknown = sum(not offered.has_all(resources) for resources in pods)
        return self.scenario.named + Counter({"resources that no node offers": unknown})

    def tail(self, assumed_gib: int | None) -> view.Tail:
        """Return what is known after all steps; ``assumed_gib`` as for ``gain``."""
        unknown = (*self.scenario.unknown.lines(), *self.cluster.unknown.lines())
        return view.Tail(unknown, gain(self.cluster, self.scenario.pending, assumed_gib))

    @property
    def count(self) -> int:
        return len(self._moments)

    @property
    def waiting(self) -> list[Pod]:
        """Return the Pending pods in the order in which they would be tried."""
        return [each.event.pod for each in self._in_turn()]

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return a bound or Pending pod."""
        key = f"{namespace}/{name}"
        waiting = (each.event.pod for each in self._queue.values())
        return self.cluster.pod(key) or next((pod for pod in waiting if pod.key == key), None)

    def steps(self, only: int | None = None) -> Iterator[view.Step]:
        """Yield a step for each time at which something happens; or ``only`` that number."""
        for number, at in enumerate(self.times(), 1):
            if only is None or only == number:
                yield self._view(number, at)

    def times(self) -> Iterator[int]:
        """Yield each time at which something happens, after it; instead of ``steps``."""
        for at in sorted(self._moments):
            self._happen(at, self._moments[at])
            yield at

    def _happen(self, at: int, due: _Moment) -> None:
        self._happened, self._touched, self.gangs.at = [], set(), at
        for each in due.nodes:
            self._change(at, each)
        for each in due.deleted:
            self._delete(at, each)
        # Pods whose GPUs are written nowhere get those that the others leave.
        created = sorted(due.created, key=lambda each: gpus_of(self.scenario.pods[each].pod) > 0)
        fresh = [made for each in created if (made := self._create(each)) is not None]
        self._try(at, list(self._queue.values()) if due.nodes or due.deleted else fresh)
        for pod in fresh:
            if pod.number in self._queue:
                self._add("refused" if pod.says else "waits", pod.event.pod, text=pod.says)

    def _view(self, number: int, at: int) -> view.Step:
        self.gangs.renew()
        units, used, largest, fragmentation = self.cluster.sums()
        return view.Step(
            number=number,
            at=at,
            unit_mib=self.cluster.unit_mib,
            units=units,
            used=used,
            largest_free=largest,
            fragmentation=fragmentation,
            happened=tuple(self._happened),
            nodes=self.cluster.nodes(self._touched),
            waiting=self._waiting(),
            gangs=tuple(run_all(list_gangs(self.gangs)).gangs),
        )

    def _change(self, at: int, number: int) -> None:
        event = self.scenario.nodes[number]
        node = event.node
        text = "changes" if self.cluster.knows(node.name) else "is added"
        self.cluster.put_node(node, event.gpus)
        if at:
            self._touched.add(node.name)
            self._happened.append(view.Happened("node", node=node.name, text=text))

    def _create(self, number: int) -> _Pod | None:
        """Create a pod; None if it is bound already."""
        event = self.scenario.pods[number]
        pod = event.pod
        self.cluster.count(pod)
        if pod.node:
            self.cluster.bind(pod)
            self._bound[number] = pod
            self.gangs.put(pod)
            if self.cluster.units_of(pod):
                known = self.cluster.knows(pod.node)
                self._add("bound", pod, text="" if known else "its node does not exist")
            return None
        made = self._queue[number] = _Pod(event, number, _kind(pod))
        self.gangs.put(pod)
        try:
            if asks_for_share(pod):
                request_of(pod, self.policies)
        except RequestError as err:
            made.says = str(err)
        if gates := [gate for gate in pod.gates if gate != GATE_ADMISSION]:
            made.says = f"kube-scheduler ignores it until this gate is removed: {gates[0]}"
        return made

    def _delete(self, at: int, number: int) -> None:
        waiting = self._queue.pop(number, None)
        self.gangs.forget(self.scenario.pods[number].pod)
        if waiting is not None:
            self._add("gave-up", waiting.event.pod, waited=at - waiting.event.at)
            return
        pod = self._bound.pop(number)
        if self.cluster.units_of(pod):
            self._add("deleted", pod)
        self.cluster.remove(pod)

    def _try(self, at: int, pods: list[_Pod]) -> None:
        refused: set[bytes] = set()  # within one step free units only decrease
        tried: set[GroupKey] = set()
        self.cluster.learn()
        for each in sorted(pods, key=lambda each: each.turn):
            group = self.gangs.of(each.event.pod)
            if group is not None:
                if group.key not in tried:
                    tried.add(group.key)
                    self._start(at, group)
                continue
            if each.says or each.kind in refused:
                continue
            bound = self.cluster.place(each.event.pod)
            if bound is None:
                refused.add(each.kind)
                continue
            self._place(at, each, bound)

    def _start(self, at: int, group: Group) -> None:
        """Place the members of a gang that have room, unless that is less than its minimum."""
        queued = {each.event.pod.uid: each for each in self._queue.values()}
        for slot in self.gangs.plan(group):
            each = queued[slot.pod_uid]
            bound = self.cluster.place_in(each.event.pod, slot)
            self._place(at, each, bound)
            self.gangs.put(bound)

    def _place(self, at: int, pod: _Pod, bound: Pod) -> None:
        del self._queue[pod.number]
        self._bound[pod.number] = bound
        self._add("placed", bound, waited=at - pod.event.at)

    def _add(self, what: str, pod: Pod, *, waited: int = 0, text: str = "") -> None:
        if pod.node:
            self._touched.add(pod.node)
        self._happened.append(
            view.Happened(
                what,
                pod.metadata.namespace,
                pod.metadata.name,
                node=pod.node,
                cards=self.cluster.cards_of(pod),
                units=self.cluster.units_of(pod),
                waited=waited,
                text=text,
            )
        )

    def _in_turn(self) -> list[_Pod]:
        return sorted(self._queue.values(), key=lambda each: each.turn)

    def _waiting(self) -> tuple[view.Waiting, ...]:
        self._sentences.renew()
        groups: dict[tuple[bytes, str, GroupKey | None], list[_Pod]] = {}
        for each in self._in_turn():
            gang = self.gangs.of(each.event.pod)
            key = each.kind, each.says, gang.key if gang is not None else None
            groups.setdefault(key, []).append(each)
        self._reasons = {kind: self._reasons.get(kind, Reasons()) for kind, _, _ in groups}
        return tuple(self._group(says, pods) for (_, says, _), pods in groups.items())

    def _group(self, says: str, pods: list[_Pod]) -> view.Waiting:
        names = tuple(
            view.WaitingPod(p.event.pod.metadata.namespace, p.event.pod.metadata.name, p.event.at)
            for p in pods
        )
        pod = pods[0].event.pod
        sentence = run_all(self._sentences.of(pod))
        if not says and asks_for_share(pod):
            return self.cluster.why_waits(pod, names, self._reasons[pods[0].kind], sentence)
        return view.Waiting(names, pod.priority, 0, 0, 0, says, sentence, {}, (), 0)


def _kind(pod: Pod) -> bytes:
    """Return a key that is equal for pods with equal requests and constraints."""
    metadata = (pod.labels.get(LABEL_CARD_COUNT), [pod.annotations.get(key) for key in WISHES])
    return msgspec.json.encode((metadata, pod.spec), order="sorted")
