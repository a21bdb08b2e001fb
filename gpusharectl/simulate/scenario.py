"""Read nodes and pods with their times from documents (pure)."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any, Final

from msgspec.structs import replace

from gpushare.annotations import inventory
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import RecordError, RequestError, SettingsError
from gpushare.ledger.holds import NodeResources
from gpushare.objects.model import Node, Pod
from gpushare.placement.node_resources import free_resources, requests_of
from gpushare.process.flags import parse_unit
from gpusharectl.manifests import kubernetes_keys
from gpusharectl.manifests.kubernetes_keys import Keys, Path
from gpusharectl.manifests.yaml_lines import Document
from gpusharectl.simulate.short_cards import stock
from gpusharectl.simulate.values import NAME, Times, convert, name_of, present, time_of, times_of

GIB: Final = 1024
MAX_PODS: Final = 100_000  # of one template
HOSTNAME: Final = "kubernetes.io/hostname"
_LISTS: Final = frozenset({"List", "NodeList", "PodList"})
_WORKLOADS: Final = frozenset({"Deployment", "Job", "ReplicaSet", "StatefulSet"})
_KINDS: Final = ("Node", "Pod", *sorted(_WORKLOADS))


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """The node from ``at`` (seconds) on."""

    at: int
    node: Node


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod that is created at ``at`` and, unless None, deleted at ``delete``; in seconds."""

    at: int
    delete: int | None
    pod: Pod


@dataclass(slots=True)
class Scenario:
    """``unit_mib`` is the cluster's unit.

    ``ignored`` counts what was read and has no effect here; ``named`` what the pods use that
    decides in a cluster and is not simulated.
    """

    nodes: list[NodeEvent] = field(default_factory=list)
    pods: list[PodEvent] = field(default_factory=list)
    unit_mib: int = GIB
    ignored: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)


def build(documents: Iterable[Document], unit_mib: int | None = None) -> Scenario:
    """Return the scenario of all documents; SettingsError with file and line if invalid.

    ``unit_mib`` is the cluster's unit; if None, that of the first inventory, else one GiB.
    """
    found = list(_objects(documents))
    unit = unit_mib or next((u for doc in found if (u := _unit_of(doc)) is not None), GIB)
    builder = _Builder(unit)
    for doc in found:
        builder.add(doc)
    return builder.scenario


def _objects(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield each object, also those of a list such as ``kubectl get -o yaml`` prints."""
    for doc in documents:
        kind = doc.value.get("kind")
        if not isinstance(kind, str) or kind not in _LISTS:
            yield doc
            continue
        items = doc.value.get("items") or []
        if not isinstance(items, list):
            raise doc.wrong(("items",), "expected a list of objects")
        for number, item in enumerate(items):
            if not isinstance(item, dict):
                raise doc.wrong(("items", number), "expected a Kubernetes object")
            # The items of a PodList have no kind.
            value = {"kind": kind.removesuffix("List"), **item}
            yield replaced(doc, value=value, base=(*doc.base, "items", number))


def _unit_of(doc: Document) -> int | None:
    """Return a node's unit in MiB, by its inventory or by the file's ``unit``."""
    if doc.value.get("kind") != "Node":
        return None
    if "unit" in doc.value:
        text = doc.value["unit"]
        try:
            return parse_unit(text if isinstance(text, str) else repr(text))
        except SettingsError as err:
            wanted = "write GiB, MiB or for example 256MiB"
            raise doc.wrong(("unit",), f"{text!r:.40}: {wanted}") from err
    metadata = doc.value.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(ANNOTATION_INVENTORY) if isinstance(annotations, dict) else None
    if not isinstance(text, str):
        return None
    try:
        return inventory.decode(text).unit_mib
    except RecordError:
        return None  # shown as the reason why the node takes no pods


class _Builder:
    def __init__(self, unit_mib: int) -> None:
        self.scenario = Scenario(unit_mib=unit_mib)
        self._pods: dict[str, tuple[int, int | None]] = {}
        self._nodes: set[tuple[str, int]] = set()

    def add(self, doc: Document) -> None:
        kind = doc.value.get("kind")
        if not isinstance(kind, str):
            text = f"expected a Kubernetes object with a kind, found kind {kind!r:.40}"
            raise doc.wrong((), text)
        if kind == "Node":
            self._node(doc)
        elif kind == "Pod":
            self._check(doc, kubernetes_keys.POD)
            times, name = times_of(doc), name_of(doc)
            value = {key: doc.value.get(key) for key in ("metadata", "spec", "status")}
            self._put(doc, (), convert(doc, (), present(value), Pod), name, times)
        elif kind in _WORKLOADS:
            self._workload(doc, kind)
        else:
            near = difflib.get_close_matches(kind, (*_KINDS, *_LISTS), 1, 0.8)
            if near:
                raise doc.wrong(("kind",), f"unknown kind {kind}: did you mean {near[0]}?")
            self.scenario.ignored[f"kind {kind}"] += 1

    def _node(self, doc: Document) -> None:
        self._check(doc, kubernetes_keys.NODE)
        at, name = time_of(doc, "at") or 0, name_of(doc)
        if (name, at) in self._nodes:
            raise doc.wrong(("metadata", "name"), f"node {name} is defined twice at {at}s")
        self._nodes.add((name, at))
        value = {key: doc.value.get(key) or {} for key in ("metadata", "spec", "status")}
        node = convert(doc, (), value, Node)
        status = node.status
        if status.allocatable is None:  # the API server's default
            status = replace(status, allocatable=status.capacity)
        labels = {HOSTNAME: name, **node.labels}  # the kubelet sets it
        node = replace(node, metadata=replace(node.metadata, labels=labels), status=status)
        if "cards" in doc.value:
            if ANNOTATION_INVENTORY in node.annotations:
                raise doc.wrong(("cards",), f"not together with annotation {ANNOTATION_INVENTORY}")
            node = self._with_cards(doc, node)
        elif "unit" in doc.value:
            raise doc.wrong(("unit",), "only together with cards")
        try:
            free_resources(node, (), NodeResources())
        except RequestError as err:
            raise doc.wrong(("status", "allocatable"), str(err)) from err
        self.scenario.nodes.append(NodeEvent(at, node))

    def _with_cards(self, doc: Document, node: Node) -> Node:
        """Return the node with what its plugin would write on it."""
        found = stock(doc, node.name, _unit_of(doc) or self.scenario.unit_mib)
        healthy = sum(card.units for card in found.cards if card.is_healthy)
        total, count = sum(card.units for card in found.cards), {RESOURCE_COUNT: len(found.cards)}
        capacity = {**node.capacity, RESOURCE_MEMORY: total, **count}
        allocatable = {**node.allocatable, RESOURCE_MEMORY: healthy, **count}
        annotations = {**node.annotations, ANNOTATION_INVENTORY: inventory.encode(found)}
        return replace(
            node,
            metadata=replace(node.metadata, annotations=annotations),
            status=replace(node.status, capacity=capacity, allocatable=allocatable),
        )

    def _workload(self, doc: Document, kind: str) -> None:
        self._check(doc, kubernetes_keys.WORKLOAD)
        times = times_of(doc)
        spec = doc.value.get("spec")
        template = spec.get("template") if isinstance(spec, dict) else None
        if not isinstance(spec, dict) or not isinstance(template, dict):
            raise doc.wrong(("spec", "template"), "is missing: expected the pods' template")
        wanted = "parallelism" if kind == "Job" else "replicas"
        count = 1 if spec.get(wanted) is None else spec[wanted]
        if type(count) is not int or not 0 <= count <= MAX_PODS:
            text = f"{count!r:.40}: write a number of pods from 0 to {MAX_PODS}"
            raise doc.wrong(("spec", wanted), text)
        if kind == "Job" and type(spec.get("completions")) is int:
            count = min(count, spec["completions"])
        name = name_of(doc)
        metadata = doc.value["metadata"]
        inner = template.get("metadata") or {}
        if not isinstance(inner, dict):
            raise doc.wrong(("spec", "template", "metadata"), "expected a mapping")
        value = {
            "metadata": {**inner, "namespace": metadata.get("namespace")},
            "spec": template.get("spec"),
            "status": None,
        }
        first = 0 if kind == "StatefulSet" else 1
        place: Path = ("spec", "template")
        if count:
            made = convert(doc, place, present(value), Pod)
            for number in range(first, first + count):
                self._put(doc, place, made, f"{name}-{number}", times)

    def _put(self, doc: Document, place: Path, pod: Pod, name: str, times: Times) -> None:
        at, delete = times
        namespace = pod.metadata.namespace or "default"
        if not NAME.fullmatch(namespace):
            raise doc.wrong(("metadata", "namespace"), f"{namespace!r:.80} is not a namespace name")
        if not pod.containers:
            raise doc.wrong((*place, "spec", "containers"), "is missing: a pod has at least one")
        key = f"{namespace}/{name}"
        metadata = replace(pod.metadata, name=name, namespace=namespace, uid=key)
        pod = replace(pod, metadata=metadata)
        try:
            requests_of(pod)
        except RequestError as err:
            raise doc.wrong((*place, "spec"), str(err)) from err
        if pod.is_terminal:
            self.scenario.ignored["pods that have ended"] += 1
            return
        if not pod.node and not asks_for_share(pod):
            self.scenario.ignored[f"unbound pods that do not request {RESOURCE_MEMORY}"] += 1
            return
        before = self._pods.get(key)
        if before is not None and (before[1] is None or before[1] > at):
            raise doc.wrong(("metadata", "name"), f"pod {key} is defined twice at {at}s")
        self._pods[key] = at, delete
        self._note(doc, place, pod)
        self.scenario.pods.append(PodEvent(at, delete, pod))

    def _note(self, doc: Document, place: Path, pod: Pod) -> None:
        """Count what the pod uses that kube-scheduler decides by, and that is not simulated."""
        if pod.node:
            return
        value: Any = doc.value
        for part in (*place, "spec"):
            value = value.get(part) or {}
        affinity = pod.spec.affinity
        between = affinity and (affinity.pod_affinity or affinity.pod_anti_affinity)
        containers = [each for each in value.get("containers") or () if each]
        ports = [port for each in containers for port in _list(each.get("ports"))]
        of_nodes = affinity and affinity.node_affinity
        there = {
            "affinity between pods": between,
            "preferred node affinity": of_nodes and of_nodes.preferred,
            "topology spread": pod.spec.topology_spread_constraints,
            "volumes": value.get("volumes"),
            "resource claims": value.get("resourceClaims"),
            "resources of the pod as a whole": value.get("resources"),
            "host ports": any(isinstance(port, dict) and port.get("hostPort") for port in ports),
            "priorityClassName (write spec.priority; 0 was assumed)": value.get("priorityClassName")
            and pod.spec.priority is None,
        }
        self.scenario.named.update(text for text, is_there in there.items() if is_there)

    def _check(self, doc: Document, keys: Keys) -> None:
        """Reject unknown keys, except in objects from an API server."""
        metadata = doc.value.get("metadata")
        if isinstance(metadata, dict) and metadata.get("uid"):
            return
        for place, text in kubernetes_keys.unknown(doc.value, keys):
            raise doc.wrong(place, text)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
