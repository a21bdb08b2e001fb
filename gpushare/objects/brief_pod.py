"""Decode of a pod only what it uses of its node, and whether it matters to gpushare (pure).

Most pods of a cluster request no GPU memory, but kube-scheduler gives them the same CPU and memory.
"""

from typing import Final

import msgspec

from gpushare.contract import GATE_ADMISSION
from gpushare.objects.model import (
    ActualResources,
    Container,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Resizable,
    Resources,
)
from gpushare.objects.pod_reader import LABELS, LabelWords, by_key, resources_reader
from gpushare.objects.scheduling import SchedulingGate, SchedulingGroup

_ABSENT: Final = msgspec.Raw(b"null")
_GATE: Final = SchedulingGate(GATE_ADMISSION)
_GATE_IN_JSON: Final = f'"{GATE_ADMISSION}"'.encode()


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    restart_policy: str | None = None
    resources: msgspec.Raw = _ABSENT


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: LabelWords | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, str | int] | None = None
    resources: Resources | None = None
    scheduling_gates: msgspec.Raw = _ABSENT
    scheduling_group: SchedulingGroup | None = None


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    reason: str | None = None


class _ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resources: ActualResources | None = None
    allocated_resources: Resizable | None = None


class _Status(msgspec.Struct, rename="camel", gc=False):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    resources: ActualResources | None = None
    allocated_resources: Resizable | None = None


class _Brief(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decode: Final = msgspec.json.Decoder(_Brief).decode


def read_brief(body: bytes | memoryview | msgspec.Raw) -> Pod:
    """Return a pod with what it uses, its labels that gpushare reads, its group and our gate only.

    It requests the same as the pod that ``read_pod`` returns, whatever its size. Raises one of
    UNDECODABLE.
    """
    found = _decode(body)
    meta, spec, status = found.metadata, found.spec, found.status
    return Pod(
        ObjectMeta(
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            labels=by_key(meta.labels, LABELS),
        ),
        _spec(spec),
        PodStatus(
            phase=status.phase,
            conditions=_conditions(status.conditions),
            container_statuses=_statuses(status.container_statuses),
            init_container_statuses=_statuses(status.init_container_statuses),
            resources=status.resources,
            allocated_resources=status.allocated_resources,
        ),
    )


def _spec(spec: _Spec) -> PodSpec:
    apps, inits = spec.containers or (), spec.init_containers or ()
    size = sum(len(each.resources) for each in apps) + sum(len(each.resources) for each in inits)
    resources = resources_reader(size)
    containers, init_containers = (
        tuple(
            Container(each.name, resources(each.resources), each.restart_policy) for each in found
        )
        for found in (apps, inits)
    )
    return PodSpec(
        spec.node_name,
        containers,
        init_containers,
        overhead=spec.overhead,
        resources=spec.resources,
        scheduling_gates=(_GATE,) if _GATE_IN_JSON in bytes(spec.scheduling_gates) else None,
        scheduling_group=spec.scheduling_group,
    )


def _conditions(found: list[_Condition] | None) -> tuple[PodCondition, ...]:
    """Return those with a reason: that a change of resources is not possible is one of them."""
    return tuple(PodCondition(each.type, reason=each.reason) for each in found or () if each.reason)


def _statuses(found: list[_ContainerStatus] | None) -> tuple[ContainerStatus, ...]:
    return tuple(
        ContainerStatus(
            each.name, resources=each.resources, allocated_resources=each.allocated_resources
        )
        for each in found or ()
        if each.resources is not None or each.allocated_resources is not None
    )
