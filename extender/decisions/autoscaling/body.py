"""The pod that stands for a missing node (pure)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.decisions.autoscaling.placeholders import Placeholder
from gpushare.contract import LABEL_PLACEHOLDER
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import MILLI

# Its value is the lowest for which Cluster Autoscaler adds nodes, and it preempts nothing.
PRIORITY_CLASS: Final = "gpushare-placeholder"
IMAGE: Final = "registry.k8s.io/pause:3.10"  # never pulled
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_LIMITED: Final = ("hugepages-",)  # besides extended resources: limits must equal requests


def body(wanted: Placeholder, namespace: str) -> dict[str, Any]:
    """Return the pod, which goes where the waiting pod may go, to nodes of the same type."""
    pod, node = wanted.pod, wanted.like
    selector = dict(pod.spec.node_selector or {})
    if node.labels.get(INSTANCE_TYPE):
        selector[INSTANCE_TYPE] = node.labels[INSTANCE_TYPE]
    spec: dict[str, Any] = {
        "schedulerName": pod.spec.scheduler_name,
        "priorityClassName": PRIORITY_CLASS,
        "nodeSelector": selector,
        "tolerations": msgspec.to_builtins(pod.spec.tolerations or ()),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {"name": "placeholder", "image": IMAGE, "resources": _resources(wanted.asked)}
        ],
    }
    affinity = _affinity(pod)
    if affinity:
        spec["affinity"] = affinity
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"placeholder-{pod.uid}",
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/name": "gpushare-placeholder",
                "app.kubernetes.io/part-of": "gpushare",
                LABEL_PLACEHOLDER: pod.uid,
            },
            "annotations": {LABEL_PLACEHOLDER: pod.key},
        },
        "spec": spec,
    }


def _affinity(pod: Pod) -> dict[str, Any]:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    if not affinity or affinity.required is None:
        return {}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {key: _without_nulls(msgspec.to_builtins(affinity.required))}}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def _resources(asked: Mapping[str, int]) -> dict[str, dict[str, str]]:
    texts = {name: _quantity(amount) for name, amount in asked.items()}
    limited = {name for name in texts if "/" in name or name.startswith(_LIMITED)}
    return {"requests": texts, "limits": {name: texts[name] for name in sorted(limited)}}


def _quantity(amount: int) -> str:
    return f"{amount}m" if amount % MILLI else str(amount // MILLI)
