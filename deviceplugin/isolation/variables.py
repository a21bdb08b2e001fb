"""The variables that keep a container to its share, and those that tell it what does (pure).

NVIDIA's hook reads two variables of the container (nvidia-container-toolkit 1.20.1,
cmd/nvidia-cdi-hook/apply-cuda-memory-limits), in MiB, for each of its GPUs. A limit alone is also a
reservation, and the driver leaves reservations to the parent cgroups of a container that ends: so
nothing is ever reserved. Where memory cannot be limited the hook fails, and the container with it.

Of equal names the hook takes the first. With containerd these are those of the image, of Allocate,
of the pod and of its ``envFrom``, and of CDI files, in this order; CRI-O puts those of CDI files
first (tried with containerd 1.7 and 2.2 and CRI-O 1.34). So Allocate answers with them too, and an
image's are found after the start (``usage.verification``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.cards.model import Card
from gpushare.contract import (
    BY_DRIVER,
    BY_FRAMEWORK,
    BY_NOTHING,
    ENV_ALLOCATABLE,
    ENV_ENFORCED,
    ENV_FRACTION,
    ENV_FRAMEWORKS,
    ENV_JAX,
    ENV_JAX_NEWER,
    ENV_MEMORY_LIMIT,
    ENV_MEMORY_REQUEST,
    ENV_TENSORFLOW,
    ENV_TORCH,
    ENV_TORCH_CUDA,
)
from gpushare.objects.model import Container

# What a process needs besides what a framework allocates: CUDA's context and libraries.
CONTEXT_MIB: Final = 512


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What keeps containers on certain GPUs to their share.

    ``is_limited``: NVIDIA's hook and the driver limit memory. ``why_not_promised``: why they do
    not, or why that is not certain; empty where it is. ``is_required``: no container may start
    without that promise. ``guards``: they do not limit, but they would reserve what a pod's
    variables say, so the plugin's say nothing. ``by_frameworks``: frameworks are told to limit
    themselves where the driver does not. Where it does, it is not known of all of them which memory
    they take a part of.
    """

    is_limited: bool = False
    why_not_promised: str = ""
    is_required: bool = False
    guards: bool = False
    by_frameworks: bool = False

    def for_the_hook(self, share_mib: int) -> dict[str, str]:
        """Return the variables that NVIDIA's hook reads, for ``share_mib`` of each GPU."""
        if self.is_limited:
            return {ENV_MEMORY_REQUEST: "0", ENV_MEMORY_LIMIT: str(share_mib)}
        return {ENV_MEMORY_REQUEST: "0"} if self.guards else {}

    def variables(
        self,
        cards: Sequence[Card],
        share_mib: int,
        own: Iterable[str],
        told: Mapping[str, str],
        *,
        is_served: bool = True,
    ) -> dict[str, str]:
        """Return the variables for a container that has ``share_mib`` of each of these GPUs.

        ``own`` are the variables that frameworks read and the pod sets, or may set, ``told`` those
        for the hook that the kubelet repeats at each start of the container. ``is_served``: with
        these the hook does what is wanted now.
        """
        allocatable = max(0, share_mib - CONTEXT_MIB)
        # A limited container sees its limit as the memory of the GPU.
        whole = share_mib if self.is_limited else max(card.memory_mib for card in cards)
        # Cut, not rounded: never more than the share.
        fraction = f"{allocatable * 10_000 // whole / 10_000 if whole else 0:.4f}"
        frameworks: dict[str, str] = {}
        if self.by_frameworks and allocatable and not self.is_limited:
            frameworks = _of_frameworks(fraction, frozenset(own))
        enforced = BY_FRAMEWORK if {ENV_TORCH, ENV_JAX} <= frameworks.keys() else BY_NOTHING
        if self.is_limited and not self.why_not_promised and is_served:
            enforced = BY_DRIVER
        return {
            **self.for_the_hook(share_mib),
            **told,
            **frameworks,
            ENV_ENFORCED: enforced,
            ENV_ALLOCATABLE: str(allocatable),
            ENV_FRACTION: fraction,
        }


def _of_frameworks(fraction: str, own: frozenset[str]) -> dict[str, str]:
    """Return the variables that limit a process to that part of each GPU, without those in ``own``.

    A framework with two names for its variable gets none if the pod sets either.
    """
    found = {}
    if own.isdisjoint({ENV_TORCH, ENV_TORCH_CUDA}):
        found[ENV_TORCH] = f"per_process_memory_fraction:{fraction}"
    if own.isdisjoint({ENV_JAX, ENV_JAX_NEWER}):
        found[ENV_JAX] = fraction
    if ENV_TENSORFLOW not in own:
        found[ENV_TENSORFLOW] = "true"
    return found


def own_variables(container: Container) -> frozenset[str]:
    """Return the variables of frameworks that the container sets.

    With ``envFrom`` it may set any: the plugin does not read what that refers to.
    """
    if container.env_from:
        return frozenset(ENV_FRAMEWORKS)
    return frozenset(each.name for each in container.env or ()).intersection(ENV_FRAMEWORKS)
