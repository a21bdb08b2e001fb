"""Which nodes of a cluster have GPUs, whether or not gpushare is installed (pure)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.contract import RESOURCE_COUNT
from gpushare.objects.model import Node
from gpushare.text.counted import counted
from gpusharectl.doctor.facts.shared_nodes import units_of

WHOLE_GPUS: Final = ("nvidia.com/gpu", "nvidia.com/gpu.shared")  # the latter: renamed replicas
_MIG_DEVICES: Final = "nvidia.com/mig-"
SHOWN: Final = 10

# Labels: the GPU's model, how many there are, and any that says only that there is one. The first
# are NVIDIA's GPU feature discovery's, the others GKE's, Karpenter's, EKS's and AKS's.
_MODELS: Final = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
)
_COUNTS: Final = (
    "nvidia.com/gpu.count",
    "cloud.google.com/gke-accelerator-count",
    "karpenter.k8s.aws/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-count",
)
_PRESENT: Final = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0300_10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
    "kubernetes.azure.com/accelerator": "nvidia",
    "accelerator": "nvidia",
}
_MAKERS: Final = (
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "eks.amazonaws.com/instance-gpu-manufacturer",
)
_NONE: Final = (
    "no node is known to have GPUs: none offers nvidia.com/gpu or MIG devices, or has a label of "
    "NVIDIA's GPU feature discovery or of a cloud's GPUs"
)
_MOST: Final = 1000  # GPUs of a node that a label may state
# Then the node offers several of these resources for each GPU.
_HAMI: Final = "hami.io/node-nvidia-register"
_GKE_SHARING: Final = "cloud.google.com/gke-gpu-sharing-strategy"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """``count`` is 0 and ``model`` empty if nothing states them.

    ``mig_devices`` are the resources of parts of GPUs, which gpushare does not share.
    """

    name: str
    count: int
    model: str
    mig_devices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        gpus = self.model or "GPUs"
        if self.count:
            gpus = f"{self.count} x {self.model}" if self.model else counted(self.count, "GPU")
        offered = f", offers {', '.join(self.mig_devices)}" if self.mig_devices else ""
        return f"{self.name}: {gpus}{offered}"


def gpu_nodes(nodes: Iterable[Node]) -> list[GpuNode]:
    """Return the nodes with NVIDIA GPUs, in the order of their names."""
    found = [made for node in nodes if (made := _gpu_node(node)) is not None]
    return sorted(found, key=lambda each: each.name)


def mig_devices(node: Node) -> tuple[str, ...]:
    """Return the names of the MIG devices that a node offers."""
    named = sorted(each for each in node.capacity if each.startswith(_MIG_DEVICES))
    return tuple(each for each in named if units_of(node.capacity, each))


def _gpu_node(node: Node) -> GpuNode | None:
    if any(node.labels.get(maker, "nvidia") != "nvidia" for maker in _MAKERS):
        return None
    model = next((found for key in _MODELS if (found := node.labels.get(key))), "")
    counts = [_whole(node.labels.get(key, "")) for key in _COUNTS]
    # Last, because NVIDIA's device plugin may offer several replicas of each GPU.
    offered = [units_of(node.capacity, each) for each in (RESOURCE_COUNT, *WHOLE_GPUS)]
    if _HAMI not in node.annotations and _GKE_SHARING not in node.labels:
        counts += offered
    count = next((each for each in counts if each), 0)
    is_present = any(node.labels.get(key) == value for key, value in _PRESENT.items())
    parts = mig_devices(node)
    is_there = count or model or is_present or parts or any(offered)
    return GpuNode(node.name, count, model, parts) if is_there else None


def _whole(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_MOST))
    return min(int(text), _MOST) if is_number else 0


def listed(found: Sequence[GpuNode]) -> tuple[str, ...]:
    """Return the lines that show nodes with GPUs, at most ``SHOWN`` of them."""
    if not found:
        return (_NONE,)
    total = sum(each.count for each in found)
    least = "" if all(each.count for each in found) else "at least "
    head = f"nodes with GPUs: {len(found)}"
    head += f" ({least}{counted(total, 'GPU')})" if total else ""
    lines = [head, *(f"  {each.text}" for each in found[:SHOWN])]
    if len(found) > SHOWN:
        lines.append(f"  ... and {len(found) - SHOWN} more")
    return tuple(lines)
