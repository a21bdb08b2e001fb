"""The keys of Kubernetes objects, to find misspelled ones in files (pure).

Only the keys of the Kubernetes API (core/v1, apps/v1, batch/v1) next to those that have an effect
here. Objects from an API server are not checked: a newer one has more keys.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str | int, ...]
Keys = Mapping[str, "Keys | Items | None"]


@dataclass(frozen=True, slots=True)
class Items:
    """A list whose entries have these keys."""

    of: Keys


def _any(text: str) -> dict[str, None]:
    """Return keys below which nothing is checked."""
    return dict.fromkeys(text.split())


_EXPRESSIONS: Final = Items(_any("key operator values"))
_NODE_TERM: Final[Keys] = {"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}
_NODE_AFFINITY: Final[Keys] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": Items(_NODE_TERM)},
    **_any("preferredDuringSchedulingIgnoredDuringExecution"),
}
_CONTAINER: Final[Keys] = {
    "resources": _any("limits requests claims"),
    **_any(
        "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports "
        "readinessProbe resizePolicy restartPolicy restartPolicyRules securityContext startupProbe "
        "stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices "
        "volumeMounts workingDir"
    ),
}
_POD_SPEC: Final[Keys] = {
    "containers": Items(_CONTAINER),
    "initContainers": Items(_CONTAINER),
    "tolerations": Items(_any("effect key operator tolerationSeconds value")),
    "affinity": {"nodeAffinity": _NODE_AFFINITY, **_any("podAffinity podAntiAffinity")},
    **_any(
        "activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks "
        "ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
        "hostnameOverride imagePullSecrets nodeName nodeSelector os overhead preemptionPolicy "
        "priority priorityClassName readinessGates resourceClaims resources restartPolicy "
        "runtimeClassName schedulerName schedulingGates schedulingGroup securityContext "
        "serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
        "terminationGracePeriodSeconds topologySpreadConstraints volumes workloadRef"
    ),
}
_METADATA: Final = _any(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers "
    "generateName generation labels managedFields name namespace ownerReferences resourceVersion "
    "selfLink uid"
)
_HEAD: Final[Keys] = {**_any("apiVersion kind status"), "metadata": _METADATA}

POD: Final[Keys] = {**_HEAD, "spec": _POD_SPEC, **_any("at delete")}
NODE: Final[Keys] = {
    **_HEAD,
    "spec": {
        "taints": Items(_any("effect key timeAdded value")),
        **_any("configSource externalID podCIDR podCIDRs providerID unschedulable"),
    },
    **_any("at gpus cards unit"),
}
NAMESPACE: Final[Keys] = {**_HEAD, "spec": _any("finalizers"), **_any("at")}
PRIORITY_CLASS: Final[Keys] = {
    **_HEAD,
    **_any("description globalDefault preemptionPolicy value"),
}
WORKLOAD: Final[Keys] = {
    **_HEAD,
    "spec": {
        "template": {"metadata": _METADATA, "spec": _POD_SPEC},
        **_any(
            "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions "
            "managedBy manualSelector maxFailedIndexes minReadySeconds ordinals parallelism paused "
            "persistentVolumeClaimRetentionPolicy podFailurePolicy podManagementPolicy "
            "podReplacementPolicy progressDeadlineSeconds replicas revisionHistoryLimit selector "
            "serviceName strategy successPolicy suspend ttlSecondsAfterFinished updateStrategy "
            "volumeClaimTemplates"
        ),
    },
    **_any("at delete"),
}


_FORMER: Final = "cards"  # of NODE: still read, suggested to nobody
# Kinds whose fields outside of the pod template are those of WORKLOAD.
OF_WORKLOAD: Final = frozenset(
    {"Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"}
)
TEMPLATE: Final[Keys] = {"metadata": _METADATA, "spec": _POD_SPEC}


def unknown(value: Any, keys: Keys | Items | None, place: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield each unknown key by its place, with a suggestion.

    Wrong types are left to the conversion.
    """
    if isinstance(keys, Items):
        for number, each in enumerate(value if isinstance(value, list) else ()):
            yield from unknown(each, keys.of, (*place, number))
    elif keys is not None and isinstance(value, dict):
        for key, each in value.items():
            if key in keys:
                yield from unknown(each, keys[key], (*place, key))
                continue
            known = sorted(name for name in keys if name != _FORMER)
            near = difflib.get_close_matches(str(key), known, 1, 0.6)
            meant = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
            yield (*place, str(key)), f"there is no such key: {meant}"
