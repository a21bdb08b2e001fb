"""Typed parts of pods and nodes that restrict where kube-scheduler may place a pod.

Of rules that gpushare does not evaluate (affinity between pods, volumes, ports of the host), only
their presence is read.
"""

from typing import Final

import msgspec

LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
FIELD_NAME: Final = "metadata.name"  # the only field that matchFields knows, with In and NotIn
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_OF_FIELDS: Final = frozenset({"In", "NotIn"})
_OF_TOLERATIONS: Final = frozenset({None, "", "Equal", "Exists"})


class Requirement(msgspec.Struct, gc=False, frozen=True):
    """One entry of ``matchExpressions`` or ``matchFields``."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    @property
    def is_judged(self) -> bool:
        """Return whether the operator of a label is one that gpushare knows."""
        return self.operator in _OPERATORS

    @property
    def is_judged_field(self) -> bool:
        """Return whether the field and its operator are ones that gpushare knows."""
        return self.key == FIELD_NAME and self.operator in _OF_FIELDS


class NodeSelectorTerm(msgspec.Struct, rename="camel", gc=False, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None

    @property
    def is_judged(self) -> bool:
        return all(each.is_judged for each in self.match_expressions or ()) and all(
            each.is_judged_field for each in self.match_fields or ()
        )


class NodeSelector(msgspec.Struct, rename="camel", gc=False, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None

    @property
    def is_judged(self) -> bool:
        return all(term.is_judged for term in self.node_selector_terms or ())


class Present(msgspec.Struct, gc=False, frozen=True):
    """An object of which only the presence is read."""


def _at_scheduling(field: str) -> str:
    return f"{field}DuringSchedulingIgnoredDuringExecution"


class NodeAffinity(msgspec.Struct, rename=_at_scheduling, gc=False, frozen=True):
    required: NodeSelector | None = None
    preferred: tuple[Present, ...] | None = None


class PodAffinity(msgspec.Struct, rename=_at_scheduling, gc=False, frozen=True):
    required: tuple[Present, ...] | None = None
    preferred: tuple[Present, ...] | None = None


class Affinity(msgspec.Struct, rename="camel", gc=False, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(msgspec.Struct, gc=False, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None

    @property
    def is_judged(self) -> bool:
        """Return whether gpushare knows the operator: not the ones of KEP-5471, Gt and Lt."""
        return self.operator in _OF_TOLERATIONS


# Effects of taints.
SOFT: Final = "PreferNoSchedule"
REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})


class Taint(msgspec.Struct, gc=False, frozen=True):
    key: str = ""
    effect: str = ""
    value: str | None = None


class SpreadConstraint(msgspec.Struct, rename="camel", gc=False, frozen=True):
    when_unsatisfiable: str = ""

    @property
    def required(self) -> bool:
        """Return whether a node that would make the spread less even is rejected."""
        return self.when_unsatisfiable != "ScheduleAnyway"


class ContainerPort(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """A port of a container; ``host_port`` is a port of the node, which one pod at a time has."""

    host_port: int | None = None


class Volume(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """The kinds of volumes because of which kube-scheduler may reject a node.

    They are those that its plugins VolumeBinding, VolumeZone, VolumeRestrictions and
    NodeVolumeLimits examine.
    """

    persistent_volume_claim: Present | None = None
    ephemeral: Present | None = None
    aws_elastic_block_store: Present | None = None
    azure_disk: Present | None = None
    azure_file: Present | None = None
    cinder: Present | None = None
    gce_persistent_disk: Present | None = None
    iscsi: Present | None = None
    portworx_volume: Present | None = None
    rbd: Present | None = None
    vsphere_volume: Present | None = None

    @property
    def restricts(self) -> bool:
        """Return whether kube-scheduler may reject a node because of this volume."""
        return self != _ANYWHERE


_ANYWHERE: Final = Volume()


class SchedulingGroup(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """Names a PodGroup of scheduling.k8s.io in the namespace of the pod."""

    pod_group_name: str | None = None


class SchedulingGate(msgspec.Struct, gc=False, frozen=True):
    name: str = ""
