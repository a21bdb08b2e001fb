"""Apply kube-scheduler's rules on taints, node selectors and node affinity (pure).

The rules are those of the Kubernetes API documentation for ``tolerations``, ``nodeSelector`` and
``requiredDuringSchedulingIgnoredDuringExecution``. kube-scheduler applies them itself before it
calls the extender. They are used here for plans, and for answers to people. An operator or field
that is not known rejects no node: kube-scheduler decides about it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import is_foreign
from gpushare.objects.scheduling import (
    FIELD_NAME,
    REPELLING,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)

UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
_LONGEST: Final = 20  # characters of a number of 64 bits


@dataclass(frozen=True, slots=True)
class ProfileRules:
    """What kube-scheduler's configuration says about all pods of a profile.

    ``resources`` and ``groups`` are the foreign resources that its plugin NodeResourcesFit ignores,
    by name and by what is before the slash (fit.go, fitsRequest). ``added`` is NodeAffinity's
    ``addedAffinity``, which a node has to match in addition to the pod's own.
    """

    resources: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    added: NodeSelector | None = None

    def seen(self, node: Node) -> Node:
        """Return a node with what counts of it."""
        if self.added is not None and not is_selected(node, self.added):
            node = replace(node, is_left_out=True)
        ignored = [name for name in node.allocatable if self._ignores(name)]
        if not ignored:
            return node
        left = {name: much for name, much in node.allocatable.items() if name not in ignored}
        return replace(node, status=replace(node.status, allocatable=left))

    def _ignores(self, name: str) -> bool:
        of_group = name.partition("/")[0] in self.groups
        return is_foreign(name) and (of_group or name in self.resources)


def why_not(pod: Pod, node: Node) -> list[str]:
    """Return each rule by which kube-scheduler rejects ``node`` for ``pod``; empty if none."""
    found = []
    if pod.node and pod.node != node.name:
        found.append("pod names another node in spec.nodeName")
    if node.is_left_out:
        found.append("addedAffinity of kube-scheduler does not select the node")
    tolerations = pod.spec.tolerations or ()
    if node.spec.unschedulable and not is_tolerated(UNSCHEDULABLE, tolerations):
        found.append("node is unschedulable")
    found += [
        f"taint {_shown(taint)} is not tolerated"
        for taint in node.taints
        if taint.effect in REPELLING
        and not is_tolerated(taint, tolerations)
        and not (node.spec.unschedulable and _shown(taint) == _shown(UNSCHEDULABLE))
    ]
    selector = pod.spec.node_selector or {}
    if any(node.labels.get(key) != value for key, value in selector.items()):
        found.append("node does not have the labels of nodeSelector")
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    if affinity and affinity.required is not None and not is_selected(node, affinity.required):
        found.append("node does not match the required node affinity")
    return found


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Return whether one of ``tolerations`` tolerates ``taint``.

    An empty effect matches every effect, an empty key with ``Exists`` every taint.
    """
    return any(_tolerates(each, taint) for each in tolerations)


def is_selected(node: Node, selector: NodeSelector) -> bool:
    """Return whether any term matches. A term that requires nothing does not match."""
    return any(_matches_term(node, term) for term in selector.node_selector_terms or ())


def is_met(labels: Mapping[str, str], requirement: Requirement) -> bool:
    """Return whether labels meet one requirement; an absent label meets NotIn and DoesNotExist.

    Gt and Lt compare integers and need exactly one value. An unreadable value does not meet them.
    """
    values = requirement.values or ()
    there = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return there is not None and there in values
        case "NotIn":
            return there is None or there not in values
        case "Exists":
            return there is not None
        case "DoesNotExist":
            return there is None
        case "Gt" | "Lt":
            mine = _number(there or "")
            other = _number(values[0]) if len(values) == 1 else None
            if mine is None or other is None:
                return False
            return mine > other if requirement.operator == "Gt" else mine < other
        case _:
            return True


def _matches_term(node: Node, term: NodeSelectorTerm) -> bool:
    labels, fields = term.match_expressions or (), term.match_fields or ()
    if not labels and not fields:
        return False
    name = {FIELD_NAME: node.name}
    return all(is_met(node.labels, each) for each in labels) and all(
        not each.is_judged_field or is_met(name, each) for each in fields
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or "Equal":
        case "Equal":
            return (toleration.value or "") == (taint.value or "")
        case _:
            return True


def _number(text: str) -> int | None:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or not 0 <= len(text) <= _LONGEST:
        return None
    return int(text)


def _shown(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
