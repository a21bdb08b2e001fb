"""Decode a pod of any size within bounds of memory and time (pure).

Any user who may create pods decides how many labels, variables or tolerations they have. The API
server accepts 1.5 MiB, which is up to 9 MiB of JSON, because it writes ``<`` as six bytes. Parts
that gpushare does not use are dropped. Parts that are too large are not decoded, and too many
containers are summed up: the pod then has ``excess``, and is rejected. The share of a bound pod is
read regardless.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from gpushare import contract
from gpushare.cards.placement_policy import MOST_CHARACTERS as MOST_POLICY
from gpushare.contract import (
    CDI_ANNOTATIONS,
    ENV_FRAMEWORKS,
    ENV_MEMORY_LIMIT,
    ENV_MEMORY_LIMITS,
    ENV_VISIBLE_DEVICES,
    HIDES_CARDS,
    NO_CARD,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.objects.many_containers import (
    ENDED,
    MOST_CONTAINERS,
    PRESENT,
    RUNS,
    TOO_MANY,
    has_too_many,
    sum_up,
)
from gpushare.objects.model import (
    ActualResources,
    Container,
    ContainerState,
    ContainerStatus,
    EnvVar,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Resizable,
    Resources,
    kind_opened_by,
)
from gpushare.objects.scheduling import (
    Affinity,
    ContainerPort,
    Present,
    SchedulingGate,
    SchedulingGroup,
    SpreadConstraint,
    Toleration,
    Volume,
)

MOST_AT_ONCE: Final = 16 * 1024  # bytes of JSON that are decoded in one step
MOST_PARTS_BYTES: Final = 16 * 1024  # of JSON, of affinity, selector and the like together
MOST_RESOURCES_BYTES: Final = 16 * 1024  # of JSON, of all containers of a larger pod
MOST_ENV_BYTES: Final = 64 * 1024  # of JSON, of all containers of a larger pod
MOST_TOLERATIONS: Final = 128
MOST_CONDITIONS: Final = 32
MOST_MESSAGE: Final = 4 * 1024  # characters of a condition's message, and of the status's own
MOST_VALUE: Final = 4 * 1024  # characters of an annotation
MOST_ID: Final = 128  # characters of a container's ID; runtimes use 64 and their name
MOST_RUNNING_ON: Final = 16 * 1024
MOST_EVICTING: Final = 16 * 1024

# The annotations that are read, with the limit on their characters. One more character is kept, to
# show that the limit is exceeded.
ANNOTATIONS: Final = {
    contract.ANNOTATION_NODE_POLICY: MOST_VALUE,
    contract.ANNOTATION_CARD_POLICY: MOST_VALUE,
    contract.ANNOTATION_CARD_MODELS: MOST_POLICY,
    contract.ANNOTATION_CARDS_ONLY: MOST_POLICY,
    contract.ANNOTATION_CARDS_NOT: MOST_POLICY,
    contract.ANNOTATION_ISOLATION: MOST_VALUE,
    contract.ANNOTATION_INDEX: MOST_VALUE,
    contract.ANNOTATION_CARDS: MOST_VALUE,
    contract.ANNOTATION_GANG: MOST_VALUE,
    contract.ANNOTATION_CARD_UNITS: MOST_VALUE,
    contract.ANNOTATION_ASSUME_TIME: MOST_VALUE,
    contract.ANNOTATION_ASSIGNED: MOST_VALUE,
    contract.ANNOTATION_RUNNING_ON: MOST_RUNNING_ON,
    contract.ANNOTATION_SEEN: MOST_VALUE,
    contract.ANNOTATION_MIRROR: 0,
    contract.ANNOTATION_KUEUE_GROUP: MOST_VALUE,
    contract.ANNOTATION_KUEUE_COUNT: MOST_VALUE,
    contract.ANNOTATION_KUEUE_SERVING: MOST_VALUE,
    contract.ANNOTATION_GANG_ZONE: MOST_VALUE,
    contract.ANNOTATION_SLOT: MOST_VALUE,
    contract.ANNOTATION_EVICTING: MOST_EVICTING,
}
LABELS: Final = dict.fromkeys(
    (
        contract.LABEL_CARD_COUNT,
        contract.LABEL_GANG,
        contract.LABEL_GANG_MINIMUM,
        contract.LABEL_POD_GROUP,
        contract.LABEL_KUEUE_GROUP,
        contract.LABEL_JOB_INDEX,
        contract.LABEL_POD_INDEX,
        contract.LABEL_WORKER_INDEX,
        contract.LABEL_WORKER_GROUP,
        contract.LABEL_REPLICA_INDEX,
        contract.LABEL_JOB_ROLE,
        contract.LABEL_TEMPLATE_HASH,
        contract.LABEL_PREEMPTIBLE,
        contract.LABEL_PLACEHOLDER,
    ),
    MOST_VALUE,
)

T = TypeVar("T")
_NULL: Final = b"null"
_EMPTY: Final = b"{}"
_ABSENT: Final = msgspec.Raw(_NULL)
_SETS_LIMITS: Final = (EnvVar(ENV_MEMORY_LIMIT),)
_SETS_FRAMEWORKS: Final = tuple(EnvVar(name) for name in ENV_FRAMEWORKS)
_SETS_CARDS: Final = (EnvVar(ENV_VISIBLE_DEVICES),)
_HIDES_CARDS: Final = (EnvVar(ENV_VISIBLE_DEVICES, NO_CARD),)
# Of parts of which only the presence counts.
_ENV_FROM: Final = (Present(),)
_HOST_PORT: Final = (ContainerPort(1),)
_VOLUME: Final = (Volume(persistent_volume_claim=Present()),)
_CLAIM: Final = (Present(),)
# A string cannot contain them: quotes in it are escaped.
_NAMES_HOST_PORT: Final = b'"hostPort":'
_NAMES_OF_VOLUMES: Final = tuple(
    f'"{field.encode_name}":'.encode() for field in msgspec.structs.fields(Volume)
)


def _words(name: str, keys: Sequence[str]) -> type[msgspec.Struct]:
    """Return a type that has only the values of these keys; all other keys are skipped."""
    fields: list[Any] = [
        (f"key_{place}", str | None, msgspec.field(name=key, default=None))
        for place, key in enumerate(keys)
    ]
    return msgspec.defstruct(name, fields)


_Annotations: Final[Any] = _words("_Annotations", list(ANNOTATIONS))
_Labels: Final[Any] = _words("_Labels", list(LABELS))
_decode_annotations: Final = msgspec.json.Decoder(_Annotations).decode
_decode_words: Final = msgspec.json.Decoder(dict[str, str]).decode


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    restart_policy: str | None = None
    resources: msgspec.Raw = _ABSENT
    env: msgspec.Raw = _ABSENT
    env_from: msgspec.Raw = _ABSENT
    ports: msgspec.Raw = _ABSENT


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    annotations: msgspec.Raw = _ABSENT
    labels: _Labels | None = None
    owner_references: msgspec.Raw = _ABSENT


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    overhead: msgspec.Raw = _ABSENT
    node_selector: msgspec.Raw = _ABSENT
    affinity: msgspec.Raw = _ABSENT
    tolerations: msgspec.Raw = _ABSENT
    topology_spread_constraints: msgspec.Raw = _ABSENT
    scheduling_gates: msgspec.Raw = _ABSENT
    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    scheduling_group: SchedulingGroup | None = None
    volumes: msgspec.Raw = _ABSENT
    resource_claims: msgspec.Raw = _ABSENT
    resources: msgspec.Raw = _ABSENT
    termination_grace_period_seconds: int | None = None


class UndecodedPod(msgspec.Struct):
    """A pod whose larger parts are not decoded yet. Users cannot write the status."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: PodStatus = PodStatus()


# Resources that are read of pods with more than MOST_RESOURCES_BYTES, because any may request them.
_COMMON: Final = (RESOURCE_MEMORY, RESOURCE_COUNT, "cpu", "memory", "ephemeral-storage")


class _CommonAmounts(msgspec.Struct):
    memory: str | int | None = msgspec.field(name=_COMMON[0], default=None)
    count: str | int | None = msgspec.field(name=_COMMON[1], default=None)
    cpu: str | int | None = msgspec.field(name=_COMMON[2], default=None)
    bytes: str | int | None = msgspec.field(name=_COMMON[3], default=None)
    storage: str | int | None = msgspec.field(name=_COMMON[4], default=None)


class _CommonResources(msgspec.Struct):
    limits: _CommonAmounts | None = None
    requests: _CommonAmounts | None = None


_decode_pod: Final = msgspec.json.Decoder(Pod).decode
_decode_parts: Final = msgspec.json.Decoder(UndecodedPod).decode
_decode_env: Final = msgspec.json.Decoder(tuple[EnvVar, ...] | None).decode
_decode_resources: Final = msgspec.json.Decoder(Resources | None).decode
_decode_common: Final = msgspec.json.Decoder(_CommonResources | None).decode


def read_pod(body: bytes | memoryview | msgspec.Raw, *, keeps_ids: bool = False) -> Pod:
    """Return the pod in a JSON object, with the parts that gpushare reads.

    ``keeps_ids``: with its containers' IDs, which differ between pods that are otherwise equal.

    Raises one of UNDECODABLE.
    """
    if len(body) > MOST_AT_ONCE:
        return pod_of(_decode_parts(body), keeps_ids=keeps_ids)
    pod = _decode_pod(body)
    _drop_what_is_not_read(pod, keeps_ids=keeps_ids)
    return pod


def pod_of(parts: UndecodedPod, *, keeps_ids: bool = False) -> Pod:
    """Assemble a pod from its parts, as ``read_pod`` returns it."""
    meta, spec = parts.metadata, parts.spec
    excess: list[str] = []
    left = MOST_PARTS_BYTES

    def part(raw: msgspec.Raw, kind: type[T], name: str) -> T | None:
        nonlocal left
        if len(raw) == len(_NULL) and bytes(raw) == _NULL:
            return None
        if len(raw) > left:
            excess.append(f"{name} has {len(raw)} bytes: use at most {left}")
            return None
        left -= len(raw)
        return msgspec.json.decode(raw, type=kind)

    apps, inits = spec.containers or (), spec.init_containers or ()
    size = sum(len(each.resources) for each in (*apps, *inits))
    are_many = max(len(apps), len(inits)) > MOST_CONTAINERS
    containers = _amounts_only if are_many else _containers
    resources = resources_reader(size)
    if size > MOST_RESOURCES_BYTES:
        excess.append(
            f"containers have {size} bytes of resources: use at most {MOST_RESOURCES_BYTES}"
        )
    metadata = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        deletion_grace_period_seconds=meta.deletion_grace_period_seconds,
        annotations=_annotations(meta.annotations),
        labels=_by_key(meta.labels, LABELS),
        owner_references=part(
            meta.owner_references, tuple[OwnerReference, ...], "metadata.ownerReferences"
        ),
    )
    pod_spec = PodSpec(
        node_name=spec.node_name,
        containers=containers(spec.containers, resources),
        init_containers=containers(spec.init_containers, resources),
        priority=spec.priority,
        preemption_policy=spec.preemption_policy,
        overhead=part(spec.overhead, dict[str, str | int], "spec.overhead"),
        node_selector=part(spec.node_selector, dict[str, str], "spec.nodeSelector"),
        affinity=part(spec.affinity, Affinity, "spec.affinity"),
        tolerations=part(spec.tolerations, tuple[Toleration, ...], "spec.tolerations"),
        topology_spread_constraints=part(
            spec.topology_spread_constraints,
            tuple[SpreadConstraint, ...],
            "spec.topologySpreadConstraints",
        ),
        scheduling_gates=part(
            spec.scheduling_gates, tuple[SchedulingGate, ...], "spec.schedulingGates"
        ),
        runtime_class_name=spec.runtime_class_name,
        scheduler_name=spec.scheduler_name,
        scheduling_group=spec.scheduling_group,
        volumes=_VOLUME if _names_any(spec.volumes, _NAMES_OF_VOLUMES) else None,
        resource_claims=_CLAIM if len(spec.resource_claims) > len(_NULL) else None,
        resources=part(spec.resources, Resources, "spec.resources"),
        termination_grace_period_seconds=spec.termination_grace_period_seconds,
    )
    why = TOO_MANY if are_many else excess[0] if excess else ""
    pod = Pod(metadata, pod_spec, parts.status, why)
    _drop_what_is_not_read(pod, keeps_ids=keeps_ids)
    return pod


def _annotations(raw: msgspec.Raw) -> dict[str, str] | None:
    if bytes(raw) == _NULL:
        return None
    found = _by_key(_decode_annotations(raw), ANNOTATIONS) or {}
    if CDI_ANNOTATIONS[0].encode() in bytes(raw):  # the other key ends with it
        found |= _opening(_decode_words(raw))
    return found


def _opening(words: dict[str, str]) -> dict[str, str]:
    """Return one annotation that adds cards, if there is any, cut to the kind of device."""
    for key, value in words.items():
        kind = kind_opened_by(key, value)
        if kind:
            return {key: kind}
    return {}


def _by_key(words: msgspec.Struct | None, keys: dict[str, int]) -> dict[str, str] | None:
    if words is None:
        return None
    values = zip(keys, msgspec.structs.astuple(words), strict=True)
    return {key: value for key, value in values if value is not None}


def _containers(
    found: list[_Container] | None, resources: Callable[[msgspec.Raw], Resources | None]
) -> tuple[Container, ...] | None:
    if found is None:
        return None
    env = _decode_env if sum(len(each.env) for each in found) <= MOST_ENV_BYTES else _env_in_short
    return tuple(
        Container(
            each.name,
            resources(each.resources),
            each.restart_policy,
            env(each.env),
            _HOST_PORT if _names_any(each.ports, (_NAMES_HOST_PORT,)) else None,
            _ENV_FROM if len(each.env_from) > len(_NULL) else None,
        )
        for each in found
    )


def _amounts_only(
    found: list[_Container] | None, resources: Callable[[msgspec.Raw], Resources | None]
) -> tuple[Container, ...] | None:
    """Return the containers that count in the sum of all, with what counts there."""
    return tuple(
        Container(each.name, resources(each.resources), each.restart_policy)
        for each in found or ()
        if len(each.resources) > len(_EMPTY)
    )


def _names_any(raw: msgspec.Raw, names: Sequence[bytes]) -> bool:
    text = bytes(raw)
    return any(name in text for name in names)


def _env_in_short(raw: msgspec.Raw) -> tuple[EnvVar, ...] | None:
    # The name may also be in a value: such a pod is rejected although it could be served.
    text = bytes(raw)
    cards = _SETS_CARDS if ENV_VISIBLE_DEVICES.encode() in text else ()
    limits = _SETS_LIMITS if any(name.encode() in text for name in ENV_MEMORY_LIMITS) else ()
    frameworks = [each for each in _SETS_FRAMEWORKS if each.name.encode() in text]
    return (*cards, *limits, *frameworks) or None


def resources_reader(size: int) -> Callable[[msgspec.Raw], Resources | None]:
    """Return what decodes the resources of containers that have ``size`` bytes of them in all.

    Of too many bytes only common resources are read: all others may be zeros without a meaning.
    """
    return _decode_resources if size <= MOST_RESOURCES_BYTES else _common_resources


def _common_resources(raw: msgspec.Raw) -> Resources | None:
    found = _decode_common(raw)
    return found and Resources(_amounts(found.limits), _amounts(found.requests))


def _amounts(found: _CommonAmounts | None) -> dict[str, str | int] | None:
    if found is None:
        return None
    amounts = zip(_COMMON, msgspec.structs.astuple(found), strict=True)
    return {name: amount for name, amount in amounts if amount is not None}


def _drop_what_is_not_read(pod: Pod, *, keeps_ids: bool) -> None:
    """Drop parts in place: nothing else references the pod yet."""
    _drop_metadata(pod.metadata)
    if has_too_many(pod):
        sum_up(pod)
    _drop_spec(pod)
    _drop_actual_resources(pod)
    _drop_status(pod.status, keeps_ids=keeps_ids)


def _drop_spec(pod: Pod) -> None:
    spec = pod.spec
    tolerations = spec.tolerations or ()
    if len(tolerations) > MOST_TOLERATIONS:
        found = f"spec.tolerations has {len(tolerations)} entries: use at most {MOST_TOLERATIONS}"
        force_setattr(pod, "excess", pod.excess or found)
        force_setattr(spec, "tolerations", None)
    for container in pod.all_containers:
        _drop_variables(container)
        _drop_ports(container)
    if spec.volumes is not None:
        is_restricted = any(volume.restricts for volume in spec.volumes)
        force_setattr(spec, "volumes", _VOLUME if is_restricted else None)
    if spec.resource_claims is not None:
        force_setattr(spec, "resource_claims", _CLAIM if spec.resource_claims else None)


def _drop_actual_resources(pod: Pod) -> None:
    """Drop the amounts in the status of containers that are not being resized."""
    statuses = [each for each in pod.statuses if each.resources or each.allocated_resources]
    if not statuses:
        return
    asked = {each.name: each.requests for each in pod.all_containers}
    for each in statuses:
        mine = asked.get(each.name, {})
        if _is_as_asked(each.resources, mine) and _is_as_asked(each.allocated_resources, mine):
            force_setattr(each, "resources", None)
            force_setattr(each, "allocated_resources", None)


def _is_as_asked(found: ActualResources | Resizable | None, asked: Mapping[str, str | int]) -> bool:
    if isinstance(found, ActualResources):
        found = found.requests
    return found is None or (
        found.cpu in {None, asked.get("cpu")} and found.memory in {None, asked.get("memory")}
    )


def _drop_status(status: PodStatus, *, keeps_ids: bool) -> None:
    """Keep of times and IDs, which differ between pods, only what is read of them."""
    if status.start_time:
        force_setattr(status, "start_time", PRESENT)
    if status.message and len(status.message) > MOST_MESSAGE:
        force_setattr(status, "message", status.message[:MOST_MESSAGE])
    if status.conditions:
        force_setattr(status, "conditions", tuple(map(_short, status.conditions[:MOST_CONDITIONS])))
    for name in ("container_statuses", "init_container_statuses"):
        statuses: tuple[ContainerStatus, ...] = getattr(status, name) or ()
        if len(statuses) > MOST_CONTAINERS:
            started = sorted(statuses, key=lambda each: not each.container_id)
            statuses = tuple(started[:MOST_CONTAINERS])
            force_setattr(status, name, statuses)
        for each in statuses:
            found = each.container_id
            kept = keeps_ids and found and len(found) <= MOST_ID
            force_setattr(each, "container_id", found if kept else PRESENT if found else None)
            force_setattr(each, "state", _short_state(each.state))
            force_setattr(each, "last_state", _short_state(each.last_state))


def _short_state(state: ContainerState | None) -> ContainerState | None:
    if state is None or not state.has_run:
        return None
    return ENDED if state.running is None else RUNS


def _drop_metadata(meta: ObjectMeta) -> None:
    if meta.annotations:
        opening = _opening(meta.annotations)
        force_setattr(meta, "annotations", _kept(meta.annotations, ANNOTATIONS) | opening)
    if meta.labels is not None:
        force_setattr(meta, "labels", _kept(meta.labels, LABELS) or None)
    owners = meta.owner_references or ()
    if len(owners) > 1:  # one may be the controller
        force_setattr(meta, "owner_references", tuple(o for o in owners if o.controller)[:1])


def _kept(words: dict[str, str], keys: dict[str, int]) -> dict[str, str]:
    return {key: words[key][: keys[key] + 1] for key in words if key in keys}


def _drop_variables(container: Container) -> None:
    if container.env:
        own = [each for each in container.env if each.name == ENV_VISIBLE_DEVICES]
        kept = _HIDES_CARDS if own and own[-1].value in HIDES_CARDS else _SETS_CARDS
        names = {each.name for each in container.env}
        limits = _SETS_LIMITS if not names.isdisjoint(ENV_MEMORY_LIMITS) else ()
        frameworks = [each for each in _SETS_FRAMEWORKS if each.name in names]
        found = (*(kept if own else ()), *limits, *frameworks)
        force_setattr(container, "env", found or None)
    if container.env_from is not None:
        force_setattr(container, "env_from", _ENV_FROM if container.env_from else None)


def _drop_ports(container: Container) -> None:
    if container.ports is not None:
        found = any(port.host_port for port in container.ports)
        force_setattr(container, "ports", _HOST_PORT if found else None)


def _short(condition: PodCondition) -> PodCondition:
    if condition.message and len(condition.message) > MOST_MESSAGE:
        return msgspec.structs.replace(condition, message=condition.message[:MOST_MESSAGE])
    return condition
