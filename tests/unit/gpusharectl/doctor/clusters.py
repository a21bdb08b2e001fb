"""What the doctor knows of a cluster that is well: tests break one thing of it at a time."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    RESOURCE_MEMORY,
    SCHEDULER_NAMES,
)
from gpushare.objects.model import (
    Node,
    NodeStatus,
    NodeSystemInfo,
    ObjectMeta,
    OwnerReference,
    PodCondition,
    Resources,
)
from gpusharectl.doctor.checks.access import POLICIES, needed
from gpusharectl.doctor.checks.scheduler import plain
from gpusharectl.doctor.facts.cluster import (
    Facts,
    LeaderElection,
    Program,
    Quota,
    Scheduler,
    Unknown,
    Workload,
)
from gpusharectl.doctor.facts.seen import (
    SeenContainer,
    SeenContainerStatus,
    SeenPod,
    SeenSpec,
    SeenState,
    SeenStatus,
    Waiting,
)
from gpusharectl.reach.samples import Samples
from tests.builders import annotated, container
from tests.builders import node as bare_node

ROOT = Path(__file__).parents[4]
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
SYSTEM = "gpushare-system"
ASKED = 'gpushare_extender_requests_total{verb="filter",outcome="ok"} 3\n'
SCHEDULER_FILE = ROOT / "daemonset" / "scheduler" / "config.yaml"


def node(
    name: str = "n1", *units: int, is_shared: bool = True, kubelet: str = "v1.34.4", **more
) -> Node:
    """A node of ours, with its label and a kubelet of today."""
    units = units or (16, 16)
    made = bare_node(name, *units, **more)
    unhealthy = more.get("unhealthy", ())
    healthy = sum(each for place, each in enumerate(units) if place not in unhealthy)
    allocatable = {**made.capacity, RESOURCE_MEMORY: str(healthy)}
    status = NodeStatus(made.capacity, allocatable, NodeSystemInfo("containerd://2.1.4", kubelet))
    made = annotated(made, {}, labels={"gpushare": "true"} if is_shared else {})
    return msgspec.structs.replace(made, status=status)


def control_plane(name: str = "cp1") -> Node:
    labels = {"node-role.kubernetes.io/control-plane": ""}
    status = NodeStatus({}, {}, NodeSystemInfo("containerd://2.1.4", "v1.34.4"))
    return Node(ObjectMeta(name=name, labels=labels), status)


def pod(
    name: str,
    units: str | int | None = 4,
    *,
    namespace: str = "default",
    on: str | None = "n1",
    annotations: Mapping[str, str] | None = None,
    labels: dict[str, str] | None = None,
    conditions: tuple[PodCondition, ...] = (),
    scheduler: str = "default-scheduler",
) -> SeenPod:
    """A pod that runs where it was decided to, on card 0, unless told otherwise."""
    if annotations is None:
        annotations = {
            ANNOTATION_CARDS: "GPU-0",
            ANNOTATION_INDEX: "0",
            ANNOTATION_ASSIGNED: "true",
            ANNOTATION_ASSUME_TIME: str(int(NOW.timestamp() - 3600) * 10**9),
        }
        annotations = annotations if on and units is not None else {}
    return SeenPod(
        ObjectMeta(name, namespace, name, annotations=dict(annotations), labels=labels or {}),
        SeenSpec(on, (container("main", units),), scheduler_name=scheduler),
        SeenStatus("Running" if on else "Pending", conditions=conditions),
    )


def loaded(
    name: str, on: str | None, owner: str = "", *, gpu_mem: str = "", **amounts: str
) -> SeenPod:
    """A pod with these requests, and with an owner of this kind."""
    asked = {**amounts, **({RESOURCE_MEMORY: gpu_mem} if gpu_mem else {})}
    made = pod(name, gpu_mem or None, on=on)
    owners = (OwnerReference(kind=owner, name=owner),) if owner else None
    containers = (SeenContainer("main", Resources(dict(asked), dict(asked))),)
    return msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, owner_references=owners),
        spec=msgspec.structs.replace(made.spec, containers=containers),
    )


def own(
    program: str,
    on: str,
    *statuses: SeenContainerStatus,
    is_ready: bool | None = None,
    images: Mapping[str, str] | None = None,
) -> SeenPod:
    """A pod of ours, which is not ready if ``statuses`` are told; ``images`` by container."""
    is_ready = not statuses if is_ready is None else is_ready
    made = pod(
        f"{program}-{on}",
        None,
        namespace=SYSTEM,
        on=on,
        labels={"app.kubernetes.io/name": program},
        conditions=(PodCondition("Ready", "True" if is_ready else "False"),),
    )
    containers = tuple(SeenContainer(name, image=image) for name, image in (images or {}).items())
    spec = msgspec.structs.replace(made.spec, containers=containers)
    status = msgspec.structs.replace(made.status, container_statuses=statuses)
    return msgspec.structs.replace(made, spec=spec, status=status)


def waiting(
    reason: str, message: str = "", *, container: str = "main", last: SeenState | None = None
) -> SeenContainerStatus:
    """A container that waits, as the kubelet reports it."""
    state = SeenState(waiting=Waiting(reason, message))
    return SeenContainerStatus(container, image="gpushare:0.1.0", state=state, last_state=last)


def of_daemon_set(
    name: str, on: str, *containers: str, namespace: str = "gpu-operator", **labels: str
) -> SeenPod:
    """A pod of somebody's DaemonSet, with these containers."""
    made = pod(name, None, namespace=namespace, on=on, labels=labels)
    owner = OwnerReference(controller=True, kind="DaemonSet", name=name)
    metadata = msgspec.structs.replace(made.metadata, owner_references=(owner,))
    spec = msgspec.structs.replace(made.spec, containers=tuple(map(SeenContainer, containers)))
    return msgspec.structs.replace(made, metadata=metadata, spec=spec)


def labelled(made: Node, labels: Mapping[str, str]) -> Node:
    return annotated(made, {}, labels={**made.labels, **labels})


def program(metrics: str = "", *reasons: str, version: str = "0.1.0") -> Program:
    return Program(version, reasons, Samples(metrics))


def scheduler(on: str = "cp1", **extender: Any) -> Scheduler:
    """kube-scheduler with the configuration that we ship; ``extender`` changes our entry."""
    document = yaml.safe_load(SCHEDULER_FILE.read_text())
    document["extenders"][0].update(extender)
    return Scheduler(on, plain(document))


PLUGINS = {
    f"gpushare-deviceplugin-{name}": program("gpushare_deviceplugin_registered 1.0\n")
    for name in ("n1", "n2")
}
EXTENDERS = {"gpushare-extender-cp1": program(f"gpushare_extender_leader 1.0\n{ASKED}")}


def well(**changes: Any) -> Facts:
    """A cluster of a control-plane node and two GPU nodes, in which nothing is to be found."""
    found: dict[str, Any] = {
        "nodes": (control_plane(), node("n1"), node("n2")),
        "pods": (
            own("gpushare-deviceplugin", "n1"),
            own("gpushare-deviceplugin", "n2"),
            own("gpushare-extender", "cp1"),
            pod("train"),
            pod("waits", on=None),
            pod("web", None),
        ),
        "server": "v1.34.4",
        "plugins": PLUGINS,
        "extenders": EXTENDERS,
        "election": LeaderElection("extender-cp1", 6, is_renewed=True),
        "memory_unit": "MiB",
        "placement": {},
        "scheduler_names": frozenset(SCHEDULER_NAMES),
        "profile_rules": {},
        "schedulers": {"kube-system/kube-scheduler-cp1": scheduler()},
        "policies": frozenset(POLICIES),
        "policy_bindings": frozenset(POLICIES),
        "permissions": dict.fromkeys(needed(SYSTEM), True),
        "quotas": (Quota("team", "gpus", "16", "4"),),
        "runtime_classes": frozenset({"nvidia"}),
        "has_namespace": True,
        "workloads": {
            "gpushare-deviceplugin": Workload("DaemonSet", 2, runtime_class="nvidia"),
            "gpushare-extender": Workload("DaemonSet", 1),
        },
    }
    return Facts("0.1.0", NOW, SYSTEM, **{**found, **changes})


def with_node(changed: Node) -> Facts:
    facts = well()
    kept = tuple(each for each in facts.nodes if each.name != changed.name)
    return well(nodes=(*kept, changed))


def with_pods(*more: SeenPod, without: str = "-") -> Facts:
    kept = tuple(each for each in well().pods if not each.metadata.name.startswith(without))
    return well(pods=(*kept, *more))


def with_status(name: str, capacity: Mapping[str, Any], allocatable: Mapping[str, Any]) -> Node:
    """A node of ours whose kubelet counts otherwise."""
    made = node(name)
    status = msgspec.structs.replace(
        made.status,
        capacity={**made.capacity, **capacity},
        allocatable={**made.allocatable, **allocatable},
    )
    return msgspec.structs.replace(made, status=status)


def without_inventory(made: Node) -> Node:
    metadata = msgspec.structs.replace(made.metadata, annotations={})
    return msgspec.structs.replace(made, metadata=metadata)


def plain_node(name: str, gpus: int = 0, **labels: str) -> Node:
    """A node that gpushare has never seen, with whole GPUs of NVIDIA's device plugin."""
    amounts = {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    status = NodeStatus(amounts, amounts, NodeSystemInfo("containerd://2.1.4", "v1.33.2-eks-1"))
    return Node(ObjectMeta(name=name, labels=labels), status)


def bare(*nodes: Node, **facts: Any) -> Facts:
    """A cluster that never had gpushare, as its administrator sees it."""
    found: dict[str, Any] = {
        "nodes": nodes,
        "pods": (pod("web", None),),
        "server": "v1.33.2-eks-1",
        "schedulers": {"kube-scheduler": Unknown("no kube-scheduler runs as a pod")},
        "permissions": dict.fromkeys(needed(SYSTEM), False),
        "runtime_classes": frozenset({"nvidia"}),
    }
    return Facts("0.1.0", NOW, SYSTEM, **{**found, **facts})


def eks(**facts: Any) -> Facts:
    """Three nodes of EKS with NVIDIA's device plugin, and no gpushare."""
    nodes = [
        labelled(plain_node(f"ip-10-0-0-{each}", 4), {"nvidia.com/gpu.product": "Tesla-T4"})
        for each in range(3)
    ]
    return bare(*nodes, **facts)
