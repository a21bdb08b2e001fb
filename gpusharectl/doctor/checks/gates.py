"""Check the scheduling gate: what adds it, what removes it, and what stands in its way (pure)."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

from gpushare.contract import ANNOTATION_QUOTA, GATE_ADMISSION, LABEL_QUEUE, RESOURCE_MEMORY
from gpushare.text.listed import listed
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import NOMINATES, PATCHES, Facts, Unknown
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.versions import minor_of

POLICY: Final = "gpushare-gates"
POLICIES_SINCE: Final = (1, 30)
SECONDS: Final = 60.0  # within which an extender with gates: false releases a pod
_COMPONENT: Final = "the component gates or gates-webhook (gates.enabled)"

PODS_NOT_GATED = warning(
    "PodsNotGated",
    "pods with GPU memory, and members of gangs, begin without the scheduling gate there, so "
    "kube-scheduler tries them again and again while there is no room",
    f"install {_COMPONENT}, or remove the label: kubectl label namespace {{about}} {LABEL_QUEUE}-",
    page="installation-options.md#gates",
)
PODS_STAY_GATED = problem(
    "PodsStayGated",
    f"nothing removes the scheduling gate {GATE_ADMISSION} from them, so they wait for ever",
    f"install {_COMPONENT}, which gives the extender the right to patch pods; to do without gates, "
    "set gates: false in the extender's configuration, and remove the component once no pod is "
    "gated",
    page="installation-options.md#gates",
)
GATE_UNPROTECTED = warning(
    "GateUnprotected",
    "anyone who may patch pods can remove the scheduling gate from a member of a gang",
    f"apply {_COMPONENT} again (helm upgrade, or kubectl apply -k YOUR-KUSTOMIZATION)",
    page="installation-options.md#gates",
)
QUOTA_IN_QUEUE = warning(
    "QuotaInQueue",
    "it counts pods from their creation, gated ones too, and those that exceed it are rejected "
    "when they are created, instead of waiting: a gang may then never be complete",
    f"write the limit into the annotation {ANNOTATION_QUOTA}, over which pods wait, and remove "
    f"requests.{RESOURCE_MEMORY} from the ResourceQuota: kubectl annotate --overwrite namespace "
    f"{{namespace}} {ANNOTATION_QUOTA}={{hard}} && kubectl -n {{namespace}} edit resourcequota "
    "{name}",
    page="queue.md#resourcequota",
)


def _pods_are_gated(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.queues, Unknown):
        yield unchecked(f"namespaces with the label {LABEL_QUEUE}=true", facts.queues)
    elif isinstance(facts.gating, Unknown):
        yield unchecked("what gates pods", facts.gating)
    elif not facts.gating:
        found = (
            f"label {LABEL_QUEUE}=true, and neither a MutatingAdmissionPolicyBinding nor a "
            "MutatingWebhookConfiguration gpushare-gates"
        )
        for name in sorted(facts.queues):
            yield PODS_NOT_GATED.of(name, found)


def _no_queue(facts: Facts) -> str:
    return "" if facts.queues else f"no namespace has the label {LABEL_QUEUE}=true"


def _gated(facts: Facts) -> list[SeenPod]:
    return [pod for pod in facts.pods if pod.has_our_gate and not pod.is_terminal]


def _gated_pods_are_released(facts: Facts) -> Iterator[DoctorFinding]:
    pods = sorted(_gated(facts), key=lambda pod: pod.key)
    if not pods:
        return
    about = listed([pod.key for pod in pods], 1)
    may_release = facts.permissions.get(PATCHES)
    if isinstance(may_release, Unknown):
        yield unchecked("the right of gpushare-extender to patch pods", may_release)
    elif may_release is False:
        yield PODS_STAY_GATED.of(about, "gated, and gpushare-extender may not patch pods")
    elif isinstance(facts.gates, Unknown):
        yield unchecked("the setting gates of the extender", facts.gates)
    elif facts.gates is False and any(_is_older(pod, facts.now) for pod in pods):
        yield PODS_STAY_GATED.of(about, "gated, although the extender has the setting gates: false")


def _is_older(pod: SeenPod, now: dt.datetime) -> bool:
    created = pod.metadata.creation_timestamp or ""
    try:
        return (now - dt.datetime.fromisoformat(created)).total_seconds() > SECONDS
    except (ValueError, TypeError):
        return False


def _no_gated_pod(facts: Facts) -> str:
    return "" if _gated(facts) else "no pod is gated"


def _gate_is_protected(facts: Facts) -> Iterator[DoctorFinding]:
    if not _has_gates(facts):
        return
    for what, there in (("policy", facts.policies), ("binding", facts.policy_bindings)):
        if isinstance(there, Unknown):
            yield unchecked(f"admission {what} of the scheduling gate", there)
            continue
        kind = "ValidatingAdmissionPolicy" + ("Binding" if what == "binding" else "")
        if POLICY not in there:
            yield GATE_UNPROTECTED.of(POLICY, f"{kind} {POLICY} is missing")


def _no_gates(facts: Facts) -> str:
    version = "" if isinstance(facts.server, Unknown) else facts.server
    if (minor_of(version) or POLICIES_SINCE) < POLICIES_SINCE:
        return f"Kubernetes {version} has no admission policies"
    return "" if _has_gates(facts) else "the component gates is not installed"


def _has_gates(facts: Facts) -> bool:
    adds = not isinstance(facts.gating, Unknown) and bool(facts.gating)
    return adds or facts.permissions.get(NOMINATES) is True


def _quotas_let_pods_wait(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.queues, Unknown):
        yield unchecked(f"namespaces with the label {LABEL_QUEUE}=true", facts.queues)
    elif isinstance(facts.limits, Unknown):
        yield unchecked("quotas of namespaces", facts.limits)
    elif isinstance(facts.quotas, Unknown):
        yield unchecked("resource quotas", facts.quotas)
    else:
        limited = {each.name for each in facts.limits}
        for quota in facts.quotas:
            name = quota.namespace
            if name in facts.queues:
                found = f"it limits {RESOURCE_MEMORY} in a namespace with the label {LABEL_QUEUE}"
            elif name in limited:
                where = f"in a namespace with the annotation {ANNOTATION_QUOTA}"
                found = f"it limits {RESOURCE_MEMORY} {where}"
            else:
                continue
            about, words = f"{name}/{quota.name}", {"namespace": name, "name": quota.name}
            yield QUOTA_IN_QUEUE.of(about, found, hard=quota.hard, **words)


def _no_queue_and_no_limit(facts: Facts) -> str:
    return "" if facts.queues or facts.limits else "no namespace has a queue or a quota"


_GROUP: Final = "Scheduling gate"
CHECKS: Final = (
    Check(
        _GROUP,
        "pods are gated where the label says so",
        _pods_are_gated,
        subjects.first_of(subjects.installation, _no_queue),
    ),
    Check(_GROUP, "gated pods are released", _gated_pods_are_released, _no_gated_pod),
    Check(_GROUP, "only the extender releases pods", _gate_is_protected, _no_gates),
    Check(
        _GROUP,
        "no quota rejects pods that should wait",
        _quotas_let_pods_wait,
        _no_queue_and_no_limit,
    ),
)
