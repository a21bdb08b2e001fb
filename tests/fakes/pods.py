"""Pods as the kubelet's /pods and the API server show them, for tests of the plugin."""

import itertools
from typing import Any

import msgspec

from deviceplugin.kubelet.node_pod import NodePod
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    RESOURCE_MEMORY,
)
from gpushare.objects.model import (
    Container,
    ContainerState,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from gpushare.objects.pod_reader import read_pod
from gpushare.objects.scheduling import Present

NODE = "node-1"
RUNNING = ContainerState(running=Present())
_uids = itertools.count(1)


def pod(
    name: str,
    units: int | list[int] = 10,
    *,
    cards: tuple[str, ...] = (),
    init: list[int] | None = None,
    seen: str = "",
    created: str = "2026-11-21T10:00:00Z",
    assume_time: int = 0,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    deleted: str | None = None,
    started: bool = False,
    uid: str = "",
    resource_version: str = "1",
    runtime_class: str | None = None,
    others: tuple[Container, ...] = (),
) -> NodePod:
    """Return a bound pod; without ``cards`` it has no decision.

    ``others`` are containers in addition to those that ask for ``units``.
    """
    written = dict(annotations or {})
    if cards:
        written |= {
            ANNOTATION_INDEX: ",".join("0" for _ in cards),
            ANNOTATION_CARDS: ",".join(cards),
            ANNOTATION_ASSIGNED: "false",
        }
    if assume_time:
        written[ANNOTATION_ASSUME_TIME] = str(assume_time)
    if seen:
        written["kubernetes.io/config.seen"] = seen
    amounts = units if isinstance(units, list) else [units]
    containers = tuple(container(f"app-{n}", amount) for n, amount in enumerate(amounts))
    made = Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=uid or f"uid-{next(_uids)}-{name}",
            resource_version=resource_version,
            creation_timestamp=created,
            deletion_timestamp=deleted,
            annotations=written,
            labels=labels,
        ),
        spec=PodSpec(
            node_name=NODE,
            containers=(*containers, *others),
            runtime_class_name=runtime_class,
            init_containers=tuple(
                container(f"init-{n}", amount) for n, amount in enumerate(init or [])
            ),
        ),
        status=PodStatus(phase="Pending"),
    )
    owner = NodePod.of(made)
    return as_running(owner) if started else owner


def as_running(owner: NodePod) -> NodePod:
    """Return the pod with all its containers running."""
    status = PodStatus(
        phase="Running",
        start_time="2026-11-21T10:00:01Z",
        container_statuses=tuple(
            ContainerStatus(c.name, f"x://{c.name}", RUNNING) for c in owner.containers
        ),
    )
    return msgspec.structs.replace(owner, status=status)


def container(name: str, units: int) -> Container:
    limits = {RESOURCE_MEMORY: str(units)} if units else None
    return Container(name=name, resources=Resources(limits=limits))


def too_large(name: str, units: int | list[int] = 1, **more: Any) -> NodePod:
    """Return a pod with more containers than are read, as the plugin reads it from JSON."""
    others = tuple(container(f"other-{n}", 0) for n in range(256))
    return NodePod.of(read_pod(msgspec.json.encode(pod(name, units, others=others, **more))))
