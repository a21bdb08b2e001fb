"""What an operator or a pod's owner should know of: each thing is logged and told once."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from extender.watch.audit import Difference
from gpushare.cards.model import Share
from gpushare.objects.model import Node, Pod
from gpushare.placement.reasons import UNREADABLE, UNREADABLE_CORDON, Reason

log = logging.getLogger(__name__)

# About what, the event's reason, and its message.
Notice = Callable[[Pod | Node, str, str], None]

_UNREADABLE: Final = {
    UNREADABLE: "GpushareInventoryUnreadable",
    UNREADABLE_CORDON: "GpushareCordonUnreadable",
}


class Notices:
    """``notice`` takes what becomes an event.

    ``changed_decisions`` are uids of pods whose decision somebody changed, ``differences`` counts
    what the ledger has had otherwise than a fresh count.
    """

    def __init__(self, notice: Notice) -> None:
        self.changed_decisions: set[str] = set()
        self.differences = 0
        self._notice = notice
        self._unplaced: set[str] = set()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self.changed_decisions.discard(uid)
        self._unplaced.discard(uid)

    def unreadable(self, node: Node, wrong: str, why: Reason) -> None:
        """An annotation of the node cannot be read, for a reason that is new."""
        log.warning("annotation unreadable", extra={"node": node.name, "why": wrong})
        self._notice(node, _UNREADABLE[why], wrong)

    def waits(self, pod: Pod, said: str) -> None:
        """No node would do, and the pod does not know yet."""
        self._notice(pod, "GpushareWaiting", said)

    def decision_changed(self, pod: Pod) -> None:
        if pod.uid in self.changed_decisions:
            return
        self.changed_decisions.add(pod.uid)
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        log.warning("decision changed by somebody", extra=about)
        self._notice(
            pod,
            "GpushareDecisionChanged",
            "somebody changed the GPU decision of this bound pod; what was decided at first counts",
        )

    def unplaced(self, pod: Pod, share: Share) -> None:
        if pod.uid in self._unplaced:
            return
        self._unplaced.add(pod.uid)
        about = {"pod": share.pod_key, "uid": pod.uid, "node": share.node}
        log.warning("pod is unplaced", extra={**about, "why": share.why_unplaced})
        self._notice(
            pod,
            "GpushareUnplaced",
            f"which GPU of node {share.node} this pod uses cannot be told, so its "
            f"{share.units} units are taken from every one: {share.why_unplaced}",
        )

    def placed(self, uid: str) -> None:
        """Should the pod's card be lost again, that is news."""
        self._unplaced.discard(uid)

    def differ(self, found: Iterable[tuple[Difference, Pod | None, Node | None]]) -> None:
        """The ledger has been otherwise than a fresh count, in these, of this pod or node."""
        for each, pod, node in found:
            self.differences += 1
            log.error(
                "ledger differs from pods",
                extra={
                    "pod": pod.key if pod is not None else "",
                    "uid": each.pod_uid,
                    "node": each.node,
                    "ledger": each.held,
                    "counted": each.counted,
                },
            )
            about = pod if pod is not None else node
            if about is not None:
                self._notice(
                    about,
                    "GpushareLedgerDiffers",
                    f"the extender's ledger has {each.held}; a fresh count gives {each.counted}",
                )
