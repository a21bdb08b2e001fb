"""Events for operators and for owners of pods, and the log lines that go with them."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extender.watch.audit import Difference
from gpushare.cards.model import Share
from gpushare.clock import Clock
from gpushare.kube.events import Recorder, record
from gpushare.objects.model import Node, Pod
from gpushare.placement.reasons import UNREADABLE, UNREADABLE_CORDON, Reason
from gpushare.text.amounts import needed_gib

log = logging.getLogger(__name__)

# Takes the object, the Event's reason, and its message.
Notice = Callable[[Pod | Node, str, str], None]

MAX_EVENTS: Final = 1000
# A follower's leader reports what both see; what a follower saw just before it became leader may
# not have been reported.
CHANGE_SECONDS: Final = 30.0

_UNREADABLE: Final = {
    UNREADABLE: "GpushareInventoryUnreadable",
    UNREADABLE_CORDON: "GpushareCordonUnreadable",
}


@dataclass(frozen=True, slots=True)
class _Event:
    about: Pod | Node
    reason: str
    message: str
    seen_at: float
    was_leading: bool


class EventQueue:
    """Holds Events until the leader writes them; ``leads`` says whether this replica does."""

    def __init__(self, leads: Callable[[], bool], clock: Clock) -> None:
        self._leads, self._clock = leads, clock
        self._events: asyncio.Queue[_Event] = asyncio.Queue(MAX_EVENTS)

    def put(self, about: Pod | Node, reason: str, message: str) -> None:
        """Add an Event; what does not fit is logged."""
        leads, now = self._leads(), self._clock.monotonic()
        if self._events.full() and not leads:
            self._events.get_nowait()  # the leader reported it long ago
        try:
            self._events.put_nowait(_Event(about, reason, message, now, leads))
        except asyncio.QueueFull:
            log.warning("too many events to tell", extra={"reason": reason, "about": message})

    async def write(self, recorder: Recorder) -> None:
        while True:
            event = await self._events.get()
            age = self._clock.monotonic() - event.seen_at
            if not event.was_leading and age > CHANGE_SECONDS:
                continue
            await record(
                recorder,
                event.about,
                event.reason,
                event.message,
                component="gpushare-extender",
                clock=self._clock,
            )


class Reporter:
    """Logs what becomes an Event, and passes it to ``notice``."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice

    def unreadable(self, node: Node, wrong: str, why: Reason) -> None:
        log.warning("annotation unreadable", extra={"node": node.name, "why": wrong})
        self._notice(node, _UNREADABLE[why], wrong)

    def pending(self, pod: Pod, why: str) -> None:
        self._notice(pod, "GpushareWaiting", f"Pending: {why}")

    def edited(self, pod: Pod) -> None:
        about = {"pod": pod.key, "uid": pod.uid, "node": pod.node}
        log.warning("decision changed by somebody", extra=about)
        self._notice(
            pod,
            "GpushareDecisionChanged",
            "somebody changed the GPU decision of this bound pod; the first decision still counts",
        )

    def unplaced(self, pod: Pod, share: Share, unit_mib: int) -> None:
        about = {"pod": share.pod_key, "uid": pod.uid, "node": share.node}
        log.warning("pod is unplaced", extra={**about, "why": share.why_unplaced})
        amount = needed_gib(share.units * unit_mib)
        text = (
            f"this pod can start on no GPU of node {share.node}, and keeps {amount} of the node's "
            f"sum until it ends: {share.why_unplaced}"
            if share.starts_nowhere
            else f"it is unknown which GPU of node {share.node} this pod uses, so its {amount} "
            f"count on every GPU there: {share.why_unplaced}"
        )
        self._notice(pod, "GpushareUnplaced", text)

    def difference(self, found: Difference, pod: Pod | None, node: Node | None) -> None:
        log.error(
            "ledger differs from pods",
            extra={
                "pod": pod.key if pod is not None else "",
                "uid": found.pod_uid,
                "node": found.node,
                "ledger": found.held,
                "counted": found.counted,
            },
        )
        about = pod if pod is not None else node
        if about is not None:
            self._notice(
                about,
                "GpushareLedgerDiffers",
                f"the extender's ledger has {found.held}; a fresh count gives {found.counted}",
            )
