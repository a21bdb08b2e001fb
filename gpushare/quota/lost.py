"""Tell the nodes that may never confirm the end of a pod (pure)."""

from typing import Final

from gpushare.objects.model import Node

_TAINTS: Final = {
    "node.kubernetes.io/unreachable": "unreachable",
    "node.kubernetes.io/out-of-service": "out of service",
}
_DELETED: Final = "deleted"


def why_lost(node: Node | None) -> str:
    """Return what a node is that does not answer: a few words for people; empty if it does.

    None stands for a node that does not exist. A pod that hangs there after its grace period
    holds no quota, as with Kubernetes' ResourceQuota, which lets go of it on any node
    (pkg/quota/v1/evaluator/core/pods.go, QuotaV1Pod). On a node that answers, a container may
    still run, and the pod counts.
    """
    if node is None:
        return _DELETED
    found = next((text for taint in node.taints if (text := _TAINTS.get(taint.key))), "")
    conditions = node.status.conditions or ()
    is_unknown = any(each.type == "Ready" and each.status == "Unknown" for each in conditions)
    return found or (_TAINTS["node.kubernetes.io/unreachable"] if is_unknown else "")
