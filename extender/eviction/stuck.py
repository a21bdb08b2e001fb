"""Which pods wait for a card that they cannot get, and when a new decision is due (pure).

The plugin says on a pod that its decision cannot be kept; it may not delete pods, and the kubelet
would retry for ever. So the extender evicts, where a new pod would be decided on anew.
"""

from collections.abc import Iterable
from typing import Final

from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.objects.model import Pod

# Reasons of the condition that do not pass by themselves, and those that may.
AT_ONCE: Final = frozenset({"AnswerStale"})
PATIENTLY: Final = frozenset({"CardGone", "CardUnhealthy", "CardTooFull"})


def why_stuck(pod: Pod) -> str:
    """The reason for which ``pod`` waits, if a new decision would help; else empty.

    Never a pod one of whose containers runs, whoever has written the condition; nor one that
    nothing would make anew: it would be lost.
    """
    condition = pod.condition(CONDITION_CARD_USABLE)
    if condition is None or condition.status != "False" or not pod.node or not pod.has_controller:
        return ""
    if pod.is_terminal or pod.runs or pod.metadata.deletion_timestamp is not None:
        return ""
    reason = condition.reason or ""
    return reason if reason in AT_ONCE or reason in PATIENTLY else ""


class Patience:
    """How long each pod has been stuck, by the clock of who asks: never by a node's timestamps."""

    def __init__(self, after_seconds: float) -> None:
        self._after = after_seconds
        self._since: dict[str, float] = {}

    def due(self, pods: Iterable[Pod], now: float) -> list[tuple[Pod, str]]:
        """Those of ``pods``, which are all in trouble, that have waited long enough, and why."""
        stuck = {pod.uid: (pod, why) for pod in pods if (why := why_stuck(pod))}
        self._since = {uid: self._since.get(uid, now) for uid in stuck}
        return [
            (pod, why)
            for uid, (pod, why) in stuck.items()
            if why in AT_ONCE or now - self._since[uid] >= self._after
        ]
