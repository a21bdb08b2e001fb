"""Typed Kubernetes objects: only the fields that gpushare reads.

msgspec skips every other field without building objects for it, which makes a list of 10,000
pods about 80 times cheaper to decode than the client library's models. Absent and null mean the
same on this wire, hence the many ``| None``; the properties hide that.
"""

from typing import Final

import msgspec

from gpushare.contract import (
    CDI_ANNOTATIONS,
    CDI_OF_CARDS,
    RESOURCE_MEMORY,
)
from gpushare.objects.scheduling import (
    Affinity,
    Present,
    SchedulingGate,
    SpreadConstraint,
    Taint,
    Toleration,
)

TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


class OwnerReference(msgspec.Struct, gc=False, frozen=True):
    controller: bool | None = None
    kind: str = ""
    name: str = ""
    uid: str = ""


class ObjectMeta(msgspec.Struct, rename="camel", gc=False, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class Resources(msgspec.Struct, gc=False, frozen=True):
    limits: dict[str, str | int] | None = None
    requests: dict[str, str | int] | None = None


class EnvVar(msgspec.Struct, gc=False, frozen=True):
    """A container's variable. Values may be long and secret: whoever keeps a pod drops them."""

    name: str = ""
    value: str | None = None


class Container(msgspec.Struct, rename="camel", gc=False, frozen=True):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    env: tuple[EnvVar, ...] | None = None

    @property
    def limits(self) -> dict[str, str | int]:
        return (self.resources and self.resources.limits) or {}

    @property
    def requests(self) -> dict[str, str | int]:
        return (self.resources and self.resources.requests) or {}

    @property
    def is_sidecar(self) -> bool:
        """An init container that keeps running beside the others (KEP-753)."""
        return self.restart_policy == "Always"


class PodSpec(msgspec.Struct, rename="camel", gc=False, frozen=True):
    node_name: str | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    overhead: dict[str, str | int] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[SpreadConstraint, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    runtime_class_name: str | None = None


class PodCondition(msgspec.Struct, gc=False, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Terminated(msgspec.Struct, rename="camel", gc=False, frozen=True):
    started_at: str | None = None


class ContainerState(msgspec.Struct, gc=False, frozen=True):
    running: Present | None = None
    terminated: Terminated | None = None

    @property
    def has_run(self) -> bool:
        """Whether this is the state of a container that runs or has run.

        One that containerd made and could not start has ended in 1970 by its status, because the
        kubelet writes the runtime's nanoseconds (pkg/kubelet/kuberuntime), and those are 0.
        """
        ended = self.terminated
        return self.running is not None or bool(ended and (ended.started_at or "") > "1971")


class ContainerStatus(msgspec.Struct, rename="camel", gc=False, frozen=True):
    name: str = ""
    container_id: str | None = msgspec.field(name="containerID", default=None)
    state: ContainerState | None = None
    last_state: ContainerState | None = None

    @property
    def has_run(self) -> bool:
        """Whether it runs, or has run the last time, as far as the kubelet has said."""
        return any(state is not None and state.has_run for state in (self.state, self.last_state))


class PodStatus(msgspec.Struct, rename="camel", gc=False, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(msgspec.Struct, gc=False, frozen=True):
    """``excess`` says which parts are larger than is read; it is on no pod of the API server's."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    excess: str = msgspec.field(name="gpushare.aliyun.com/excess", default="")

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def node(self) -> str:
        """The node that the pod is bound to, or an empty string."""
        return self.spec.node_name or ""

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def containers(self) -> tuple[Container, ...]:
        return self.spec.containers or ()

    @property
    def init_containers(self) -> tuple[Container, ...]:
        return self.spec.init_containers or ()

    @property
    def statuses(self) -> tuple[ContainerStatus, ...]:
        """What the kubelet says of containers, those for the start first."""
        status = self.status
        return (*(status.init_container_statuses or ()), *(status.container_statuses or ()))

    @property
    def runs(self) -> bool:
        """A container of it runs now, as far as the kubelet has said."""
        return any(each.state and each.state.running is not None for each in self.statuses)

    @property
    def has_started(self) -> bool:
        """A container of it has run at some time, as far as the kubelet has said."""
        return any(each.container_id for each in self.statuses)

    def condition(self, kind: str) -> PodCondition | None:
        return next((each for each in self.status.conditions or () if each.type == kind), None)

    @property
    def has_controller(self) -> bool:
        """Something makes another pod once this one is gone."""
        return any(owner.controller for owner in self.metadata.owner_references or ())

    @property
    def priority(self) -> int:
        """What preemption compares; admission sets it from the pod's priority class."""
        return self.spec.priority or 0

    @property
    def is_terminal(self) -> bool:
        """All containers have ended for good; a deletion timestamp alone does not say that."""
        return self.status.phase in TERMINAL_PHASES


class NodeSystemInfo(msgspec.Struct, rename="camel", gc=False, frozen=True):
    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeCondition(msgspec.Struct, gc=False, frozen=True):
    type: str = ""
    status: str = ""


class NodeSpec(msgspec.Struct, gc=False, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class NodeStatus(msgspec.Struct, rename="camel", gc=False, frozen=True):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    node_info: NodeSystemInfo | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(msgspec.Struct, gc=False, frozen=True):
    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()
    spec: NodeSpec = NodeSpec()

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.spec.taints or ()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def capacity(self) -> dict[str, str | int]:
        return self.status.capacity or {}

    @property
    def allocatable(self) -> dict[str, str | int]:
        return self.status.allocatable or {}


def names_memory(container: Container) -> bool:
    """Whether a container mentions ``aliyun.com/gpu-mem``, with whatever amount."""
    return RESOURCE_MEMORY in container.limits or RESOURCE_MEMORY in container.requests


def kind_opened_by(key: str, value: str) -> str:
    """What in a pod's annotation names CDI devices that open cards; empty if it names none."""
    if not key.startswith(CDI_ANNOTATIONS):
        return ""
    return next((kind for kind in CDI_OF_CARDS if kind in value), "")
