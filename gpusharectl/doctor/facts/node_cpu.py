"""How much CPU of GPU nodes pods without GPU hold, and how much GPU memory lacks it (pure)."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from gpushare.annotations.pod_annotations import request_of
from gpushare.contract import RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.objects.model import Node, belong_to_node
from gpushare.objects.pod_requests import (
    MILLI,
    Amounts,
    is_gpu,
    may_use_gpus,
    read_amounts,
    requests_of,
)
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import Facts
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import is_shared, shared_nodes, units_of


@dataclass(frozen=True, slots=True)
class NodeCpu:
    """CPU of a GPU node, in thousandths of a core, and GPU memory, in units.

    ``held`` is what pods without GPU request; pods that belong to the node, of DaemonSets and
    static ones, do not count. ``stranded`` is the free GPU memory that lacks CPU because of them,
    for pods that request as much CPU per unit as those of the cluster do. ``gpus`` is the number
    of GPUs.
    """

    node: str
    total: int
    held: int
    units: int
    stranded: int
    gpus: int

    @property
    def stranded_gpus(self) -> float:
        return self.stranded * self.gpus / self.units


def cpu_of_gpu_nodes(facts: Facts) -> list[NodeCpu]:
    """Return the CPU of the nodes that share their GPUs and state their CPU.

    Raises RequestError if an amount cannot be read.
    """
    usual, by_node = _asked_with_gpu_memory(facts), _pods_by_node(facts)
    return [
        _node_cpu(node, by_node.get(node.name, ()), usual)
        for node in shared_nodes(facts)
        if units_of(node.allocatable) and "cpu" in node.allocatable
    ]


def part_with_room_elsewhere(facts: Facts, nodes: Iterable[NodeCpu]) -> float:
    """Return for which part of the CPU that free GPU memory lacks other nodes have CPU, at most 1.

    These are nodes without GPUs that take any pods, and of which all amounts can be read. Raises
    RequestError as ``cpu_of_gpu_nodes``.
    """
    usual, by_node = _asked_with_gpu_memory(facts), _pods_by_node(facts)
    lacking = sum(each.stranded for each in nodes) * usual["cpu"] / max(1, usual[RESOURCE_MEMORY])
    free = 0
    for node in facts.nodes:
        if is_shared(node) or any(map(is_gpu, node.allocatable)) or not node.takes_any:
            continue
        with suppress(RequestError):  # another check names the pod
            total = read_amounts(node.allocatable, f"node {node.name}").get("cpu", 0)
            used = sum(requests_of(pod).get("cpu", 0) for pod in by_node.get(node.name, ()))
            free += max(0, total - used)
    return min(1.0, free / lacking) if lacking else 1.0


def _pods_by_node(facts: Facts) -> dict[str, list[SeenPod]]:
    found: dict[str, list[SeenPod]] = {}
    for pod in facts.pods:
        if pod.node and not pod.is_terminal:
            found.setdefault(pod.node, []).append(pod)
    return found


def _node_cpu(node: Node, pods: Iterable[SeenPod], usual: Amounts) -> NodeCpu:
    total = read_amounts({"cpu": node.allocatable["cpu"]}, f"node {node.name}")["cpu"]
    units = units_of(node.allocatable)
    held, cpu, free = 0, total, units
    for pod in pods:
        asked = requests_of(pod)
        cpu -= asked.get("cpu", 0)
        free -= asked.get(RESOURCE_MEMORY, 0) // MILLI
        if not (_may_use_gpus(pod) or belong_to_node(pod.metadata.owner_references)):
            held += asked.get("cpu", 0)
    stranded = _usable(free, cpu + held, usual) - _usable(free, cpu, usual)
    gpus = units_of(node.capacity, RESOURCE_COUNT)
    return NodeCpu(node.name, total, held, units, stranded, gpus)


def _usable(free: int, cpu: int, usual: Amounts) -> int:
    """Return the units, of ``free`` ones, for which there is CPU at the usual ratio."""
    if not usual["cpu"]:
        return max(0, free)
    return max(0, min(free, cpu * usual[RESOURCE_MEMORY] // usual["cpu"]))


def _asked_with_gpu_memory(facts: Facts) -> Amounts:
    """Return the CPU and the units that all pods with GPU memory request, also Pending ones."""
    found = {"cpu": 0, RESOURCE_MEMORY: 0}
    for pod in subjects.requests_share(facts):
        try:
            units = request_of(pod).units
        except RequestError:  # another check names the pod
            continue
        found["cpu"] += requests_of(pod).get("cpu", 0)
        found[RESOURCE_MEMORY] += units
    return found


def _may_use_gpus(pod: SeenPod) -> bool:
    names = (name for each in pod.all_containers for name in each.amounts)
    return may_use_gpus(names, has_claims=bool(pod.spec.resource_claims))
