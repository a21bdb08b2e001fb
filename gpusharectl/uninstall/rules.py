"""Which objects of a cluster are gpushare's, and in which order to remove them (pure).

Objects are identified by their names, which are the same with kustomize and Helm. Aliyun gpushare
has names that begin alike, so a prefix is only enough for ConfigMaps, whose names kustomize ends
with a hash.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import (
    ANNOTATION_INVENTORY,
    GATE_ADMISSION,
    LABEL_NODE,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import RecordError
from gpushare.objects.model import Node, Pod

PLUGIN: Final = "gpushare-deviceplugin"
EXTENDER: Final = "gpushare-extender"
SCHEDULER: Final = "gpushare-scheduler"
CLEANER: Final = "gpushare-cleaner"
OURS: Final = "gpushare.aliyun.com/"
RELEASE: Final = "meta.helm.sh/release-name"  # Helm's annotation on what it installs
_STATE: Final = "state"
# Volumes, and the flags by which the plugin knows where they are mounted.
_FLAGS: Final = {"device-plugins": "--device-plugin-dir", "cdi": "--cdi-dir"}
_NEEDED: Final = (*_FLAGS, _STATE)
_HOST: Final = "/host"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object: where its API is, and the names of gpushare's objects.

    ``namespace`` is empty for cluster-wide objects, ``*`` for the one gpushare runs in.
    ``begins`` are prefixes of names.
    """

    name: str
    group: str
    names: tuple[str, ...]
    namespace: str = "*"
    begins: tuple[str, ...] = ()

    def path(self, system: str, name: str = "") -> str:
        """Return the path of all of them, or of the one of that name."""
        where = system if self.namespace == "*" else self.namespace
        base = f"{self.group}/namespaces/{where}" if where else self.group
        plural = re.sub("ys$", "ies", f"{self.name.lower()}s")
        return f"{base}/{plural}" + (f"/{name}" if name else "")

    def is_ours(self, name: str) -> bool:
        return name in self.names or name.startswith(self.begins or ("/",))


_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_APPS: Final = "/apis/apps/v1"
_STARTUP_TAINT: Final = "gpushare-startup-taint"  # of the component of that name
_SCHEDULER_NAME: Final = "gpushare-scheduler-name"
_GATES: Final = "gpushare-gates"  # of the component gates
_PREEMPTION: Final = "gpushare-preemption"  # of the component of that name
_AUTOSCALING: Final = "gpushare-autoscaling"
_AVOID_GPU_NODES: Final = "gpushare-avoid-gpu-nodes"  # of the component avoid-gpu-nodes
_POLICIES: Final = (
    _AUTOSCALING,
    "gpushare-bindings",
    "gpushare-cdi-annotations",
    "gpushare-created-with-node",
    "gpushare-decisions",
    "gpushare-deviceplugin-own-node",
    "gpushare-ephemeral-containers",
    "gpushare-events",
    "gpushare-extender-pods",
    _GATES,
    "gpushare-inventory",
    "gpushare-quotas",
    _SCHEDULER_NAME,
    _STARTUP_TAINT,
)
_PROGRAMS: Final = (PLUGIN, EXTENDER, SCHEDULER)
_METRICS: Final = "gpushare-metrics"  # of monitoring/scrape.yaml
_AUTHORITY: Final = "gpushare-authority"  # of cert-manager
_COREOS: Final = "/apis/monitoring.coreos.com/v1"
_CERT_MANAGER: Final = "/apis/cert-manager.io/v1"

DAEMON_SETS: Final = ObjectKind("DaemonSet", _APPS, (PLUGIN, EXTENDER))
SECRETS: Final = ObjectKind(
    "Secret", "/api/v1", (f"{EXTENDER}-tls", f"{SCHEDULER}-tls", _AUTHORITY, _METRICS)
)
# First what rejects the writes of others, who may have to repair a failed removal.
POLICIES: Final = (
    ObjectKind("ValidatingAdmissionPolicyBinding", _ADMISSION, _POLICIES, ""),
    ObjectKind("ValidatingAdmissionPolicy", _ADMISSION, _POLICIES, ""),
    ObjectKind("MutatingWebhookConfiguration", _ADMISSION, (_SCHEDULER_NAME, _GATES), ""),
    *(
        ObjectKind(kind, group, (_AVOID_GPU_NODES, _SCHEDULER_NAME, _GATES), "")
        for group in (_ADMISSION, f"{_ADMISSION}beta1")  # by default the second is not served
        for kind in ("MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy")
    ),
)
# The programs before the rights that they need to end cleanly.
PROGRAMS: Final = (DAEMON_SETS, ObjectKind("Deployment", _APPS, (SCHEDULER,)))
REST: Final = (
    ObjectKind("NetworkPolicy", "/apis/networking.k8s.io/v1", (*_PROGRAMS, "gpushare-admission")),
    ObjectKind("Service", "/api/v1", (EXTENDER,)),
    ObjectKind("ResourceQuota", "/api/v1", ("gpushare-critical",)),
    ObjectKind("PodDisruptionBudget", "/apis/policy/v1", (SCHEDULER,)),
    ObjectKind(
        "ClusterRoleBinding",
        _RBAC,
        (*_PROGRAMS, f"{SCHEDULER}-volumes", _STARTUP_TAINT, _GATES, _PREEMPTION, _METRICS),
        "",
    ),
    ObjectKind(
        "ClusterRole", _RBAC, (*_PROGRAMS, _STARTUP_TAINT, _GATES, _PREEMPTION, _METRICS), ""
    ),
    ObjectKind("RoleBinding", _RBAC, (SCHEDULER,), "kube-system"),
    ObjectKind("RoleBinding", _RBAC, (*_PROGRAMS, _AUTOSCALING)),
    ObjectKind("Role", _RBAC, (*_PROGRAMS, _AUTOSCALING)),
    ObjectKind("PriorityClass", "/apis/scheduling.k8s.io/v1", ("gpushare-placeholder",), ""),
    ObjectKind("ServiceAccount", "/api/v1", (*_PROGRAMS, _METRICS)),
    ObjectKind(
        "ConfigMap",
        "/api/v1",
        ("gpushare-dashboard",),
        begins=("gpushare-extender-configuration", "gpushare-scheduler-configuration"),
    ),
    ObjectKind("PodMonitor", _COREOS, (PLUGIN, EXTENDER)),
    ObjectKind("PrometheusRule", _COREOS, ("gpushare",)),
    # Before the Secrets, which cert-manager would write again.
    ObjectKind("Certificate", _CERT_MANAGER, (_AUTHORITY, EXTENDER, SCHEDULER)),
    ObjectKind("Issuer", _CERT_MANAGER, (_AUTHORITY, "gpushare-self-signed")),
    SECRETS,
    ObjectKind("Pod", "/api/v1", ("gpushare-test",)),  # of helm test
    ObjectKind("Lease", "/apis/coordination.k8s.io/v1", (EXTENDER, SCHEDULER)),
)


def holders(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that use a share, in the order of their names."""
    return _asking(pod for pod in pods if pod.node)


def waiting(pods: Iterable[Pod]) -> list[Pod]:
    """Return the Pending pods that request a share."""
    return _asking(pod for pod in pods if not pod.node)


def gated(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that wait behind our scheduling gate, in the order of their names."""
    return sorted((pod for pod in pods if pod.has_our_gate), key=lambda pod: pod.key)


def ungating(pod: Pod) -> dict[str, Any]:
    """Return the strategic merge patch that removes our scheduling gate from exactly this pod."""
    gates = [{"name": GATE_ADMISSION, "$patch": "delete"}]
    return {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": gates}}


def _asking(pods: Iterable[Pod]) -> list[Pod]:
    found = [pod for pod in pods if asks_for_share(pod) and not pod.is_terminal]
    return sorted(found, key=lambda pod: pod.key)


def traces(node: Node, *, labels: bool) -> dict[str, Any]:
    """Return the merge patch that removes gpushare's annotations from a node, else nothing.

    ``labels``: also the label that an operator set.
    """
    metadata: dict[str, Any] = {}
    annotations = {key: None for key in sorted(node.annotations) if key.startswith(OURS)}
    if annotations:
        metadata["annotations"] = annotations
    named = [key for key in sorted(node.labels) if key == LABEL_NODE or key.startswith(OURS)]
    if named and labels:
        metadata["labels"] = dict.fromkeys(named)
    return {"metadata": metadata} if metadata else {}


def totals(node: Node) -> dict[str, Any]:
    """Return the merge patch that removes gpushare's resources from a node's status."""
    status = {}
    for name, amounts in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        there = [key for key in (RESOURCE_MEMORY, RESOURCE_COUNT) if key in amounts]
        if there:
            status[name] = dict.fromkeys(there)
    return {"status": status} if status else {}


def marked(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes where the plugin runs, ran, or is to run."""
    return [
        node
        for node in nodes
        if LABEL_NODE in node.labels or traces(node, labels=True) or totals(node)
    ]


def of_older(nodes: Iterable[Node], pods: Iterable[Pod], system: str) -> list[str]:
    """Return the names of nodes whose ``aliyun.com/gpu-mem`` is Aliyun gpushare's.

    Nodes of gpushare's plugin have an inventory or a pod of it; what the kubelet leaves of its
    totals is not allocatable and has no ``gpu-count``.
    """
    ours = {
        pod.node
        for pod in pods
        if pod.metadata.namespace == system
        and pod.labels.get("app.kubernetes.io/name") == PLUGIN
        and not pod.is_terminal
    }
    return sorted(
        node.name
        for node in nodes
        if ANNOTATION_INVENTORY not in node.annotations
        and node.name not in ours
        and _offers(node.capacity, RESOURCE_MEMORY)
        and (_offers(node.capacity, RESOURCE_COUNT) or _offers(node.allocatable, RESOURCE_MEMORY))
    )


def _offers(amounts: Mapping[str, Any], resource: str) -> bool:
    return str(amounts.get(resource, "0")) not in {"0", ""}


def cleaner(plugin: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """Derive the DaemonSet that removes the plugin's files on ``nodes`` from the plugin's own.

    A pod of it is ready when its node is clean. It waits for the plugin's end by a common lock.
    It mounts the plugin's folders, and the parent of the state folder to remove that, too.
    Raises RecordError for a DaemonSet without the plugin's folders.
    """
    spec = plugin["spec"]["template"]["spec"]
    own = spec["containers"][0]
    hosts = {each["name"]: each for each in spec.get("volumes") or () if "hostPath" in each}
    mounted = {each["name"] for each in own.get("volumeMounts") or ()}
    if missing := [name for name in _NEEDED if name not in hosts or name not in mounted]:
        raise RecordError(
            f"DaemonSet {PLUGIN} has no volume {', '.join(missing)} of the node, so its nodes "
            "cannot be cleaned: apply daemonset/ without changes, and run this again"
        )
    state = hosts[_STATE]
    folder = PurePosixPath(state["hostPath"]["path"])
    above = {"name": _STATE, "hostPath": {"path": str(folder.parent), "type": "Directory"}}
    volumes = [above if each["name"] == _STATE else each for each in spec["volumes"]]
    mounts = [
        {**each, "mountPath": _HOST} if each["name"] == _STATE else each
        for each in own["volumeMounts"]
    ]
    folders = [each for each in mounts if each["name"] in _FLAGS]
    shared = {
        "image": own["image"],
        **({"imagePullPolicy": own["imagePullPolicy"]} if "imagePullPolicy" in own else {}),
        "resources": own.get("resources", {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    cleaning = {
        **shared,
        "name": "clean",
        "command": [
            "gpushare-deviceplugin",
            "--clean",
            f"--state-dir={_HOST}/{folder.name}",
            *(f"{_FLAGS[each['name']]}={each['mountPath']}" for each in folders),
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumeMounts": [each for each in mounts if each["name"] in _NEEDED],
    }
    resting = {**shared, "name": "done", "command": ["sleep", "infinity"]}
    fields = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in nodes
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": fields}}}
    label = {"app.kubernetes.io/name": CLEANER}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": CLEANER,
            "namespace": plugin["metadata"]["namespace"],
            "labels": label,
        },
        "spec": {
            "selector": {"matchLabels": label},
            "template": {
                "metadata": {"labels": label},
                "spec": {
                    "automountServiceAccountToken": False,
                    "affinity": affinity,
                    "tolerations": [{"operator": "Exists"}],
                    "priorityClassName": spec.get("priorityClassName", ""),
                    "imagePullSecrets": spec.get("imagePullSecrets", []),
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": spec.get("securityContext", {}),
                    "initContainers": [cleaning],
                    "containers": [resting],
                    "volumes": [each for each in volumes if each["name"] in _NEEDED],
                },
            },
        },
    }
