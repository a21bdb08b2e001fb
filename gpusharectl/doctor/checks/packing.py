"""Check that the cluster can use its GPUs up: CPU is left for them, and pods are packed (pure)."""

from collections.abc import Iterator
from typing import Final

from gpushare.errors import RequestError
from gpushare.text.counted import counted
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, unchecked, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import EXTENDER, Facts, Unknown
from gpusharectl.doctor.facts.node_cpu import (
    NodeCpu,
    cpu_of_gpu_nodes,
    part_with_room_elsewhere,
)
from gpusharectl.doctor.facts.shared_nodes import inventories, shared_nodes

LEAST_PERCENT: Final = 1  # of the GPU memory of all GPU nodes; less is not worth a warning
_LISTED: Final = 3

GPU_NODES_SHORT_OF_CPU = warning(
    "GpuNodesShortOfCpu",
    "no pod can use GPU memory of a node without CPU; kube-scheduler prefers nodes with free CPU "
    "for pods without GPU, and these are often GPU nodes",
    "keep pods without GPU off GPU nodes, by the component avoid-gpu-nodes (avoidGpuNodes: true) "
    "or by a taint; running pods stay until they are created "
    "again (kubectl rollout restart)",
    page="scheduling.md#pods-without-gpu",
)
CANDIDATES_UNLIMITED = warning(
    "CandidatesUnlimited",
    "kube-scheduler then chooses by its own scores, which prefer nodes with free CPU: on a public "
    "trace the first pod with a GPU was refused when 12 % of the GPUs had been requested, "
    "instead of 96 %",
    "set policy.candidates: 1 in the extender's configuration, unless another extender filters "
    "after gpushare",
    page="scheduling.md#how-many-nodes-filter-offers",
)
NODE_POLICY_SPREAD = warning(
    "NodePolicySpread",
    "it leaves a little room on every node, which large pods cannot use: on a public trace 88.6 % "
    "of all GPUs could be allocated, instead of 95.7 %",
    "set policy.node: binpack in the extender's configuration; pods that need it may still ask "
    "for spread by an annotation",
    page="scheduling.md#nodes",
)


def _cpu_is_left(facts: Facts) -> Iterator[DoctorFinding]:
    try:
        nodes = cpu_of_gpu_nodes(facts)
    except RequestError as err:
        yield unchecked("CPU of GPU nodes", Unknown(str(err)))
        return
    cards = [
        card.units for each in inventories(shared_nodes(facts)).values() for card in each.cards
    ]
    units, stranded = sum(each.units for each in nodes), sum(each.stranded for each in nodes)
    smallest = max(1, min(cards, default=1))
    if stranded < smallest or stranded * 100 < units * LEAST_PERCENT:
        return
    held, total = sum(each.held for each in nodes), sum(each.total for each in nodes)
    gpus = sum(each.stranded_gpus for each in nodes)
    found = (
        f"pods without GPU hold {_cores(held)} of {_cores(total)} cores, so "
        f"{gpus:.1f} of {sum(each.gpus for each in nodes)} GPUs are free and have no CPU: "
    )
    part = part_with_room_elsewhere(facts, nodes)
    if part == 1:
        found += "a taint or the component avoid-gpu-nodes would give these back"
    else:
        found += (
            f"the component avoid-gpu-nodes would give back {part * gpus:.1f}, for which nodes "
            "without GPU have free CPU; a taint would give back all, and pods without room "
            "elsewhere would be Pending"
        )
    worst = sorted(nodes, key=lambda each: (-each.stranded, -each.held, each.node))
    details = [_line(each) for each in worst[:_LISTED] if each.stranded]
    yield GPU_NODES_SHORT_OF_CPU.of(counted(len(nodes), "GPU node"), found, details=details)


def _line(each: NodeCpu) -> str:
    held, total = _cores(each.held), _cores(each.total)
    stranded = f"{each.stranded_gpus:.1f} of {each.gpus} GPUs"
    return f"{each.node}: {held} of {total} cores; {stranded} have no CPU"


def _cores(thousandths: int) -> str:
    return f"{thousandths / 1000:.1f}".removesuffix(".0")


def _pods_are_packed(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.placement, Unknown):
        yield unchecked("the setting policy of the extender", facts.placement)
        return
    settings = facts.placement or {}
    if settings.get("candidates") == 0:
        yield CANDIDATES_UNLIMITED.of(EXTENDER, "its configuration has policy.candidates: 0")
    if settings.get("node") == "spread":
        yield NODE_POLICY_SPREAD.of(EXTENDER, "its configuration has policy.node: spread")


def _no_configuration(facts: Facts) -> str:
    return "no extender has a configuration file" if facts.placement is None else ""


_GROUP: Final = "Use of the GPUs"
CHECKS: Final = (
    Check(
        _GROUP,
        "pods without GPU leave CPU on GPU nodes",
        _cpu_is_left,
        subjects.first_of(subjects.shared, subjects.request),
    ),
    Check(
        _GROUP,
        "the extender's configuration packs pods",
        _pods_are_packed,
        _no_configuration,
    ),
)
