"""Places a trace's pods by gpushare's own decisions: filter, bind's choice of cards, the watch."""

import time
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from bench.placement.books import Books, Place
from bench.placement.trace import CARD, Trace, TraceNode, TracePod
from extender.decisions.scheduling import Placement
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from extender.watch.live_pods import PodUse
from gpushare.annotations import inventory, pod_annotations
from gpushare.cards.model import Card, Inventory
from gpushare.contract import (
    ANNOTATION_CARD_MODELS,
    ANNOTATION_INVENTORY,
    LABEL_CARD_COUNT,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import resources_used

RENEWED: Final = 50  # pods that come until the extender looks again at what is scarce
_PODS: Final = 1000  # that a node takes: the trace has no such limit


class Clock:
    """Virtual time: a trace's pods come one second after the other."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return int(self.now * 1e9)


class Gpushare:
    """``took`` has the seconds of each decision of filter, ``steps`` of each step of learning."""

    def __init__(self, trace: Trace, books: Books, policy: Policy) -> None:
        self._books = books
        self.took: list[float] = []
        self.steps: list[float] = []
        self.clock = Clock()
        self.cluster = ClusterWatch(1, lambda *_: None, self.clock, policy)
        self._names = [node.name for node in trace.nodes]
        self._numbers = {name: i for i, name in enumerate(self._names)}
        self._templates: dict[TracePod, Pod] = {}
        self._pods: dict[str, Pod] = {}
        for node in trace.nodes:
            self.cluster.node_changed(_node(node))

    def place(self, pod: TracePod, uid: str) -> Place | None:
        self.clock.now += 1
        if self.clock.now % RENEWED == 0:
            self._learn()
        made, scheduling, names = self._pod(pod, uid), self.cluster.scheduling, self._names
        if not pod.cards:
            return None
        self.cluster.pod_changed(made)
        asked = [names[i] for i in self._books.hosts(pod)]
        began = time.perf_counter()
        found = scheduling.filter(made, asked)
        self.took.append(time.perf_counter() - began)
        if not found.fitting:
            self.cluster.pod_deleted(made)
            return None
        node = found.fitting[0]
        request = self.cluster.pods.request_of(made)
        chosen = scheduling.place(made, node, request)
        assert isinstance(chosen, Placement), chosen
        decision = pod_annotations.decision_annotations(
            request, chosen.cards, is_legacy=False, assume_time_ns=0
        )
        annotations = {**made.annotations, **decision}
        self._pods[uid] = replace(made, metadata=replace(made.metadata, annotations=annotations))
        return Place(self._numbers[node], tuple(card.index for card in chosen.cards))

    def _learn(self) -> None:
        began = time.perf_counter()
        for _ in chain(self.cluster.scheduling.renewing_scarcity(), (None,)):  # after the last too
            ended = time.perf_counter()
            self.steps.append(ended - began)
            began = ended

    def placed(self, pod: TracePod, uid: str, place: Place) -> None:
        made = self._pods.get(uid) or self._pod(pod, uid)
        node = self._names[place.node]
        bound = self._pods[uid] = replace(made, spec=replace(made.spec, node_name=node))
        if pod.cards:
            self.cluster.pod_changed(bound)
        else:
            self.cluster.use_changed(
                PodUse(
                    bound.metadata, node, resources_used(bound), is_terminal=False, is_other=True
                )
            )

    def removed(self, _pod: TracePod, uid: str, _place: Place) -> None:
        self.cluster.pod_deleted(self._pods.pop(uid))

    def _pod(self, pod: TracePod, uid: str) -> Pod:
        made = self._templates.get(pod)
        if made is None:
            made = self._templates[pod] = _template(pod)
        return replace(made, metadata=replace(made.metadata, uid=uid, name=uid))


def _node(node: TraceNode) -> Node:
    cards = tuple(
        Card(
            i, f"GPU-{node.name}-{i}", CARD, tag=f"a{i}", minor=i, model=node.model, memory_mib=CARD
        )
        for i in range(node.cards)
    )
    amounts = {
        "cpu": f"{node.cpu}m",
        "memory": f"{node.memory}Mi",
        "pods": str(_PODS),
        RESOURCE_MEMORY: str(CARD * node.cards),
        RESOURCE_COUNT: str(node.cards),
    }
    made = {
        "metadata": {
            "name": node.name,
            "annotations": {
                ANNOTATION_INVENTORY: inventory.encode(
                    Inventory(1, cards, plugin="0.1.0", binding="late")
                )
            },
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    return msgspec.convert(made, Node)


def _template(pod: TracePod) -> Pod:
    asked: dict[str, str] = {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}
    limits = {RESOURCE_MEMORY: str(pod.size)} if pod.cards else {}
    made = {
        "metadata": {
            "namespace": "default",
            "labels": {LABEL_CARD_COUNT: str(pod.cards)} if pod.cards > 1 else {},
            "annotations": {ANNOTATION_CARD_MODELS: ",".join(pod.models)} if pod.models else {},
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": asked, "limits": limits}}]
        },
    }
    return msgspec.convert(made, Pod)
