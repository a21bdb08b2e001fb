"""Which patch releases a gated pod: it removes the gate and says where the pod may go (pure).

One strategic merge patch changes all of it or nothing. For a pod that has a scheduling gate, the
API server accepts additions to ``nodeSelector`` and to the required node affinity in the same
request that removes the gate, also if another gate stays. If the pod already has terms of required
node affinity, their number may not change, and a requirement on ``metadata.name`` may have one
value only (pkg/apis/core/validation, since 1.27). So a list of nodes is one term for each node, and
pods with terms of their own get none.
"""

from collections.abc import Sequence
from typing import Any, Final

from gpushare.annotations import slot_hint
from gpushare.contract import ANNOTATION_SLOT, GATE_ADMISSION
from gpushare.objects.model import Pod

MOST_NODES: Final = 8  # of a short list
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def takes_short_list(pod: Pod) -> bool:
    """Return whether the API server accepts a list of nodes for the pod."""
    affinity = pod.spec.affinity
    node_affinity = affinity.node_affinity if affinity is not None else None
    required = node_affinity.required if node_affinity is not None else None
    return required is None or not required.node_selector_terms


def release_patch(
    pod: Pod,
    *,
    node: str = "",
    cards: Sequence[str] = (),
    zone: tuple[str, str] | None = None,
    nodes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the strategic merge patch that removes our gate, and only ours, from ``pod``.

    ``node`` and ``cards`` (UUIDs) are the pod's slot, which is written as a hint; an empty ``node``
    writes none. ``zone`` is the label, and its value, that the pod's node must have. ``nodes`` are
    the only nodes that the pod may go to, MOST_NODES of them at most; they are left out if
    ``takes_short_list`` is False. The API server rejects the patch with 409 if the pod has another
    uid, and with 422 if the pod contradicts it by now. To send it again changes nothing more.
    """
    metadata: dict[str, Any] = {"uid": pod.uid}
    if node:
        metadata["annotations"] = {ANNOTATION_SLOT: slot_hint.encode(node, cards)}
    spec: dict[str, Any] = {"schedulingGates": [{"name": GATE_ADMISSION, "$patch": "delete"}]}
    if zone is not None:
        key, value = zone
        spec["nodeSelector"] = {key: value}
    if nodes and takes_short_list(pod):
        terms = [_only(name) for name in nodes[:MOST_NODES]]
        spec["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}
    return {"metadata": metadata, "spec": spec}


def _only(node: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
