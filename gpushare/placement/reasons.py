"""The reasons for which a node is rejected for a pod: fixed texts.

kube-scheduler writes them into the pod's condition, and a changed condition re-queues the pod: a
text with a number in it would make kube-scheduler retry forever.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reason:
    """``is_final``: no deleted pod could change it, so preemption must not try."""

    text: str
    is_final: bool = True


NOT_MANAGED: Final = Reason(
    "pod requests no aliyun.com/gpu-mem, so kube-scheduler should not ask gpushare about it: its "
    "configuration lacks the managedResources that `gpushare scheduler-config` prints"
)
NO_CARDS: Final = Reason("node shares no GPU by memory")
UNREADABLE: Final = Reason("node's GPU inventory cannot be read")
WRONG_UNIT: Final = Reason("node counts aliyun.com/gpu-mem in another unit than the cluster")
TOO_FEW_CARDS: Final = Reason("node has fewer GPUs than the pod wants to spread over")
TOO_LARGE: Final = Reason("no GPU of the node is large enough for aliyun.com/gpu-mem")
SETS_CARDS: Final = Reason(
    "pod sets NVIDIA_VISIBLE_DEVICES itself, which early binding on the node cannot overrule"
)
SETS_LIMITS: Final = Reason(
    "pod sets NVIDIA_GPU_MEMORY_REQUEST or NVIDIA_GPU_MEMORY_LIMIT itself, which would take memory "
    "from other pods: remove the variable"
)
NEEDS_RUNTIME: Final = Reason(
    "node gives GPUs through NVIDIA's runtime, which the pod does not run under: set "
    "spec.runtimeClassName: nvidia"
)
EXPOSES_CARDS: Final = Reason(
    "NVIDIA's runtime would give every GPU of the node to containers of the pod that request no "
    "aliyun.com/gpu-mem: set NVIDIA_VISIBLE_DEVICES to void in them"
)
WRONG_MODEL: Final = Reason(
    "no GPU of the node that is large enough is of a model in gpushare.aliyun.com/card-models"
)
NOT_LIMITED: Final = Reason(
    "gpushare.aliyun.com/isolation is required, and the driver limits memory on too few GPUs of "
    "the node that are large enough"
)
UNWANTED: Final = Reason(
    "gpushare.aliyun.com/card-uuids-only and card-uuids-not leave too few GPUs of the node"
)
CORDONED: Final = Reason("GPUs that would be large enough are cordoned")
UNREADABLE_CORDON: Final = Reason(
    "node's annotation gpushare.aliyun.com/cordoned-cards cannot be read"
)
LEAVING: Final = Reason(
    "node's device plugin has ended or is about to; the next one takes pods again"
)
UNHEALTHY: Final = Reason("GPUs that would be large enough are unhealthy")
# Only time resolves it, and no event tells kube-scheduler: see extender/decisions/filter.py.
COOLING: Final = Reason(
    "node has just refused pods that request GPU memory; it is tried again shortly", is_final=False
)
NO_ROOM: Final = Reason("no single GPU has enough free aliyun.com/gpu-mem", is_final=False)
NO_ROOM_ON_ENOUGH: Final = Reason(
    "too few GPUs have enough free aliyun.com/gpu-mem each", is_final=False
)

TEXTS: Final = tuple(each.text for each in tuple(vars().values()) if isinstance(each, Reason))
