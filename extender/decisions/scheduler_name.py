"""Decide which new pods get the second kube-scheduler, and tolerations of GPU nodes (pure).

A pod that names another scheduler than these two, or a node, never changes. The
MutatingAdmissionPolicy in ``daemonset/chart/templates/scheduler-name.yaml`` decides the same.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from extender.decisions import admission_review
from extender.decisions.admission_review import Answer, Container
from extender.decisions.callers import DEFAULT_SCHEDULER
from extender.settings.listeners import AddedToleration, Admission
from gpushare.objects.scheduling import Toleration


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = DEFAULT_SCHEDULER
    node_name: str | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


_decode_pod: Final = msgspec.json.Decoder(_Pod).decode


def decide(review: bytes, given: Admission) -> Answer:
    """Return the response that sets scheduler and tolerations, or one that changes nothing.

    Raise an error of ``gpushare.errors.UNDECODABLE`` if the review cannot be read.
    """
    question = admission_review.read(review)
    spec = None if question.pod is None else _decode_pod(question.pod).spec
    if spec is None or not _is_meant(spec, given.scheduler_name):
        return question.unchanged()
    name, operations = given.scheduler_name, list[dict[str, Any]]()
    if spec.scheduler_name != name:
        operations.append({"op": "add", "path": "/spec/schedulerName", "value": name})
    own = spec.tolerations
    lacking = [_written(each) for each in given.tolerations if not _is_covered(each, own or ())]
    if own is None and lacking:
        operations.append({"op": "add", "path": "/spec/tolerations", "value": lacking})
    else:
        operations += [{"op": "add", "path": "/spec/tolerations/-", "value": t} for t in lacking]
    return question.changed(*operations) if operations else question.unchanged()


def _is_meant(spec: _Spec, name: str) -> bool:
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    is_ours = spec.scheduler_name in {DEFAULT_SCHEDULER, name} and not spec.node_name
    return is_ours and any(
        amounts.memory is not None or amounts.count is not None
        for each in containers
        for amounts in each.amounts
    )


def _is_covered(added: AddedToleration, own: Sequence[Toleration]) -> bool:
    """Return whether one of the pod's tolerations has all the taints of ``added``."""
    return any(
        each.key in {None, "", added.key}
        and each.effect in {None, "", added.effect}
        and (
            each.operator == "Exists"
            or (added.operator == "Equal" and (each.value or "") == added.value)
        )
        for each in own
    )


def _written(added: AddedToleration) -> dict[str, str]:
    fields = {name: getattr(added, name) for name in ("key", "operator", "value", "effect")}
    return {name: value for name, value in fields.items() if value}
