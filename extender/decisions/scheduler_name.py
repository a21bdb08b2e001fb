"""Decide which new pods get the second kube-scheduler (pure).

A pod that names another scheduler than the default one, or a node, never changes.
"""

from typing import Final

import msgspec

from extender.decisions import admission_review
from extender.decisions.admission_review import Answer, Container

# The API server has set this name if the pod's author wrote none.
DEFAULT_SCHEDULER: Final = "default-scheduler"


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = DEFAULT_SCHEDULER
    node_name: str | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


_decode_pod: Final = msgspec.json.Decoder(_Pod).decode


def decide(review: bytes, name: str) -> Answer:
    """Return the response that sets ``name`` as the scheduler, or one that changes nothing.

    Raise an error of ``gpushare.errors.UNDECODABLE`` if the review cannot be read.
    """
    question = admission_review.read(review)
    if question.pod is None or not _is_meant(_decode_pod(question.pod).spec):
        return question.unchanged()
    return question.changed({"op": "add", "path": "/spec/schedulerName", "value": name})


def _is_meant(spec: _Spec) -> bool:
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    is_default = spec.scheduler_name == DEFAULT_SCHEDULER and not spec.node_name
    return is_default and any(
        amounts.memory is not None or amounts.count is not None
        for each in containers
        for amounts in each.amounts
    )
