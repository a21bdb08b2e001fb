"""Tell what pods request of GPUs other than by memory (pure)."""

from collections.abc import Iterator
from typing import Final

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import MILLI, requests_of
from gpusharectl.simulate.other_systems import hami
from gpusharectl.simulate.other_systems.node_gpus import RESOURCES, few, is_other_gpu

KAI: Final = ("gpu-fraction", "gpu-memory")  # annotations


def gpus_of(pod: Pod) -> int:
    """Return how many GPUs, or replicas of them, a pod requests of NVIDIA's device plugin."""
    if asks_for_share(pod) or not _names(pod, RESOURCES):
        return 0
    try:
        asked = requests_of(pod)
    except RequestError:
        return 0
    return sum(asked.get(name, 0) for name in RESOURCES) // MILLI


def is_hami(pod: Pod) -> bool:
    """Return whether the pod has, or requests, a share of HAMi's."""
    is_share = hami.ALLOCATED in pod.annotations or _names(pod, hami.RESOURCES)
    return is_share and not asks_for_share(pod)


def waits_for_whole_gpus(pod: Pod) -> bool:
    """Return whether the pod is Pending for GPUs that it requests whole."""
    return bool(gpus_of(pod)) and not (pod.node or is_hami(pod) or pod.spec.scheduling_gates)


def not_simulated(pod: Pod) -> Iterator[str]:
    """Yield what of a pod's GPUs has no effect in a simulation."""
    others = sorted(filter(is_other_gpu, _resources(pod)))
    if others:
        yield f"not simulated: {few(others)}"
    if any(key in pod.annotations for key in KAI):
        yield f"KAI Scheduler's annotation {' or '.join(KAI)} is not simulated"


def _names(pod: Pod, resources: tuple[str, ...]) -> bool:
    return not _resources(pod).isdisjoint(resources)


def _resources(pod: Pod) -> set[str]:
    return {name for each in pod.all_containers for name in each.amounts}
