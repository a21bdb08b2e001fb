"""Describes the nodes of a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from localcluster.errors import UsageError
from localcluster.nvml import CardSpec
from localcluster.state import check_name
from localcluster.toolkit import Setup

MOST_NODES = 16
_MOST_PODS = "110"

Runtime = Literal["containerd-2", "containerd-1.7", "cri-o"]
"""The container runtimes that a node can have."""


@dataclass(frozen=True)
class NodeSpec:
    """A real node. `cards` are those of its NVML stand-in; `cdi` enables CDI in containerd.

    `runtime` is the container runtime of its kubelet; `setup` is how containers get the cards. A
    node without cards has neither driver nor toolkit. `driver` is the root of a real driver on this
    machine, which has these cards, instead of the stand-in. `limits_memory`: the stand-in is one
    of a driver that limits the memory of cgroups, as since R615, and NVIDIA's hook works on the
    node (`localcluster.memory_limits`).

    One node of a cluster may be the `control_plane`: labeled and tainted as by kubeadm, with
    kube-scheduler as its static pod instead of on the host.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cards: tuple[CardSpec, ...] = ()
    cdi: bool = True
    setup: Setup = Setup.LEGACY
    driver: Path | None = None
    control_plane: bool = False
    runtime: Runtime = "containerd-2"
    limits_memory: bool = False


@dataclass(frozen=True)
class PaperNode:
    """A Node object without a kubelet: pods can be bound to it but never start.

    `capacity` overrides the cpu, memory and pods of an average machine; `allocatable` overrides
    `capacity`.
    """

    name: str
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def full_capacity(self) -> dict[str, str]:
        """Return capacity with the resources that every node has."""
        return {"cpu": "32", "memory": "128Gi", "pods": _MOST_PODS, **self.capacity}


def check_nodes(nodes: tuple[NodeSpec, ...], paper: tuple[PaperNode, ...]) -> None:
    """Raise UsageError for an invalid name, a duplicate name, or too many real nodes."""
    names = [each.name for each in nodes] + [each.name for each in paper]
    for name in names:
        check_name("node", name)
    planes = [each.name for each in nodes if each.control_plane]
    if len(planes) > 1:
        text = f"{len(planes)} control-plane nodes asked ({', '.join(planes)}); at most one can be"
        raise UsageError(text)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"node names given twice: {', '.join(twice)}; name each node once")
    if len(nodes) > MOST_NODES:
        text = f"{len(nodes)} real nodes asked, at most {MOST_NODES}; make the others paper nodes"
        raise UsageError(text)
