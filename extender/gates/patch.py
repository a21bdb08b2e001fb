"""Which patches release a gated pod: they nominate its node, and remove the gate (pure).

kube-scheduler first tries the nominated node by itself, and tries the others only if the pod does
not fit there (schedule_one.go, evaluateNominatedNode): in a large cluster most of the work for a
pod is saved. Until the pod is bound, pods of its or a lower priority get no more of the node than
it leaves.

One strategic merge patch of the pod changes all of it or nothing. For a pod that has a scheduling
gate, the API server accepts additions to ``nodeSelector`` in the same request that removes the
gate, also if another gate stays (pkg/apis/core/validation, since 1.27).
"""

from collections.abc import Sequence
from typing import Any

from gpushare.annotations import slot_hint
from gpushare.contract import ANNOTATION_SLOT, GATE_ADMISSION
from gpushare.objects.model import Pod


def nomination_patch(pod: Pod, node: str, cards: Sequence[str]) -> dict[str, Any]:
    """Return the strategic merge patch of the status that nominates the node of the pod's slot.

    It writes the slot as a hint too: a nominated node that the hint names was nominated by this.
    """
    return {
        "metadata": {"uid": pod.uid, "annotations": _hint(node, cards)},
        "status": {"nominatedNodeName": node},
    }


def no_nomination_patch(pod: Pod) -> dict[str, Any]:
    """Return the strategic merge patch of the status that removes the nominated node."""
    return {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": None}}


def release_patch(
    pod: Pod,
    *,
    node: str = "",
    cards: Sequence[str] = (),
    zone: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Return the strategic merge patch that removes our gate, and only ours, from ``pod``.

    ``node`` and ``cards`` (UUIDs) are the pod's slot, which is written as a hint; an empty ``node``
    writes none. ``zone`` is the label, and its value, that the pod's node must have. The API server
    rejects the patch with 409 if the pod has another uid, and with 422 if the pod contradicts it by
    now. To send it again changes nothing more.
    """
    metadata: dict[str, Any] = {"uid": pod.uid}
    if node:
        metadata["annotations"] = _hint(node, cards)
    spec: dict[str, Any] = {"schedulingGates": [{"name": GATE_ADMISSION, "$patch": "delete"}]}
    if zone is not None:
        key, value = zone
        spec["nodeSelector"] = {key: value}
    return {"metadata": metadata, "spec": spec}


def _hint(node: str, cards: Sequence[str]) -> dict[str, str]:
    return {ANNOTATION_SLOT: slot_hint.encode(node, cards)}
