"""Tell a GPU's memory from the names that clouds give to models and machines (pure).

Only for nodes without the label nvidia.com/gpu.memory. The amounts are whole GiB that drivers
report, which is less than the name says: a T4 of "16 GB" has 15109 MiB with error correction.
"""

import re
from typing import Final

from gpushare.objects.model import Node
from gpushare.text.amounts import MIB_PER_GIB

_GIB: Final = {
    "T4": 14,
    "P100": 15,
    "V100-16GB": 15,
    "V100-32GB": 31,
    "L4": 22,
    "A10G": 22,
    "L40S": 44,
    "A100-40GB": 38,
    "A100-80GB": 79,
    "H100-80GB": 79,
    "H200-141GB": 140,
}
# GKE: cloud.google.com/gke-accelerator. On EKS people set the same names.
_ACCELERATORS: Final = {
    "nvidia-tesla-t4": "T4",
    "nvidia-tesla-p100": "P100",
    "nvidia-tesla-v100": "V100-16GB",
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100-80GB",
    "nvidia-h100-mega-80gb": "H100-80GB",
    "nvidia-h200-141gb": "H200-141GB",
}
_ACCELERATOR_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
)
_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_INSTANCES: Final = (
    (r"g4dn\..*", "T4"),
    (r"g5\..*", "A10G"),
    (r"g6\..*", "L4"),
    (r"g6e\..*", "L40S"),
    (r"p3\..*", "V100-16GB"),
    (r"p3dn\..*", "V100-32GB"),
    (r"p4d\..*", "A100-40GB"),
    (r"p4de\..*", "A100-80GB"),
    (r"p5\..*", "H100-80GB"),
    (r"p5en?\..*", "H200-141GB"),
    (r"Standard_NC\d+as_T4_v3", "T4"),
    (r"Standard_NC\d+r?s_v3", "V100-16GB"),
    (r"Standard_ND96asr_v4", "A100-40GB"),
    (r"Standard_NC\d+ads_A100_v4", "A100-80GB"),
    (r"Standard_ND96amsr_A100_v4", "A100-80GB"),
    (r"Standard_ND96isr_H100_v5", "H100-80GB"),
    (r"Standard_ND96isr_H200_v5", "H200-141GB"),
)


def by_cloud(node: Node) -> tuple[str, int] | None:
    """Return model and MiB of a node's GPUs by the labels of its cloud; None if unknown."""
    labels = node.labels
    for key in _ACCELERATOR_LABELS:
        model = _ACCELERATORS.get(labels.get(key, ""))
        if model is not None:
            return model, _GIB[model] * MIB_PER_GIB
    machine = labels.get(_INSTANCE_TYPE, "")
    for pattern, model in _INSTANCES:
        if re.fullmatch(pattern, machine):
            return model, _GIB[model] * MIB_PER_GIB
    return None


def is_named(node: Node) -> bool:
    """Return whether a label of a cloud says that the node has NVIDIA GPUs."""
    return any(node.labels.get(key, "").startswith("nvidia") for key in _ACCELERATOR_LABELS)
