"""Decide which new pods begin with our scheduling gate (pure).

The API server asks only about pods in namespaces with the label ``gpushare.aliyun.com/queue=true``.
The MutatingAdmissionPolicy in ``daemonset/components/gates`` decides the same.
"""

from typing import Final

import msgspec

from extender.decisions import admission_review
from extender.decisions.admission_review import Answer, Container
from gpushare.contract import (
    ANNOTATION_KUEUE_GROUP,
    GATE_ADMISSION,
    LABEL_GANG,
    LABEL_KUEUE_GROUP,
    LABEL_POD_GROUP,
)
from gpushare.objects.scheduling import SchedulingGate


class _Labels(msgspec.Struct, frozen=True):
    gang: str = msgspec.field(name=LABEL_GANG, default="")
    pod_group: str = msgspec.field(name=LABEL_POD_GROUP, default="")
    kueue_group: str = msgspec.field(name=LABEL_KUEUE_GROUP, default="")


class _Annotations(msgspec.Struct, frozen=True):
    kueue_group: str = msgspec.field(name=ANNOTATION_KUEUE_GROUP, default="")


class _Owner(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    labels: _Labels | None = None
    annotations: _Annotations | None = None
    owner_references: tuple[_Owner, ...] | None = None


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    pod_group_name: str | None = None


class _Field(msgspec.Struct, frozen=True):
    key: str = ""


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_fields: tuple[_Field, ...] | None = None


class _Terms(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Terms | None = None


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    affinity: _Affinity | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    scheduling_group: _Group | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


_GATE: Final = {"name": GATE_ADMISSION}
_decode_pod: Final = msgspec.json.Decoder(_Pod).decode


def decide(review: bytes) -> Answer:
    """Return the response that adds the gate, or one that changes nothing.

    Raise an error of ``gpushare.errors.UNDECODABLE`` if the review cannot be read.
    """
    question = admission_review.read(review)
    if question.pod is None:
        return question.unchanged()
    pod = _decode_pod(question.pod)
    gates = pod.spec.scheduling_gates or ()
    if not _is_meant(pod) or any(gate.name == GATE_ADMISSION for gate in gates):
        return question.unchanged()
    path = "/spec/schedulingGates"
    if gates:
        return question.changed({"op": "add", "path": f"{path}/-", "value": _GATE})
    return question.changed({"op": "add", "path": path, "value": [_GATE]})


def _is_meant(pod: _Pod) -> bool:
    """Return whether a pod requests GPU memory or is of a gang, and is to be scheduled.

    A pod that is created with a node, such as the mirror of a static pod, cannot have a gate. Pods
    of DaemonSets belong to their nodes.
    """
    if pod.spec.node_name or _is_of_a_daemon_set(pod):
        return False
    return _asks_for_memory(pod.spec) or _is_of_a_gang(pod)


def _is_of_a_daemon_set(pod: _Pod) -> bool:
    """Return whether a DaemonSet controls a pod of which a required term names nodes.

    The DaemonSet controller gives each pod its node as required affinity, in every term
    (pkg/controller/daemon/util/daemonset_util.go, ReplaceDaemonSetPodNodeNameNodeAffinity).
    """
    affinity = (pod.spec.affinity or _Affinity()).node_affinity or _NodeAffinity()
    required = affinity.required_during_scheduling_ignored_during_execution or _Terms()
    terms = required.node_selector_terms or ()
    return any(
        owner.controller and (owner.api_version, owner.kind) == ("apps/v1", "DaemonSet")
        for owner in pod.metadata.owner_references or ()
    ) and any(field.key == "metadata.name" for term in terms for field in term.match_fields or ())


def _asks_for_memory(spec: _Spec) -> bool:
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    return any(
        amounts.memory is not None for container in containers for amounts in container.amounts
    )


def _is_of_a_gang(pod: _Pod) -> bool:
    labels, notes = pod.metadata.labels or _Labels(), pod.metadata.annotations or _Annotations()
    group = pod.spec.scheduling_group or _Group()
    return bool(
        group.pod_group_name
        or labels.gang
        or labels.pod_group
        or labels.kueue_group
        or notes.kueue_group
    )
