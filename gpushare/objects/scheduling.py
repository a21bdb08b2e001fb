"""Typed parts of pods and nodes that restrict where kube-scheduler may place a pod.

Of rules that gpushare does not evaluate (affinity between pods), only their presence is read.
"""

import msgspec


class Requirement(msgspec.Struct, gc=False, frozen=True):
    """One ``matchExpressions`` entry: ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(msgspec.Struct, rename="camel", gc=False, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(msgspec.Struct, rename="camel", gc=False, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


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


class Taint(msgspec.Struct, gc=False, frozen=True):
    key: str = ""
    effect: str = ""
    value: str | None = None


class SpreadConstraint(msgspec.Struct, rename="camel", gc=False, frozen=True):
    when_unsatisfiable: str = ""


class SchedulingGate(msgspec.Struct, gc=False, frozen=True):
    name: str = ""
