"""Checks of pods that ask for GPU memory: what holds them up, what they hold wrongly (pure)."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

from gpushare.annotations import inventory
from gpushare.annotations.pod_annotations import (
    asks_for_share,
    contradicts_decision,
    request_of,
    share_of,
)
from gpushare.cards.model import Inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INVENTORY,
    CONDITION_CARD_USABLE,
    RESOURCE_MEMORY,
)
from gpushare.errors import RecordError, RequestError
from gpushare.objects.model import Node
from gpusharectl.doctor.checks.facts import PLUGIN, Facts, SeenPod
from gpusharectl.doctor.checks.findings import Check, Finding, problem, warning

LATE: Final = dt.timedelta(minutes=5)  # an image may take so long to be pulled

_REFUSED_REASON: Final = "UnexpectedAdmissionError"  # the kubelet's, where Allocate fails

_GROUP: Final = "Pods"
_REPLACE: Final = (
    "delete it, and let its owner make another: kubectl -n {namespace} delete pod {name}"
)

WITHOUT_DECISION = problem(
    "PodWithoutDecision",
    "nobody knows which card it has, so its amount is taken from every card of the node, and its "
    "containers do not start; another kube-scheduler than one with the extender placed it",
    f"see that its kube-scheduler has the extender (above), then {_REPLACE}",
)
UNPLACED = problem(
    "PodUnplaced",
    "its amount is taken from every card of the node, so that no card is promised twice",
    _REPLACE,
)
CANNOT_START = problem(
    "PodCannotStart",
    "a container of it was refused, and the kubelet tries again",
    "kubectl -n {namespace} describe pod {name}; docs/troubleshooting.md, GpushareCannotStart; "
    "without an owner it is not evicted: delete it, and make it again",
)
NOT_STARTED = warning(
    "PodNotStarted",
    "it holds its share and does not run",
    "kubectl -n {namespace} describe pod {name} says what it waits for",
)
REFUSED = problem(
    "PodRefused",
    "no node can ever grant that",
    "change what it asks for: docs/contract.md, What a user writes",
)
CONTRADICTED = warning(
    "PodContradicted",
    "somebody wrote over what gpushare had written; the extender believes what it saw first",
    f"find who did it in metadata.managedFields, then {_REPLACE}",
)


def _live(facts: Facts) -> Iterator[SeenPod]:
    for pod in facts.pods:
        if not pod.is_terminal and asks_for_share(pod):
            yield pod


def _have_cards(facts: Facts) -> Iterator[Finding]:
    there = {pod.node for pod in facts.pods_of(PLUGIN)}
    inventories = {
        node.name: _inventory(node)
        for node in facts.nodes
        # Without its inventory a node of ours must not be read as one of the older plugin.
        if node.name not in there or ANNOTATION_INVENTORY in node.annotations
    }
    for pod in facts.pods:
        if _was_refused(pod):
            found = (
                f"the kubelet of node {pod.node} refused it: it came without a decision on a card"
            )
            yield WITHOUT_DECISION.of(pod.key, found, **_words(pod))
    for pod in _live(facts):
        share = share_of(pod, inventories.get(pod.node))
        if share is None or not share.is_unplaced:
            continue
        words = _words(pod)
        decided = pod.annotations.get(ANNOTATION_CARDS) or pod.annotations.get(ANNOTATION_INDEX)
        if decided is None:
            found = f"it is bound to node {pod.node} without a decision on a card"
            yield WITHOUT_DECISION.of(pod.key, found, **words)
        else:
            yield UNPLACED.of(pod.key, f"on node {pod.node}: {share.why_unplaced}", **words)


def _was_refused(pod: SeenPod) -> bool:
    """Whether it is Failed because the plugin found no decision on it when it was admitted."""
    is_ours = bool(pod.node) and asks_for_share(pod) and pod.status.reason == _REFUSED_REASON
    return is_ours and ANNOTATION_INDEX not in pod.annotations


def _inventory(node: Node) -> Inventory | None:
    try:
        return inventory.of_node(node, unit_mib=1)
    except RecordError:
        return None


def _words(pod: SeenPod) -> dict[str, str]:
    return {"namespace": pod.metadata.namespace, "name": pod.metadata.name}


def _start(facts: Facts) -> Iterator[Finding]:
    for pod in _live(facts):
        usable = pod.condition(CONDITION_CARD_USABLE)
        if usable is not None and usable.status == "False":
            found = f"{usable.reason or 'no reason'}: {usable.message or ''}".rstrip(": ")
            yield CANNOT_START.of(pod.key, found, **_words(pod))
            continue
        since = _decided_at(pod)
        is_waiting = pod.annotations.get(ANNOTATION_ASSIGNED) == "false" and not pod.has_started
        if pod.node and is_waiting and since is not None and facts.now - since > LATE:
            minutes = int((facts.now - since).total_seconds() // 60)
            found = f"decided on {minutes} minutes ago, and no container has run"
            yield NOT_STARTED.of(pod.key, found, **_words(pod))


def _decided_at(pod: SeenPod) -> dt.datetime | None:
    written = pod.annotations.get(ANNOTATION_ASSUME_TIME, "")
    if not (written.isascii() and written.isdigit() and len(written) <= 20):  # noqa: PLR2004 - ns
        return None
    try:
        return dt.datetime.fromtimestamp(int(written) / 1e9, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _can_be_granted(facts: Facts) -> Iterator[Finding]:
    for pod in _live(facts):
        if pod.node:
            continue
        try:
            request_of(pod)
        except RequestError as err:
            yield REFUSED.of(pod.key, str(err))


def _are_as_decided(facts: Facts) -> Iterator[Finding]:
    for pod in _live(facts):
        if contradicts_decision(pod):
            found = "gpushare.aliyun.com/running-on names other cards than were decided on"
            yield CONTRADICTED.of(pod.key, found, **_words(pod))


CHECKS: Final = (
    Check(_GROUP, f"what they ask for of {RESOURCE_MEMORY} can be understood", _can_be_granted),
    Check(_GROUP, "those on a node have a card that can be told", _have_cards),
    Check(_GROUP, "those with a card start", _start),
    Check(_GROUP, "what stands on them does not contradict itself", _are_as_decided),
)
