"""Nodes and pods as API servers list them, of clusters that share GPUs in different ways."""

import json
from typing import Any

Object = dict[str, Any]


def dump(*objects: Object) -> bytes:
    """As ``kubectl get nodes,pods -A -o json`` prints them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()


def node(
    name: str,
    gpus: int | str = 0,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    resource: str = "nvidia.com/gpu",
    allocatable: dict[str, Any] | None = None,
    **more: Any,
) -> Object:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", **more.pop("capacity", {})}
    if gpus:
        amounts[resource] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"node-{name}",
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": more,
        "status": {"capacity": amounts, "allocatable": {**amounts, **(allocatable or {})}},
    }


def labels(
    count: int,
    mib: int,
    product: str = "NVIDIA-A100-SXM4-80GB",
    replicas: int = 1,
    sharing: str = "none",
    **more: str,
) -> dict[str, str]:
    """As NVIDIA's GPU feature discovery writes them."""
    return {
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": sharing,
        **more,
    }


def pod(
    name: str, on: str = "", annotations: dict[str, str] | None = None, **limits: Any
) -> Object:
    """``limits``: gpu for nvidia.com/gpu, or whole names by ``**{...}``."""
    amounts = {("nvidia.com/gpu" if key == "gpu" else key): str(n) for key, n in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"pod-{name}",
            "annotations": annotations or {},
        },
        "spec": {
            "nodeName": on or None,
            "containers": [
                {"name": "main", "resources": {"limits": amounts, "requests": dict(amounts)}}
            ],
        },
        "status": {"phase": "Running" if on else "Pending"},
    }


def hami_gpu(uuid: str, mib: int, index: int = 0, **more: Any) -> Object:
    """A GPU in the annotation of a node."""
    return {
        "id": uuid,
        "index": index,
        "count": 10,
        "devmem": mib,
        "devcore": 100,
        "type": "NVIDIA-Tesla T4",
        "mode": "hami-core",
        "health": True,
        **more,
    }


def hami_node(name: str, *gpus: Object, **more: Any) -> Object:
    register = {"hami.io/node-nvidia-register": json.dumps(list(gpus))}
    return node(name, 10 * len(gpus), annotations=register, **more)


def hami_pod(name: str, on: str, allocated: str, **limits: Any) -> Object:
    asked = limits or {"gpu": 1, "nvidia.com/gpumem": 3000}
    return pod(name, on, {"hami.io/vgpu-devices-allocated": allocated}, **asked)
