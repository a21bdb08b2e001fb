"""Check what of gpushare is installed (pure)."""

from collections.abc import Iterator
from typing import Final

from gpushare.contract import ANNOTATION_INVENTORY
from gpushare.text.counted import counted
from gpushare.text.manual import manual
from gpusharectl.doctor.checks.access import POLICIES
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    PLUGIN,
    SECOND_SCHEDULER,
    Facts,
    Unknown,
)
from gpusharectl.doctor.facts.gpu_nodes import GpuNode, gpu_nodes, listed
from gpusharectl.doctor.facts.shared_nodes import SHARED, is_of_older, shared_nodes

_GROUP: Final = "Installation"
_NAMED: Final = 3
_AGAIN: Final = (
    "apply your installation again (helm upgrade, or kubectl apply -k YOUR-KUSTOMIZATION)"
)
_LABEL: Final = f"kubectl label node {{nodes}} {SHARED}"

NOT_INSTALLED = problem(
    "NotInstalled",
    "no pod can share a GPU, and there is little else to check",
    "{cure}",
    page="install.md",
)
PART_MISSING = problem(
    "PartMissing",
    "gpushare needs both the device plugin and an extender",
    _AGAIN,
    page="install.md",
)
NO_NODE_SHARED = problem(
    "NoNodeShared",
    "the device plugin runs only on nodes with this label, so no node offers GPU memory",
    _LABEL,
    page="install.md",
)


def _is_there(facts: Facts) -> Iterator[DoctorFinding]:
    if not subjects.is_installed(facts):
        yield _not_installed(facts)
        return
    where = f"namespace {facts.system}"
    if not subjects.has_plugin(facts):
        unsure = " (DaemonSets cannot be listed)" if isinstance(facts.workloads, Unknown) else ""
        found = f"an extender, but no device plugin: no DaemonSet {PLUGIN} in {where}{unsure}"
        yield PART_MISSING.of("gpushare is installed in part", found)
    if not subjects.has_extender(facts):
        found = (
            f"the device plugin, but no extender: neither DaemonSet {EXTENDER} nor Deployment "
            f"{SECOND_SCHEDULER} in {where}"
        )
        yield PART_MISSING.of("gpushare is installed in part", found)
    if not shared_nodes(facts):
        there = gpu_nodes(facts.nodes)
        found = f"no node is labelled {SHARED}"
        details = listed(there)
        yield NO_NODE_SHARED.of("the nodes", found, details=details, nodes=_names(there))


def _not_installed(facts: Facts) -> DoctorFinding:
    there = gpu_nodes(facts.nodes)
    missing = [_namespace(facts), _labelled(facts)]
    elsewhere = sorted(
        {
            pod.metadata.namespace
            for pod in facts.pods
            if pod.program in {PLUGIN, EXTENDER, SECOND_SCHEDULER}
        }
        - {facts.system}
    )
    cure = "install it"
    if not shared_nodes(facts):
        label = _LABEL.format(nodes=_names(there))
        cure += f", and label the nodes that are to share their GPUs: {label}"
    if elsewhere:
        missing.append(f"but pods of it in namespace {', '.join(elsewhere[:_NAMED])}")
        cure += f"; for the one in namespace {elsewhere[0]}, use --system-namespace={elsewhere[0]}"
    elif left := _left_over(facts):
        missing.append(f"but left over: {', '.join(left)}")
        cure += "; or see what is left over: gpushare uninstall --dry-run"
    elif older := [node.name for node in facts.nodes if is_of_older(node)]:
        missing.append(f"{counted(len(older), 'node')} with Aliyun gpushare")
        cure = f"migrate: {manual('migrate.md')}; Aliyun gpushare's pods keep running"
    return NOT_INSTALLED.of(
        subjects.NOT_INSTALLED,
        ", ".join(missing),
        details=listed(there),
        cure=cure,
    )


def _left_over(facts: Facts) -> list[str]:
    policies = frozenset() if isinstance(facts.policies, Unknown) else facts.policies
    count = len(policies & frozenset(POLICIES))
    left = [f"{count} admission policies"] if count else []
    stated = sum(ANNOTATION_INVENTORY in node.annotations for node in facts.nodes)
    return left + ([f"the inventory of {counted(stated, 'node')}"] if stated else [])


def _namespace(facts: Facts) -> str:
    if isinstance(facts.has_namespace, Unknown):
        return f"no pod of gpushare in namespace {facts.system}"
    if facts.has_namespace:
        return f"neither device plugin nor extender in namespace {facts.system}"
    return f"no namespace {facts.system}"


def _labelled(facts: Facts) -> str:
    count = len(shared_nodes(facts))
    return f"{counted(count, 'node')} labelled {SHARED}" if count else f"no node labelled {SHARED}"


def _names(nodes: list[GpuNode]) -> str:
    """Return names for a command; ``NODE`` if there are none."""
    more = " ..." if len(nodes) > _NAMED else ""
    return " ".join(each.name for each in nodes[:_NAMED]) + more or "NODE"


CHECKS: Final = (Check(_GROUP, "gpushare is installed", _is_there, lambda _: ""),)
