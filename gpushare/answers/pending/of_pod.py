"""What a pod itself says about why it is Pending (pure)."""

from gpushare.annotations import pod_annotations
from gpushare.annotations.slot_hint import is_nominated
from gpushare.answers.gangs import GangView
from gpushare.answers.pending.facts import ENDING, GATED, UNREADABLE, UNSEEN, WITHOUT, Pending
from gpushare.answers.pending.scheduler_message import brief, message_of, silent_scheduler
from gpushare.contract import GATE_ADMISSION
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.text.listed import listed


def unseen(pod: Pod, unit_mib: int = 0) -> Pending:
    """Return what the pod itself says, for a caller who may not read all nodes and pods.

    Without nodes the unit is not known, and 0.
    """
    if not pod_annotations.asks_for_share(pod):
        return without_memory(pod, None)
    try:
        request = pod_annotations.request_of(pod)
    except RequestError as err:
        return Pending(UNREADABLE, text=str(err))
    return Pending(
        state(pod) or UNSEEN,
        needs_units=request.units_per_card,
        needs_mib=request.units_per_card * unit_mib,
        gpus=request.card_count,
        text=brief(message_of(pod)),
        gates=gates(pod),
        nominated=makes_room_on(pod),
        scheduler=silent_scheduler(pod),
        held=pod.waits_for_admission,
    )


def without_memory(pod: Pod, gang: GangView | None, *, gates_stay: bool = False) -> Pending:
    return Pending(
        state(pod) or WITHOUT,
        text=brief(message_of(pod)),
        gates=gates(pod),
        nominated=makes_room_on(pod),
        scheduler=silent_scheduler(pod),
        gang=gang,
        held=pod.waits_for_admission,
        gates_stay=gates_stay,
    )


def state(pod: Pod) -> str:
    """Return the cause if the pod itself keeps kube-scheduler from trying."""
    if pod.metadata.deletion_timestamp is not None:
        return ENDING
    return GATED if pod.has_foreign_gate else ""


def gates(pod: Pod) -> str:
    """Return the gates that others remove; the extender removes its own one when there is room."""
    return listed([gate for gate in pod.gates if gate != GATE_ADMISSION])


def makes_room_on(pod: Pod) -> str:
    """Return the node where kube-scheduler evicts pods for this one, or an empty string."""
    return "" if is_nominated(pod) else pod.status.nominated_node_name or ""
