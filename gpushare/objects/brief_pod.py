"""Decode of a pod only what it uses of its node, and whether it matters to gpushare (pure).

Most pods of a cluster request no GPU memory, but kube-scheduler gives them the same CPU and memory.
"""

from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from gpushare.contract import (
    ANNOTATION_KUEUE_GROUP,
    GATE_ADMISSION,
    LABEL_GANG,
    LABEL_KUEUE_GROUP,
    LABEL_POD_GROUP,
)
from gpushare.objects.model import (
    ActualResources,
    Container,
    ContainerStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Resizable,
    Resources,
)
from gpushare.objects.pod_reader import resources_reader
from gpushare.objects.scheduling import SchedulingGroup

_ABSENT: Final = msgspec.Raw(b"null")
_GATE_IN_JSON: Final = f'"{GATE_ADMISSION}"'.encode()


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    restart_policy: str | None = None
    resources: msgspec.Raw = _ABSENT


class _Labels(msgspec.Struct, gc=False):
    gang: str | None = msgspec.field(name=LABEL_GANG, default=None)
    pod_group: str | None = msgspec.field(name=LABEL_POD_GROUP, default=None)
    kueue_group: str | None = msgspec.field(name=LABEL_KUEUE_GROUP, default=None)


class _Annotations(msgspec.Struct, gc=False):
    kueue_group: str | None = msgspec.field(name=ANNOTATION_KUEUE_GROUP, default=None)


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    uid: str = ""
    resource_version: str = ""
    labels: _Labels | None = None
    annotations: _Annotations | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    overhead: msgspec.Raw = _ABSENT
    resources: msgspec.Raw = _ABSENT
    resource_claims: msgspec.Raw = _ABSENT
    scheduling_gates: msgspec.Raw = _ABSENT
    scheduling_group: SchedulingGroup | None = None


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    reason: str | None = None


class _ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resources: msgspec.Raw = _ABSENT
    allocated_resources: msgspec.Raw = _ABSENT


class _Status(msgspec.Struct, rename="camel", gc=False):
    phase: str | None = None
    conditions: tuple[_Condition, ...] | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None
    resources: msgspec.Raw = _ABSENT
    allocated_resources: msgspec.Raw = _ABSENT


class BriefPod(msgspec.Struct, gc=False):
    """Amounts are not decoded yet."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def may_be_member(self) -> bool:
        """Return whether it names a group of pods or has our gate."""
        labels, notes, spec = self.metadata.labels, self.metadata.annotations, self.spec
        return bool(
            (labels and (labels.gang or labels.pod_group or labels.kueue_group))
            or (notes and notes.kueue_group)
            or (spec.scheduling_group and spec.scheduling_group.pod_group_name)
            or _GATE_IN_JSON in bytes(spec.scheduling_gates)
        )

    @property
    def has_claims(self) -> bool:
        """Return whether it has resource claims."""
        return len(self.spec.resource_claims) > len(bytes(_ABSENT))

    @property
    def amounts(self) -> Hashable:
        """Return what its requests follow from: pods with equal amounts request the same."""
        spec, status = self.spec, self.status
        return (
            _of_containers(spec.containers),
            _of_containers(spec.init_containers),
            bytes(spec.overhead),
            bytes(spec.resources),
            _of_statuses(status.container_statuses),
            _of_statuses(status.init_container_statuses),
            bytes(status.resources),
            bytes(status.allocated_resources),
            _reasons(status.conditions),
        )

    @property
    def pod(self) -> Pod:
        """Return a pod with its amounts and its uid alone.

        It requests the same as the pod that ``read_pod`` returns, with any number of containers.
        Raises one of UNDECODABLE.
        """
        return Pod(ObjectMeta(uid=self.metadata.uid), _spec(self.spec), _status(self.status))


read_brief: Final = msgspec.json.Decoder(BriefPod).decode
_decode_amounts: Final = msgspec.json.Decoder(dict[str, str | int] | None).decode
_decode_resources: Final = msgspec.json.Decoder(Resources | None).decode
_decode_actual: Final = msgspec.json.Decoder(ActualResources | None).decode
_decode_resizable: Final = msgspec.json.Decoder(Resizable | None).decode


def _of_containers(found: Sequence[_Container] | None) -> Hashable:
    return tuple([(each.name, each.restart_policy, bytes(each.resources)) for each in found or ()])


def _of_statuses(found: Sequence[_ContainerStatus] | None) -> Hashable:
    return tuple(
        [
            (each.name, bytes(each.resources), bytes(each.allocated_resources))
            for each in found or ()
        ]
    )


def _reasons(found: Sequence[_Condition] | None) -> tuple[tuple[str, str], ...]:
    """Return conditions with a reason: that a resize is not possible is one of them."""
    return tuple([(each.type, each.reason) for each in found or () if each.reason])


def _spec(spec: _Spec) -> PodSpec:
    apps, inits = spec.containers or (), spec.init_containers or ()
    size = sum(len(each.resources) for each in (*apps, *inits))
    resources = resources_reader(size)
    containers, init_containers = (
        tuple(
            Container(each.name, resources(each.resources), each.restart_policy) for each in found
        )
        for found in (apps, inits)
    )
    return PodSpec(
        containers=containers,
        init_containers=init_containers,
        overhead=_decode_amounts(spec.overhead),
        resources=_decode_resources(spec.resources),
    )


def _status(status: _Status) -> PodStatus:
    apps, inits = (
        tuple(
            ContainerStatus(
                each.name,
                resources=_decode_actual(each.resources),
                allocated_resources=_decode_resizable(each.allocated_resources),
            )
            for each in found or ()
        )
        for found in (status.container_statuses, status.init_container_statuses)
    )
    return PodStatus(
        conditions=tuple(
            PodCondition(kind, reason=reason) for kind, reason in _reasons(status.conditions)
        ),
        container_statuses=apps,
        init_container_statuses=inits,
        resources=_decode_actual(status.resources),
        allocated_resources=_decode_resizable(status.allocated_resources),
    )
