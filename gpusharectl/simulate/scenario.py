"""Read nodes and pods with their times from documents (pure)."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gpushare.annotations import mistaken_names
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.cards.reserve import NO_RESERVE, Reserve
from gpushare.contract import ANNOTATION_QUOTA, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.groups.model import GroupKey, PodGroup, Source
from gpushare.groups.pod_groups import API_GROUPS, PodGroupMeta, PodGroupObject, value_of
from gpushare.groups.sources import key_of, minimum_of
from gpushare.objects.model import Pod, PodStatus
from gpushare.objects.pod_requests import requests_of
from gpushare.text.amounts import MIB_PER_GIB
from gpushare.text.manual import manual
from gpusharectl.manifests import kubernetes_keys, resource_rules
from gpusharectl.manifests.fields import Field
from gpusharectl.manifests.manifest import AS_JOB, NOT_READ
from gpusharectl.manifests.train_jobs import Runtimes, is_runtime, runtimes_of
from gpusharectl.manifests.workloads import KINDS, TOGETHER, kind_of, requests_memory
from gpusharectl.manifests.yaml_lines import LISTS, Document, objects
from gpusharectl.simulate.documents import priorities
from gpusharectl.simulate.documents.namespaces import NamespaceDocuments, NamespaceEvent
from gpusharectl.simulate.documents.nodes import NodeDocuments, NodeEvent, has_large_gpus, unit_of
from gpusharectl.simulate.documents.priorities import PriorityClasses
from gpusharectl.simulate.documents.values import (
    NAME,
    Times,
    check_keys,
    convert,
    is_served,
    name_of,
    present,
    times_of,
)
from gpusharectl.simulate.documents.workloads import read_workload
from gpusharectl.simulate.notes import MAX_TEXTS, Notes
from gpusharectl.simulate.other_systems.other_pods import not_simulated, waits_for_whole_gpus

_BUDGET: Final = "PodDisruptionBudget"
_RESOURCE_QUOTA: Final = "ResourceQuota"
_LIMITS_MEMORY: Final = "limits GPU memory at the creation of pods, which is not simulated"
_AS_IF_SHARED: Final = (
    "does not share its GPUs by memory yet; pods that request memory are placed there as if it did"
)
_QUOTA_OF_NONE: Final = "has a quota, and no pods in the files that request GPU memory"
_NO_CLASS: Final = (
    "priorityClassName (add the PriorityClass, or write spec.priority; 0 was assumed)"
)
_NO_GANG: Final = "its pods are not a gang, so some of them may start without the others"
_LABEL: Final = f"If they need each other, set the labels of {manual('gangs.md')}"
_IN_MIB: Final = f"{RESOURCE_MEMORY} is assumed to be in MiB: no GPU has so many GiB"
_KINDS: Final = ("Namespace", "Node", "Pod", "PodGroup", priorities.KIND, *LISTS)


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod that is created at ``at`` and, unless None, deleted at ``delete``; in seconds.

    ``returns``: if it is evicted, its controller creates another one.
    """

    at: int
    delete: int | None
    pod: Pod
    returns: bool = False


@dataclass(slots=True)
class Scenario:
    """``unit_mib`` is the cluster's unit.

    ``ignored`` is what was read and has no effect here, ``unknown`` what is not understood of GPUs.
    ``not_read`` are workloads whose pods would request GPU memory and are not here, and what limits
    these; ``without_effect`` are the files, with their kinds, of which nothing has an effect.
    ``named`` counts what the pods use that decides in a cluster and is not simulated. ``pending``
    are pods without a node that request whole GPUs: they are never placed. ``not_tried`` are others
    that seem to want GPUs, but not by memory; they have no events. ``titles`` name steps by time.

    ``pod_groups`` state the minimum of gangs. Members of a gang without GPU memory have events if
    another member requests some. ``placed_again`` is the number of pods that are bound in the files
    and are not here. ``has_budgets``: PodDisruptionBudgets are in the files. ``lacks_namespaces``:
    pods of a cluster are in the files, and a namespace of pods to be placed is not.
    """

    nodes: list[NodeEvent] = field(default_factory=list)
    namespaces: list[NamespaceEvent] = field(default_factory=list)
    pods: list[PodEvent] = field(default_factory=list)
    unit_mib: int = MIB_PER_GIB
    ignored: Notes = field(default_factory=Notes)
    unknown: Notes = field(default_factory=Notes)
    not_read: Notes = field(default_factory=Notes)
    without_effect: dict[str, list[str]] = field(default_factory=dict)
    named: Counter[str] = field(default_factory=Counter)
    pending: list[Pod] = field(default_factory=list)
    not_tried: list[Pod] = field(default_factory=list)
    pod_groups: list[PodGroup] = field(default_factory=list)
    titles: dict[int, str] = field(default_factory=dict)
    placed_again: int = 0
    has_budgets: bool = False
    lacks_namespaces: bool = False


def build(
    documents: Iterable[Document],
    unit_mib: int | None = None,
    *,
    reserve: Reserve = NO_RESERVE,
    places_again: bool = False,
) -> Scenario:
    """Return the scenario of all documents; SettingsError with file and line if invalid.

    ``unit_mib`` is the cluster's unit; if None, that of the first inventory. Without one it is MiB
    if a GPU has more units than any has GiB, else GiB. Nodes that do not share their GPUs yet will
    keep ``reserve`` of each unshared. With ``places_again`` no pod with GPU memory is bound, and
    pods are in order of creation, those without a time last.
    """
    found = list(objects(documents))
    stated = unit_mib or next((u for doc in found if (u := unit_of(doc)) is not None), None)
    in_mib = [] if stated else [doc for doc in found if has_large_gpus(doc)]
    unit = stated or (1 if in_mib else MIB_PER_GIB)
    has_pods = any(doc.value.get("kind") == "Pod" and is_served(doc) for doc in found)
    classes, runtimes = PriorityClasses(found), runtimes_of(doc.value for doc in found)
    builder = _Builder(
        unit, reserve, classes, runtimes, has_pods=has_pods, places_again=places_again
    )
    for doc in in_mib:
        builder.scenario.unknown.add(_IN_MIB, name_of(doc), "If it is not MiB, use --memory-unit")
    for doc in found:
        builder.add(doc)
    return builder.finish()


class _Builder:
    """``has_pods``: pods of a cluster are in the files, so its workloads need to create none."""

    def __init__(
        self,
        unit_mib: int,
        reserve: Reserve,
        classes: PriorityClasses,
        runtimes: Runtimes,
        *,
        has_pods: bool,
        places_again: bool,
    ) -> None:
        self.scenario = Scenario(unit_mib=unit_mib)
        self._classes, self._namespaces = classes, NamespaceDocuments()
        self._has_pods, self._places_again = has_pods, places_again
        self._events: list[tuple[Document, PodEvent, Field]] = []  # each with its pod's template
        self._nodes = NodeDocuments(unit_mib, reserve)
        self._runtimes = runtimes
        self._used: set[str] = set()  # files
        self._gangs: set[GroupKey] = set()  # with members that request GPU memory
        self._later: set[str] = set()  # uids of pods that come when another one is Ready

    def finish(self) -> Scenario:
        self._choose_pods()
        if self._places_again:
            self.scenario.pods.sort(key=lambda each: each.pod.metadata.creation_timestamp or "~")
        self.scenario.nodes.extend(self._nodes.events(self.scenario.unknown))
        self._note_unshared()
        self.scenario.namespaces = self._namespaces.events()
        if self._has_pods and not self._places_again:
            named = {each.namespace.name for each in self.scenario.namespaces}
            self.scenario.lacks_namespaces = any(
                not (pod.node or pod.metadata.namespace in named or waits_for_whole_gpus(pod))
                for pod in (each.pod for each in self.scenario.pods)
            )
        with_pods = {event.pod.metadata.namespace for event in self.scenario.pods}
        for each in self.scenario.namespaces:
            if each.namespace.quota is not None and each.namespace.name not in with_pods:
                self.scenario.ignored.add(_QUOTA_OF_NONE, each.namespace.name)
        for file in self._used:
            self.scenario.without_effect.pop(file, None)
        return self.scenario

    def _choose_pods(self) -> None:
        """Give the pods that have an effect their events, and name the others."""
        until: dict[str, int | None] = {}  # None: without an end
        never = self._never_start(event.pod for _, event, _ in self._events)
        for doc, event, template in self._events:
            pod = event.pod
            if pod.uid in self._later and key_of(pod) in never:
                continue
            has_effect = pod.node or asks_for_share(pod) or key_of(pod) in self._gangs
            if not has_effect and not waits_for_whole_gpus(pod):
                self._ignore(pod)
                continue
            before = until.get(pod.uid, 0)
            if before is None or before > event.at:
                text = f"pod {pod.key} is defined twice at {event.at}s"
                raise doc.wrong(("metadata", "name"), text)
            until[pod.uid] = event.delete
            self.scenario.pods.append(event)
            self._note(template, pod)
            if not has_effect:
                self.scenario.pending.append(pod)

    def _note_unshared(self) -> None:
        """Name nodes that take pods which request memory only in the simulation."""
        if any(asks_for_share(event.pod) and not event.pod.node for event in self.scenario.pods):
            for event in self.scenario.nodes:
                if event.gpus is not None:
                    self.scenario.unknown.add(_AS_IF_SHARED, event.node.name)

    def _never_start(self, pods: Iterable[Pod]) -> set[GroupKey]:
        """Return the gangs that need more members than exist before one of them is Ready."""
        minima = {each.key: each.minimum or 0 for each in self.scenario.pod_groups}
        first: Counter[GroupKey] = Counter()
        for pod in pods:
            key = key_of(pod)
            if key is None:
                continue
            first[key] += pod.uid not in self._later
            stated = minimum_of(pod, key.source)
            if isinstance(stated, int):
                minima[key] = max(minima.get(key, 0), stated)
        return {key for key, number in first.items() if number < minima.get(key, 0)}

    def add(self, doc: Document) -> None:
        kind = doc.value["kind"]
        if kind == "Node":
            self._nodes.add(doc)
        elif kind == "Namespace":
            self._namespaces.add(doc)
        elif kind in {priorities.KIND, _BUDGET}:  # PriorityClasses are read before
            self.scenario.has_budgets |= kind == _BUDGET
        elif kind == "Pod":
            check_keys(doc, kubernetes_keys.POD)
            times, name = times_of(doc), name_of(doc)
            value = {key: doc.value.get(key) for key in ("metadata", "spec", "status")}
            self._put(doc, Field(doc.value), convert(doc, (), present(value), Pod), name, times)
        elif kind == "PodGroup" and (source := _source_of(doc)) is not None:
            self._pod_group(doc, source)
        elif kind_of(doc.value) is not None and self._has_its_pods(doc):
            self.scenario.ignored.add(f"kind {kind}, whose pods are in the files")
        elif kind_of(doc.value) is not None:
            self._workload(doc)
        elif not is_runtime(doc.value):
            self._leave_out(doc, kind)
            return
        self._used.add(doc.file)

    def _leave_out(self, doc: Document, kind: str) -> None:
        near = difflib.get_close_matches(kind, (*_KINDS, *KINDS), 1, 0.85)
        if near and (near[0] in _KINDS or kind_of({**doc.value, "kind": near[0]}) is not None):
            raise doc.wrong(("kind",), f"unknown kind {kind}: did you mean {near[0]}?")
        kinds = self.scenario.without_effect.setdefault(doc.file, [])
        if kind not in kinds and len(kinds) < MAX_TEXTS:
            kinds.append(kind)
        if kind == _RESOURCE_QUOTA and _limits_memory(doc.value):
            fix = f"Write annotation {ANNOTATION_QUOTA} on a Namespace"
            self.scenario.not_read.add(_LIMITS_MEMORY, _named(doc), fix)
        elif requests_memory(doc.value) and not self._has_its_pods(doc):
            self.scenario.not_read.add(NOT_READ, _named(doc), AS_JOB)
        else:
            self.scenario.ignored.add(f"kind {kind}"[:80])

    def _has_its_pods(self, doc: Document) -> bool:
        return is_served(doc) and self._has_pods

    def _pod_group(self, doc: Document, source: Source) -> None:
        meta = PodGroupMeta(name_of(doc), str(doc.value["metadata"].get("namespace") or "default"))
        try:
            spec = msgspec.Raw(msgspec.json.encode(doc.value.get("spec")))
        except TypeError as err:  # YAML has keys that JSON does not have
            raise doc.wrong(("spec",), str(err)) from err
        self.scenario.pod_groups.append(value_of(PodGroupObject(meta, spec), source))

    def _workload(self, doc: Document) -> None:
        times = times_of(doc)
        made = read_workload(doc, self._runtimes)
        if made.is_suspended:
            notes = self.scenario.not_read if made.requests_memory else self.scenario.ignored
            notes.add("suspended, so it creates no pods", _named(doc), "Remove suspend: true")
            return
        if made.pod_group is not None:
            self._pod_group(made.pod_group, Source.POD_GROUP)
        without_gang = 0
        for each in made.pods:
            self._put(doc, each.template, each.pod, each.name, times)
            without_gang += asks_for_share(each.pod) and key_of(each.pod) is None
            if each.is_late:
                self._later.add(f"{each.pod.metadata.namespace or 'default'}/{each.name}")
        if without_gang > 1 and KINDS[doc.value["kind"]].group in TOGETHER:
            self.scenario.unknown.add(_NO_GANG, _named(doc), _LABEL)

    def _put(self, doc: Document, template: Field, pod: Pod, name: str, times: Times) -> None:
        (at, delete), place = times, template.place
        namespace = pod.metadata.namespace or "default"
        if not NAME.fullmatch(namespace):
            raise doc.wrong(("metadata", "namespace"), f"{namespace!r:.80} is not a namespace name")
        if not pod.containers:
            raise doc.wrong((*place, "spec", "containers"), "is missing: a pod has at least one")
        key = f"{namespace}/{name}"
        metadata = replace(pod.metadata, name=name, namespace=namespace, uid=key)
        pod = self._classes.applied(replace(pod, metadata=metadata), template.at("spec").mapping())
        try:
            requests_of(pod)
        except RequestError as err:
            raise doc.wrong((*place, "spec"), str(err)) from err
        wrong = None if is_served(doc) else next(resource_rules.refused(pod), None)
        if wrong is not None:
            raise doc.wrong((*place, "spec", *wrong[0]), wrong[1])
        if pod.is_terminal:
            self.scenario.ignored.add("pods that have ended")
            return
        pod = self._unbound(pod)
        for text in not_simulated(pod):
            self.scenario.unknown.add(text, key)
        gang = key_of(pod)
        if gang is not None and asks_for_share(pod):
            self._gangs.add(gang)
        returns = bool(place) or pod.has_controller
        self._events.append((doc, PodEvent(at, delete, pod, returns), template))

    def _unbound(self, pod: Pod) -> Pod:
        if not (self._places_again and pod.node and asks_for_share(pod)):
            return pod
        self.scenario.placed_again += 1
        return replace(pod, spec=replace(pod.spec, node_name=None), status=PodStatus())

    def _ignore(self, pod: Pod) -> None:
        """Name a Pending pod that requests no memory, and why it has no effect."""
        gate = f"; waits for scheduling gate {pod.gates[0][:100]}" if pod.gates else ""
        text = f"Pending and does not request {RESOURCE_MEMORY}{gate}{mistaken_names.hint(pod)}"
        self.scenario.ignored.add(text, pod.key)
        if mistaken_names.suggestions(pod) or any(not_simulated(pod)):
            self.scenario.not_tried.append(pod)

    def _note(self, template: Field, pod: Pod) -> None:
        """Count what the pod uses that kube-scheduler decides by, and that is not simulated."""
        value = template.at("spec").mapping()
        if pod.node:
            if value.get("resourceClaims"):
                text = "uses resource claims (DRA), whose devices are not in the files"
                self.scenario.unknown.add(text, pod.key)
            return
        for text in () if waits_for_whole_gpus(pod) else mistaken_names.suggestions(pod):
            self.scenario.unknown.add(text, pod.key)
        affinity = pod.spec.affinity
        between = affinity and (affinity.pod_affinity or affinity.pod_anti_affinity)
        of_nodes = affinity and affinity.node_affinity
        there = {
            "affinity between pods": between,
            "preferred node affinity": of_nodes and of_nodes.preferred,
            "topology spread": pod.spec.topology_spread_constraints,
            "volumes": value.get("volumes"),
            "resource claims": value.get("resourceClaims"),
            "host ports": pod.uses_host_port,
            _NO_CLASS: value.get("priorityClassName") and pod.spec.priority is None,
        }
        self.scenario.named.update(text for text, is_there in there.items() if is_there)


def _limits_memory(resource_quota: Mapping[str, Any]) -> bool:
    spec = resource_quota.get("spec")
    limits = spec.get("hard") if isinstance(spec, dict) else None
    return isinstance(limits, dict) and f"requests.{RESOURCE_MEMORY}" in limits


def _source_of(doc: Document) -> Source | None:
    """Return whose PodGroup it is; None for a kind that gpushare does not read."""
    group, _, version = str(doc.value.get("apiVersion")).partition("/")
    for source, (name, versions) in API_GROUPS.items():
        if group == name and version in versions:
            return source
    return None


def _named(doc: Document) -> str:
    kind = doc.value["kind"]
    of_others = f" of {doc.value['apiVersion']}" if kind in KINDS and not kind_of(doc.value) else ""
    return f"{kind} {Field(doc.value).at('metadata', 'name').value}{of_others}"[:120]
