"""Check pods that request GPU memory (pure)."""

import datetime as dt
from collections.abc import Iterator
from itertools import islice
from typing import Final

from gpushare.annotations import inventory
from gpushare.annotations.edited_decisions import contradicts_decision
from gpushare.annotations.mistaken_names import suggestion
from gpushare.annotations.pod_annotations import asks_for_share, request_of, share_of
from gpushare.cards.model import Inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INVENTORY,
    CONDITION_CARD_USABLE,
    RESOURCE_MEMORY,
    TAINT_NOT_READY,
)
from gpushare.errors import RecordError, RequestError
from gpushare.objects.model import Node
from gpushare.objects.scheduling import SOFT, Taint
from gpushare.placement.node_constraints import is_tolerated
from gpushare.text.counted import counted
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import PLUGIN, SECOND_SCHEDULER, Facts
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import shared_nodes

LATE: Final = dt.timedelta(minutes=5)  # pulling an image may take this long

_MOST_NAMES: Final = 64
_MOST_TAINTS: Final = 3
_STATES: Final = ("node.kubernetes.io/", TAINT_NOT_READY)  # not written by an administrator
_SCHEDULERS: Final = {"default-scheduler", SECOND_SCHEDULER}
_REFUSED_REASON: Final = "UnexpectedAdmissionError"  # the kubelet's if Allocate fails

_GROUP: Final = "Pods"
_REPLACE: Final = "delete it; its owner creates another: kubectl -n {namespace} delete pod {name}"

TAINT_NOT_TOLERATED = problem(
    "TaintNotTolerated",
    "no pod with GPU memory is placed on any node",
    "write the toleration into the pods, or, with a second scheduler and Helm, into "
    "secondScheduler.podTolerations, which adds it to new ones",
    page="install.md#taints-of-gpu-nodes",
)
WITHOUT_DECISION = problem(
    "PodWithoutDecision",
    "its containers do not start: a kube-scheduler without the extender placed it, or it was "
    "created with spec.nodeName",
    f"configure the extender in its kube-scheduler (above), or omit spec.nodeName; then {_REPLACE}",
    page="troubleshooting.md#kube-scheduler-does-not-ask-the-extender",
)
UNPLACED = problem(
    "PodUnplaced",
    "its units count on every GPU of the node, so that no unit is used twice",
    _REPLACE,
    page="troubleshooting.md#gpushareunplaced",
)
CANNOT_START = problem(
    "PodCannotStart",
    "the plugin rejected one of its containers, and the kubelet retries",
    "kubectl -n {namespace} describe pod {name}; "
    "a pod without an owner is not evicted: delete it, and create it again",
    page="troubleshooting.md#gpusharecannotstart",
)
NOT_STARTED = warning(
    "PodNotStarted",
    "it uses its share and does not run",
    "see why: kubectl -n {namespace} describe pod {name}",
)
REFUSED = problem(
    "PodRefused",
    "no node can ever grant this",
    "correct the pod template as the text says",
    page="reference/labels-and-annotations.md#what-a-user-writes",
)
MISTAKEN = warning(
    "MistakenResource",
    "no node offers this resource, and gpushare does not see the request",
    "correct the pod template: aliyun.com/gpu-mem is the resource of gpushare",
    page="reference/labels-and-annotations.md#what-a-user-writes",
)
CONTRADICTED = warning(
    "PodContradicted",
    "somebody overwrote gpushare's annotations; the extender keeps what it saw first",
    f"find the writer in metadata.managedFields, then {_REPLACE}",
)


def _have_cards(facts: Facts) -> Iterator[DoctorFinding]:
    there = {pod.node for pod in facts.pods_of(PLUGIN)}
    inventories = {
        node.name: _inventory(node)
        for node in facts.nodes
        # Without its inventory a gpushare node looks like one of Aliyun gpushare.
        if node.name not in there or ANNOTATION_INVENTORY in node.annotations
    }
    for pod in facts.pods:
        if _was_refused(pod):
            found = f"the kubelet of node {pod.node} rejected it: it had no decision on a GPU"
            yield WITHOUT_DECISION.of(pod.key, found, **_words(pod))
    for pod in subjects.requests_share(facts):
        share = share_of(pod, inventories.get(pod.node))
        if share is None or not share.is_unplaced:
            continue
        words = _words(pod)
        decided = pod.annotations.get(ANNOTATION_CARDS) or pod.annotations.get(ANNOTATION_INDEX)
        if decided is None:
            found = f"it is bound to node {pod.node} without a decision on a GPU"
            yield WITHOUT_DECISION.of(pod.key, found, **words)
        else:
            yield UNPLACED.of(pod.key, f"on node {pod.node}: {share.why_unplaced}", **words)


def _was_refused(pod: SeenPod) -> bool:
    """Return true if it Failed because it had no decision at admission."""
    is_ours = bool(pod.node) and asks_for_share(pod) and pod.status.reason == _REFUSED_REASON
    return is_ours and ANNOTATION_INDEX not in pod.annotations


def _inventory(node: Node) -> Inventory | None:
    try:
        return inventory.of_node(node, unit_mib=1)
    except RecordError:
        return None


def _words(pod: SeenPod) -> dict[str, str]:
    return {"namespace": pod.metadata.namespace, "name": pod.metadata.name}


def _start(facts: Facts) -> Iterator[DoctorFinding]:
    for pod in subjects.requests_share(facts):
        usable = pod.condition(CONDITION_CARD_USABLE)
        if usable is not None and usable.status == "False":
            found = f"{usable.reason or 'no reason'}: {usable.message or ''}".rstrip(": ")
            yield CANNOT_START.of(pod.key, found, **_words(pod))
            continue
        since = _decided_at(pod)
        is_waiting = pod.annotations.get(ANNOTATION_ASSIGNED) == "false" and not pod.has_started
        if pod.node and is_waiting and since is not None and facts.now - since > LATE:
            minutes = int((facts.now - since).total_seconds() // 60)
            found = f"its GPU was decided {minutes} minutes ago, and no container has run"
            yield NOT_STARTED.of(pod.key, found, **_words(pod))


def _decided_at(pod: SeenPod) -> dt.datetime | None:
    written = pod.annotations.get(ANNOTATION_ASSUME_TIME, "")
    if not (written.isascii() and written.isdigit() and len(written) <= 20):  # noqa: PLR2004 - ns
        return None
    try:
        return dt.datetime.fromtimestamp(int(written) / 1e9, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _can_be_granted(facts: Facts) -> Iterator[DoctorFinding]:
    for pod in subjects.requests_share(facts):
        if pod.node:
            continue
        try:
            request_of(pod)
        except RequestError as err:
            yield REFUSED.of(pod.key, str(err))


def _request_what_is_offered(facts: Facts) -> Iterator[DoctorFinding]:
    offered = {name for node in facts.nodes for name in node.capacity}
    for pod in _pending_here(facts):
        # A user chooses how many names a pod has.
        named = (item for each in pod.all_containers for item in each.amounts.items())
        names = islice(dict.fromkeys(named), _MOST_NAMES)
        texts = [suggestion(name, amount) for name, amount in names if name not in offered]
        if found := [text for text in texts if text]:
            yield MISTAKEN.of(pod.key, found[0])


def _pending_here(facts: Facts) -> Iterator[SeenPod]:
    """Yield the Pending pods that no other product's scheduler places."""
    for pod in facts.pods:
        if not pod.node and not pod.is_terminal and pod.scheduler in _SCHEDULERS:
            yield pod


def _none_is_pending(facts: Facts) -> str:
    if any(True for _ in _pending_here(facts)):
        return ""
    return f"no pod of {' or '.join(sorted(_SCHEDULERS))} is Pending"


def _tolerate_taints(facts: Facts) -> Iterator[DoctorFinding]:
    waiting = [pod for pod in subjects.requests_share(facts) if not pod.node]
    nodes = shared_nodes(facts)
    taints = {taint for node in nodes for taint in node.taints if _keeps_pods_off(taint)}
    for pod in waiting:
        taints = {each for each in taints if not is_tolerated(each, pod.spec.tolerations or ())}
    firsts = [next((each for each in node.taints if each in taints), None) for node in nodes]
    named = list(dict.fromkeys(f"{each.key}:{each.effect}" for each in firsts if each is not None))
    if None in firsts or not waiting or not nodes:
        return
    found = (
        f"each has a taint that none of {counted(len(waiting), 'Pending pod')} with "
        f"{RESOURCE_MEMORY} tolerates: {', '.join(named[:_MOST_TAINTS])}"
    )
    yield TAINT_NOT_TOLERATED.of(counted(len(nodes), "shared node"), found)


def _keeps_pods_off(taint: Taint) -> bool:
    return taint.effect != SOFT and not taint.key.startswith(_STATES)


def _are_as_decided(facts: Facts) -> Iterator[DoctorFinding]:
    for pod in subjects.requests_share(facts):
        if contradicts_decision(pod):
            found = "gpushare.aliyun.com/running-on names other GPUs than were decided"
            yield CONTRADICTED.of(pod.key, found, **_words(pod))


def _no_pod_was_bound(facts: Facts) -> str:
    return "" if any(map(_was_refused, facts.pods)) else subjects.bound_request(facts)


CHECKS: Final = (
    Check(
        _GROUP,
        f"requests for {RESOURCE_MEMORY} are valid",
        _can_be_granted,
        subjects.pending_request,
    ),
    Check(
        _GROUP,
        "Pending pods mistake no other resource for it",
        _request_what_is_offered,
        subjects.first_of(subjects.installation, _none_is_pending),
    ),
    Check(
        _GROUP,
        "Pending pods tolerate the taints of shared nodes",
        _tolerate_taints,
        subjects.first_of(subjects.installation, subjects.shared, subjects.pending_request),
    ),
    Check(_GROUP, "the GPUs of bound pods are known", _have_cards, _no_pod_was_bound),
    Check(_GROUP, "pods with a GPU start", _start, subjects.bound_request),
    Check(_GROUP, "pod annotations are consistent", _are_as_decided, subjects.request),
)
