"""bind: pick the cards, hold them, and write decision and node in one request."""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.watch.cluster import Cluster
from extender.wire import BindingArgs
from gpushare.annotations import pod_annotations
from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_INDEX
from gpushare.errors import (
    ApiError,
    Conflict,
    GpushareError,
    NoRoom,
    NotFound,
    OutcomeUnknown,
)
from gpushare.ledger.ledger import Reserve
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

# kube-scheduler hangs up after 5 s (its httpTimeout); a read, a write and a read end before that,
# and there is time to hand the call on to the leader and its answer back (``forward.SECONDS``).
ANSWER_SECONDS: Final = 4.6
WRITE_SECONDS: Final = 3.0
# A network that comes back must not deliver a write that was sent into it long ago. The kernel
# counts from when it first sends something again, up to a second after the first time: so it
# delivers nothing any more once a write's whole time is over.
UNACKNOWLEDGED_SECONDS: Final = WRITE_SECONDS - 1.0
READ_SECONDS: Final = 0.75
# With less than that left a write is not begun: its outcome would only too often be unknown.
LEAST_WRITE_SECONDS: Final = 1.0
# At 10 ms each that is 1,600 a second, more than kube-scheduler can use. Each one that is under way
# may stand before a filter, and for a filter kube-scheduler waits with all its pods.
WRITES_AT_ONCE: Final = 16


class BindRefused(GpushareError):
    """The pod was not bound; the text is for its owner, ``outcome`` is a word for the metric."""

    def __init__(self, message: str, outcome: str = "refused") -> None:
        super().__init__(message)
        self.outcome = outcome


class TooManyBinds(ApiError):
    """Nothing was written: the queue before the API server is too long."""


@dataclass(frozen=True, slots=True)
class _Decision:
    reserve: Reserve
    annotations: dict[str, str]


class Binder:
    """Binds pods one write each. Nothing is locked while the API server is asked.

    Cards are chosen and reserved when a bind arrives; its write waits in a queue for its turn.

    Between looking at the ledger and reserving there is no await, so two decisions never see the
    same room. A reserve is let go of on a definite refusal; after an unknown outcome it stays
    until ``Reconciler`` has seen what became of it.
    """

    def __init__(self, cluster: Cluster, kube: Writer, clock: Clock) -> None:
        self._cluster, self._kube, self._clock = cluster, kube, clock
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._may_land_until: dict[tuple[str, str], float] = {}
        self._turns = asyncio.Semaphore(WRITES_AT_ONCE)

    async def bind(self, args: BindingArgs) -> None:
        """Bind the pod or raise an error that says why not. The same call twice is one binding."""
        key = (args.pod_uid, args.node)
        task = self._running.get(key)
        if task is None:
            until = self._clock.monotonic() + ANSWER_SECONDS
            task = asyncio.create_task(self._bind(args, until))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key))
        # kube-scheduler may hang up; what was begun is still brought to its end.
        await asyncio.shield(task)

    def is_open(self, reserve: Reserve) -> bool:
        """Whether a write for this reserve is under way or may still land."""
        key = (reserve.pod_uid, reserve.node)
        return key in self._running or self._may_land_until.get(key, 0.0) > self._clock.monotonic()

    def unknown(self) -> int:
        """How many reserves no write is under way for: what became of theirs is not known yet."""
        held = self._cluster.ledger.reserves()
        return sum((reserve.pod_uid, reserve.node) not in self._running for reserve in held)

    async def _bind(self, args: BindingArgs, until: float) -> None:
        pod = await self._find(args)
        if self._is_bound_as_wanted(pod, args):
            return
        decision = self._decide(pod, args.node)
        self._cluster.cooldown.bound(pod.uid, args.node, self._clock.monotonic())
        try:
            await self._write(pod, args.node, decision, until)
        except Conflict as err:
            await self._after_conflict(pod, decision, err)
        except OutcomeUnknown as err:
            self._keep(decision.reserve)
            raise BindRefused(
                f"whether {pod.key} is bound to {args.node} is not known yet, its GPU stays "
                f"reserved until it is: {err}",
                "unknown",
            ) from err
        except ApiError as err:
            self._release(decision.reserve)
            raise BindRefused(f"{pod.key} could not be bound to {args.node}: {err}") from err
        log.info(
            "pod bound",
            extra={
                "pod": pod.key,
                "uid": pod.uid,
                "node": args.node,
                "cards": decision.reserve.cards,
                "units_per_card": decision.reserve.units,
            },
        )

    async def _write(self, pod: Pod, node: str, decision: _Decision, until: float) -> None:
        """Write when it is this pod's turn, so that an answer to it still comes ``until``.

        Raises TooManyBinds if its turn came too late, and what ``bind_pod`` raises.
        """
        async with self._turns:
            left = until - READ_SECONDS - self._clock.monotonic()
            if left < LEAST_WRITE_SECONDS:
                raise TooManyBinds(
                    f"too many pods are being bound at once, this one's turn came after "
                    f"{ANSWER_SECONDS - READ_SECONDS - left:.1f} s: it will be tried again"
                )
            seconds = min(WRITE_SECONDS, left)
            await self._kube.bind_pod(pod, node, decision.annotations, seconds=seconds)

    async def _find(self, args: BindingArgs) -> Pod:
        pod = self._cluster.pod(args.pod_uid)
        if pod is not None:
            return pod
        # Our watch may be behind kube-scheduler's.
        try:
            async with asyncio.timeout(READ_SECONDS):
                pod = await self._kube.get_pod(args.pod_namespace, args.pod_name)
        except (ApiError, TimeoutError) as err:
            raise BindRefused(
                f"pod {args.pod_namespace}/{args.pod_name} could not be read: {err!r}"
            ) from err
        if pod.uid != args.pod_uid:
            raise BindRefused(
                f"pod {pod.key} with uid {args.pod_uid[:64]} is gone: the name now means another",
                "gone",
            )
        return pod

    def _is_bound_as_wanted(self, pod: Pod, args: BindingArgs) -> bool:
        share = self._cluster.ledger.share(pod.uid)
        node = share.node if share is not None else pod.node
        if not node:
            return False
        if node != args.node:
            raise BindRefused(f"pod {pod.key} is already bound to node {node}", "elsewhere")
        if share is not None and share.is_unplaced:
            raise BindRefused(
                f"pod {pod.key} is already bound to node {node}, by somebody else: "
                f"{share.why_unplaced}",
                "elsewhere",
            )
        return True

    def _decide(self, pod: Pod, node: str) -> _Decision:
        """Choose and reserve; raises RequestError or NoRoom and changes nothing then."""
        request = self._cluster.request_of(pod)
        ledger = self._cluster.ledger
        held = ledger.reserve_of(pod.uid, node)
        reason = self._cluster.why_not(node, request, pod)
        account = ledger.account(node, besides=pod.uid)
        if held is None and reason is not None:
            raise NoRoom(f"pod {pod.key} does not fit on node {node}: {reason.text}")
        if account is None:
            raise NoRoom(f"node {node} reports no GPUs any more")
        if held is None:
            cards = self._cluster.choices.choose(pod.uid, node, request, pod.priority)
            if cards is None:
                raise NoRoom(f"pod {pod.key} does not fit on node {node}")
            reserve = Reserve(
                pod_uid=pod.uid,
                namespace=pod.metadata.namespace,
                name=pod.metadata.name,
                node=node,
                cards=tuple(card.uuid for card in cards),
                units=request.units_per_card,
                assume_time_ns=self._clock.wall_ns(),
            )
        else:
            # An earlier write may still land: the same decision again, never another card.
            reserve = replace(held, attempt=held.attempt + 1)
            cards = tuple(e.card for e in account.cards if e.card.uuid in reserve.cards)
            if len(cards) != len(reserve.cards):
                raise NoRoom(f"pod {pod.key} holds a GPU that node {node} does not have any more")
            request = replace(request, card_count=len(cards))
        ledger.reserve(reserve)
        annotations = pod_annotations.decision_annotations(
            request,
            cards,
            is_legacy=account.inventory.is_legacy,
            assume_time_ns=reserve.assume_time_ns,
        )
        return _Decision(reserve, annotations)

    async def _after_conflict(self, pod: Pod, decision: _Decision, conflict: Conflict) -> None:
        """Return if the pod is on that node with our decision, raise BindRefused if not."""
        meta, reserve = pod.metadata, decision.reserve
        try:
            async with asyncio.timeout(READ_SECONDS):
                now = await self._kube.get_pod(meta.namespace, meta.name)
        except NotFound:
            self._release(reserve)
            raise BindRefused(f"pod {pod.key} is gone", "gone") from conflict
        except (ApiError, TimeoutError) as err:
            self._keep(reserve)
            raise BindRefused(
                f"whether {pod.key} is bound to {reserve.node} is not known yet: {conflict}",
                "unknown",
            ) from err
        if now.uid == reserve.pod_uid and now.node == reserve.node and _same(now, decision):
            return
        self._release(reserve)
        if now.uid == reserve.pod_uid and now.node:
            text = f"pod {pod.key} is already bound to node {now.node}"
            raise BindRefused(text, "elsewhere") from conflict
        raise BindRefused(f"pod {pod.key} could not be bound: {conflict}") from conflict

    def _keep(self, reserve: Reserve) -> None:
        now = self._clock.monotonic()
        open_ones = {key: until for key, until in self._may_land_until.items() if until > now}
        open_ones[(reserve.pod_uid, reserve.node)] = now + WRITE_SECONDS
        self._may_land_until = open_ones

    def _release(self, reserve: Reserve) -> None:
        # An earlier attempt may have landed whatever this one was told: reads will show.
        if reserve.attempt == 1:
            self._cluster.ledger.release(reserve.pod_uid, reserve.node)


def _same(pod: Pod, decision: _Decision) -> bool:
    keys = (ANNOTATION_CARDS, ANNOTATION_INDEX)
    return all(pod.annotations.get(key) == decision.annotations[key] for key in keys)
