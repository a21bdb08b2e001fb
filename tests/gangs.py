"""Pods of gangs and their PodGroups for tests, as the API server would send them."""

import json

import msgspec

from gpushare import contract
from gpushare.groups.model import Source
from gpushare.groups.pod_groups import PodGroupObject
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import SchedulingGate, SchedulingGroup
from tests import builders


def member(
    name: str,
    gang: str = "g",
    minimum: str | int | None = 2,
    *,
    source: Source = Source.LABELS,
    namespace: str = "default",
    units: int | None = 1,
    node: str = "",
    priority: int | None = None,
    gates: tuple[str, ...] = (),
    created: str = "2026-01-01T00:00:00Z",
    deleted: str | None = None,
    zone_key: str | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Pending",
    version: str = "1",
) -> Pod:
    """A pod of a gang; ``minimum`` is what LABELS and KUEUE state, None for nothing."""
    words, notes = dict(labels or {}), dict(annotations or {})
    if source is Source.LABELS:
        words[contract.LABEL_GANG] = gang
        if minimum is not None:
            words[contract.LABEL_GANG_MINIMUM] = str(minimum)
    elif source is Source.POD_GROUP:
        words[contract.LABEL_POD_GROUP] = gang
    elif source is Source.KUEUE:
        words[contract.LABEL_KUEUE_GROUP] = gang
        if minimum is not None:
            notes[contract.ANNOTATION_KUEUE_COUNT] = str(minimum)
    if zone_key is not None:
        notes[contract.ANNOTATION_GANG_ZONE] = zone_key
    found = builders.pod(
        name,
        units,
        uid=f"{namespace}-{name}",
        node=node,
        phase=phase,
        labels=words,
        annotations=notes,
    )
    meta = msgspec.structs.replace(
        found.metadata,
        namespace=namespace,
        creation_timestamp=created,
        deletion_timestamp=deleted,
        resource_version=version,
    )
    spec = msgspec.structs.replace(
        found.spec,
        priority=priority,
        scheduling_gates=tuple(map(SchedulingGate, gates)) or None,
        scheduling_group=SchedulingGroup(gang) if source is Source.NATIVE else None,
    )
    return msgspec.structs.replace(found, metadata=meta, spec=spec)


def pod_group(
    name: str = "g", spec: object = None, *, namespace: str = "default", version: str = "1"
) -> PodGroupObject:
    """A PodGroup of any kind with this ``spec``."""
    body = {
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
        "spec": spec,
    }
    return msgspec.json.decode(json.dumps(body), type=PodGroupObject)
