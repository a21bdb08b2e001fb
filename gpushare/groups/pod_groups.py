"""PodGroup objects as the API server sends them, of coscheduling and of Kubernetes itself.

A CustomResourceDefinition may have been changed, so that fields have any type: one object that
cannot be read must not keep others from being read.
"""

from typing import Final, TypeVar

import msgspec

from gpushare.errors import UNDECODABLE
from gpushare.groups.model import MOST_MEMBERS, GroupKey, PodGroup, Source

RESOURCE: Final = "podgroups"
# The API group, and its versions that gpushare reads, the preferred one first. Of scheduling.k8s.io
# Kubernetes 1.36 has v1alpha2, and 1.37 the other two. All are off by default.
API_GROUPS: Final = {
    Source.NATIVE: ("scheduling.k8s.io", ("v1beta1", "v1alpha3", "v1alpha2")),
    Source.POD_GROUP: ("scheduling.x-k8s.io", ("v1alpha1",)),
}

# kube-scheduler may wait ten seconds before it tries a member again; evicted pods come back.
LEAST_TIMEOUT_SECONDS: Final = 15
MOST_TIMEOUT_SECONDS: Final = 24 * 3600

T = TypeVar("T")
_ABSENT: Final = msgspec.Raw(b"null")


class PodGroupMeta(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class PodGroupObject(msgspec.Struct, frozen=True):
    """A PodGroup of any version; ``value_of`` reads its spec."""

    metadata: PodGroupMeta
    spec: msgspec.Raw = _ABSENT


class _CoschedulingSpec(msgspec.Struct, rename="camel", frozen=True):
    min_member: msgspec.Raw = _ABSENT
    schedule_timeout_seconds: msgspec.Raw = _ABSENT


class _Gang(msgspec.Struct, rename="camel", frozen=True):
    min_count: int


class _Policy(msgspec.Struct, frozen=True):
    basic: dict[str, msgspec.Raw] | None = None
    gang: _Gang | None = None


class _Topology(msgspec.Struct, frozen=True):
    key: str


class _Constraints(msgspec.Struct, frozen=True):
    topology: tuple[_Topology, ...] = ()


class _NativeSpec(msgspec.Struct, rename="camel", frozen=True):
    scheduling_policy: _Policy
    scheduling_constraints: _Constraints | None = None
    priority: int | None = None


def key_of_object(found: PodGroupObject, source: Source) -> GroupKey:
    """Return the gang of the pods that name a PodGroup."""
    return GroupKey(found.metadata.namespace, source, found.metadata.name)


def value_of(found: PodGroupObject, source: Source) -> PodGroup:
    """Return what a PodGroup says; without a minimum if that cannot be read."""
    key = key_of_object(found, source)
    if source is Source.NATIVE:
        return _native(key, found.spec)
    spec = _decoded(found.spec, _CoschedulingSpec) or _CoschedulingSpec()
    stated = _decoded(spec.schedule_timeout_seconds, int)
    timeout = None
    if stated is not None and stated > 0:
        timeout = min(max(stated, LEAST_TIMEOUT_SECONDS), MOST_TIMEOUT_SECONDS)
    return PodGroup(key, _minimum(_decoded(spec.min_member, int)), timeout_seconds=timeout)


def _native(key: GroupKey, raw: msgspec.Raw) -> PodGroup:
    spec = _decoded(raw, _NativeSpec)
    if spec is None:
        return PodGroup(key, None)
    policy, constraints = spec.scheduling_policy, spec.scheduling_constraints
    stated = policy.gang.min_count if policy.gang is not None else None
    if policy.basic is not None:
        stated = 1
    topology = constraints.topology if constraints is not None else ()
    return PodGroup(
        key,
        _minimum(stated),
        zone_key=topology[0].key if topology else "",
        priority=spec.priority,
    )


def _minimum(stated: int | None) -> int | None:
    return stated if stated is not None and 1 <= stated <= MOST_MEMBERS else None


def _decoded(raw: msgspec.Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE:
        return None
