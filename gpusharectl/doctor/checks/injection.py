"""Check how containers get their GPUs: by CDI, or by NVIDIA's runtime (pure)."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from gpushare.annotations.pod_annotations import amounts_of, asks_for_share
from gpushare.cards.model import Inventory, Request
from gpushare.cards.placement_policy import requires_limit
from gpushare.contract import BY_CDI, BY_DRIVER
from gpushare.errors import RequestError
from gpushare.placement.card_choice import why_not_injected
from gpushare.placement.reasons import EXPOSES_CARDS, Reason
from gpushare.text.counted import counted
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import PLUGIN, Facts, Program, Unknown
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import inventories, is_shared

_GROUP: Final = "How containers get their GPUs"
_SHOWN: Final = 3  # reasons

RUNTIME_UNREACHABLE = problem(
    "NvidiaRuntimeUnreachable",
    "the node injects GPUs through NVIDIA's runtime, which no RuntimeClass names, so no pod is "
    "placed there",
    "create the RuntimeClass (the GPU Operator does); if NVIDIA's runtime is the default, use the "
    "component default-runtime (plugin.runtimeClassName: ''); or write a CDI file on the node, "
    "which needs neither: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    page="installation-options.md#how-a-container-gets-its-gpu",
)
NEEDS_CLASS = problem(
    "PodNeedsNvidiaRuntime",
    "NVIDIA's runtime injects the GPU, and the pod does not use it: the pod is placed nowhere, and "
    "if it already runs, it sees no GPU",
    "set runtimeClassName: nvidia in the pod template; or let the nodes inject GPUs by CDI",
    page="troubleshooting.md#a-container-sees-no-gpu",
)
EXPOSED = problem(
    "PodExposesCards",
    "NVIDIA's runtime gives a container without GPU memory what its image requests, usually every "
    "GPU of the node",
    "set NVIDIA_VISIBLE_DEVICES to void in each container without aliyun.com/gpu-mem, also in "
    "init containers; or let the nodes inject GPUs by CDI",
    page="troubleshooting.md#a-container-sees-no-gpu",
)

ISOLATION_UNSERVED = problem(
    "IsolationUnserved",
    "the pod requires that the driver limits its memory, which no node's driver does: it stays "
    "Pending",
    "see why with `gpushare inspect -o wide`; or remove the annotation "
    "gpushare.aliyun.com/isolation from the pod template",
    page="isolation.md",
)
LIMIT_MISSING = problem(
    "MemoryLimitMissing",
    "the container may use the whole GPU, although its node limits memory",
    "kubectl get events -A --field-selector reason=MemoryLimitMissing",
    page="isolation.md#when-a-limit-is-missing",
)


def _can_be_reached(facts: Facts) -> Iterator[DoctorFinding]:
    known = facts.runtime_classes
    for name, stated in inventories(filter(is_shared, facts.nodes)).items():
        if stated.injection in {"", BY_CDI} or "" in stated.runtime_classes:
            continue
        if isinstance(known, Unknown):
            yield unchecked("which RuntimeClasses exist", known)
            return
        if not known & stated.runtime_classes:
            classes = ", ".join(sorted(stated.runtime_classes)) or "none"
            found = f"its plugin supports the RuntimeClasses {classes}, and none of these exists"
            yield RUNTIME_UNREACHABLE.of(name, found)


def _pods(facts: Facts, *, exposed: bool) -> Iterator[DoctorFinding]:
    stated = inventories(filter(is_shared, facts.nodes))
    for pod in facts.pods:
        if pod.is_terminal or not asks_for_share(pod):
            continue
        try:
            request = amounts_of(pod)
        except RequestError:
            continue  # another finding
        reason = _reason(pod, request, stated)
        if reason is not None and (reason is EXPOSES_CARDS) == exposed:
            where = f"on node {pod.node}" if pod.node else "it is Pending, and it fits on no node"
            named = f"RuntimeClass {request.runtime_class!r}" if request.runtime_class else "none"
            kind = EXPOSED if exposed else NEEDS_CLASS
            yield kind.of(pod.key, f"{where}; its RuntimeClass: {named}")


def _reason(pod: SeenPod, request: Request, stated: dict[str, Inventory]) -> Reason | None:
    """Return why the pod's node, or for a Pending pod every node, cannot serve it."""
    seen = [each for name, each in stated.items() if pod.node in {"", name}]
    found = [why_not_injected(each.injection, each.runtime_classes, request) for each in seen]
    return found[0] if found and all(found) else None


def _isolation_is_served(facts: Facts) -> Iterator[DoctorFinding]:
    stated = inventories(filter(is_shared, facts.nodes)).values()
    cards = [card for each in stated for card in each.cards]
    if any(card.enforces == BY_DRIVER for card in cards):
        return
    whys = ", ".join(sorted({card.why_not_more for card in cards if card.why_not_more})[:_SHOWN])
    for pod in subjects.requests_share(facts):
        if not pod.node and requires_limit(pod.annotations):
            yield ISOLATION_UNSERVED.of(pod.key, whys or "the device plugins do not say why not")


def _limits_are_in_force(facts: Facts) -> Iterator[DoctorFinding]:
    for pod in facts.pods_of(PLUGIN):
        program = facts.plugins.get(pod.metadata.name)
        if isinstance(program, Program):
            missing = program.samples.total("gpushare_deviceplugin_limits_missing")
            if missing:
                found = (
                    f"{counted(round(missing), 'container')} without the limit that it was given"
                )
                yield LIMIT_MISSING.of(pod.node, found)


_pods_on_nodes: Final = subjects.first_of(subjects.shared_inventory, subjects.request)

CHECKS: Final = (
    Check(
        _GROUP,
        "NVIDIA's runtime has a RuntimeClass where it is needed",
        _can_be_reached,
        subjects.shared_inventory,
    ),
    Check(
        _GROUP,
        "pods use NVIDIA's runtime where it is needed",
        partial(_pods, exposed=False),
        _pods_on_nodes,
    ),
    Check(
        _GROUP,
        "their other containers see no GPUs",
        partial(_pods, exposed=True),
        _pods_on_nodes,
    ),
    Check(
        _GROUP,
        "pods that require a memory limit have a node for it",
        _isolation_is_served,
        subjects.first_of(subjects.shared_inventory, subjects.pending_request),
    ),
    Check(_GROUP, "memory limits are in force", _limits_are_in_force, subjects.plugin_pods),
)
