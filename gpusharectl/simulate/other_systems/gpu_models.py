"""Tell a node's GPUs from the names that clouds give to models and machines (pure).

Only for nodes without NVIDIA's labels. The amounts are whole GiB that drivers
report, which is less than the name says: a T4 of "16 GB" has 15109 MiB with error correction.
"""

import re
from typing import Final, NamedTuple

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
    "A100-40GB": 39,
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
_G: Final = {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
# The model, and the number of GPUs by size where it is not 1.
_INSTANCES: Final[tuple[tuple[str, str, dict[str, int]], ...]] = (
    (r"g4dn\.(.*)", "T4", {"12xlarge": 4, "metal": 8}),
    (r"g5\.(.*)", "A10G", _G),
    (r"g6\.(.*)", "L4", _G),
    (r"g6e\.(.*)", "L40S", _G),
    (r"p3\.(.*)", "V100-16GB", {"8xlarge": 4, "16xlarge": 8}),
    (r"p3dn\.(.*)", "V100-32GB", {"24xlarge": 8}),
    (r"p4d\.(.*)", "A100-40GB", {"24xlarge": 8}),
    (r"p4de\.(.*)", "A100-80GB", {"24xlarge": 8}),
    (r"p5\.(.*)", "H100-80GB", {"48xlarge": 8}),
    (r"p5en?\.(.*)", "H200-141GB", {"48xlarge": 8}),
    (r"Standard_NC(\d+)as_T4_v3", "T4", {"64": 4}),
    (r"Standard_NC(\d+)r?s_v3", "V100-16GB", {"12": 2, "24": 4}),
    (r"Standard_ND(96)asr_v4", "A100-40GB", {"96": 8}),
    (r"Standard_NC(\d+)ads_A100_v4", "A100-80GB", {"48": 2, "96": 4}),
    (r"Standard_ND(96)amsr_A100_v4", "A100-80GB", {"96": 8}),
    (r"Standard_ND(96)isr_H100_v5", "H100-80GB", {"96": 8}),
    (r"Standard_ND(96)isr_H200_v5", "H200-141GB", {"96": 8}),
)


class Machine(NamedTuple):
    """``model`` is empty and ``mib`` and ``gpus`` are 0 if unknown."""

    model: str = ""
    mib: int = 0
    gpus: int = 0


def by_cloud(node: Node) -> Machine:
    """Return what the labels of its cloud say of a node's GPUs."""
    labels = node.labels
    machine = labels.get(_INSTANCE_TYPE, "")
    model, gpus = "", 0
    for pattern, of, by_size in _INSTANCES:
        if match := re.fullmatch(pattern, machine):
            model, gpus = of, by_size.get(match[1], 1)
            break
    named = (_ACCELERATORS.get(labels.get(key, ""), "") for key in _ACCELERATOR_LABELS)
    model = next(filter(None, named), model)
    return Machine(model, _GIB[model] * MIB_PER_GIB if model else 0, gpus)


def is_named(node: Node) -> bool:
    """Return whether a label of a cloud says that the node has NVIDIA GPUs."""
    return any(node.labels.get(key, "").startswith("nvidia") for key in _ACCELERATOR_LABELS)
