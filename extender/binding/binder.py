"""bind: choose the GPUs, reserve them, and write decision and node in one request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from extender.binding.fenced_writer import Writer
from extender.binding.timing import (
    ANSWER_SECONDS,
    LEAST_WRITE_SECONDS,
    READ_SECONDS,
    WRITE_SECONDS,
)
from extender.decisions.autoscaling.placeholders import PLACEHOLDER, is_placeholder
from extender.decisions.gangs import written
from extender.decisions.gangs.giving_way import binding_begins
from extender.decisions.scheduling import Placement, Scheduling
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
from gpushare.ledger.accounts import Reserve
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason

log = logging.getLogger(__name__)

# At 10 ms each that is 1,600 per second, more than kube-scheduler can use. Each write under way may
# delay a filter call, and for a filter call kube-scheduler waits with all its pods.
WRITES_AT_ONCE: Final = 16


class BindRefused(GpushareError):
    """The pod was not bound; the text is for its owner, ``outcome`` labels the metric."""

    def __init__(self, message: str, outcome: str = "refused") -> None:
        super().__init__(message)
        self.outcome = outcome


class TooManyBinds(ApiError):
    """Nothing was written: too many bindings are queued."""


@dataclass(frozen=True, slots=True)
class _Decision:
    reserve: Reserve
    annotations: dict[str, str]


class Binder:
    """Binds pods with one write each. Nothing is locked during the write.

    GPUs are chosen and reserved when a bind call arrives; its write then waits for its turn.

    There is no await between the choice and the reservation, so two decisions never get the same
    free units. A reservation is released if the API server refuses the write; after an unknown
    outcome it stays until ``Reconciler`` has found out.

    ``before_write`` is awaited right before each write and may write itself. It raises nothing.
    """

    def __init__(
        self,
        scheduling: Scheduling,
        kube: Writer,
        clock: Clock,
        before_write: Callable[[Pod], Awaitable[None]] | None = None,
    ) -> None:
        self._scheduling, self._kube, self._clock = scheduling, kube, clock
        self._before_write = before_write
        self._state, self._ledger = scheduling.state, scheduling.state.ledger
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._may_land_until: dict[tuple[str, str], float] = {}
        self._turns = asyncio.Semaphore(WRITES_AT_ONCE)

    async def bind(self, args: BindingArgs) -> None:
        """Bind the pod, or raise an error that says why not. A repeated call is one binding."""
        key = (args.pod_uid, args.node)
        task = self._running.get(key)
        if task is None:
            until = self._clock.monotonic() + ANSWER_SECONDS
            task = asyncio.create_task(self._bind(args, until))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key))
        # kube-scheduler may hang up; the binding is completed all the same.
        await asyncio.shield(task)

    def is_open(self, reserve: Reserve) -> bool:
        """Return whether a write for this reservation is under way or may still land."""
        key = (reserve.pod_uid, reserve.node)
        return key in self._running or self._may_land_until.get(key, 0.0) > self._clock.monotonic()

    def unknown(self) -> int:
        """Return how many reservations have no write under way: their outcome is unknown."""
        held = self._ledger.reserves()
        return sum((reserve.pod_uid, reserve.node) not in self._running for reserve in held)

    async def _bind(self, args: BindingArgs, until: float) -> None:
        pod = await self._find(args)
        if self._is_bound_as_wanted(pod, args):
            return
        decision = self._decide(pod, args.node)
        self._state.failing_nodes.bound(args.pod_uid, args.node, self._clock.monotonic())
        try:
            await self._write(pod, args.node, decision, until)
        except Conflict as err:
            await self._after_conflict(pod, decision, err)
        except OutcomeUnknown as err:
            self._keep(decision.reserve)
            raise BindRefused(
                f"it is not known yet whether {pod.key} is bound to {args.node}; its GPU stays "
                f"reserved until then: {err}",
                "unknown",
            ) from err
        except ApiError as err:
            self._release(decision.reserve)
            raise BindRefused(f"{pod.key} could not be bound to {args.node}: {err}") from err
        log.info(
            "pod bound",
            extra={
                "pod": pod.key,
                "uid": args.pod_uid,
                "node": args.node,
                "cards": decision.reserve.cards,
                "units_per_card": decision.reserve.units,
            },
        )

    async def _write(self, pod: Pod, node: str, decision: _Decision, until: float) -> None:
        """Write in turn, early enough that an answer still comes by ``until``.

        Raises TooManyBinds if the turn comes too late, and what ``bind_pod`` raises.
        """
        async with self._turns:
            if self._before_write is not None:
                await self._before_write(pod)
            left = until - READ_SECONDS - self._clock.monotonic()
            if left < LEAST_WRITE_SECONDS:
                raise TooManyBinds(
                    "too many pods are being bound at once; this one waited for "
                    f"{ANSWER_SECONDS - READ_SECONDS - left:.1f} s and will be retried"
                )
            seconds = min(WRITE_SECONDS, left)
            await self._kube.bind_pod(pod, node, decision.annotations, seconds=seconds)

    async def _find(self, args: BindingArgs) -> Pod:
        pod = self._state.pod(args.pod_uid)
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
                f"pod {pod.key} with uid {args.pod_uid[:64]} is deleted: another pod has the name",
                "gone",
            )
        return pod

    def _is_bound_as_wanted(self, pod: Pod, args: BindingArgs) -> bool:
        share = self._ledger.share(args.pod_uid)
        node = share.node if share is not None else pod.spec.node_name
        if not node:
            return False
        if node != args.node:
            raise BindRefused(f"pod {pod.key} is already bound to node {node}", "elsewhere")
        if share is not None and share.is_unplaced:
            raise BindRefused(
                f"pod {pod.key} is already bound to node {node}, by another program: "
                f"{share.why_unplaced}",
                "elsewhere",
            )
        return True

    def _decide(self, pod: Pod, node: str) -> _Decision:
        """Choose and reserve; raises RequestError or NoRoom and then changes nothing."""
        if is_placeholder(pod):
            raise NoRoom(f"pod {pod.key} is never bound: {PLACEHOLDER.text}")
        request = self._state.request_of(pod)
        why = self._scheduling.members.why_not_bind(pod, node)
        if why is not None:
            raise NoRoom(f"pod {pod.key} is not bound to node {node}: {why.text}")
        meta, ledger = pod.metadata, self._ledger
        held = ledger.reserve_of(meta.uid, node)
        if held is not None:
            # An earlier write may still land: the same decision again, never another GPU.
            reserve = replace(held, attempt=held.attempt + 1)
            placement = self._placement_of(reserve, pod)
            request = replace(request, card_count=len(placement.cards))
        else:
            found = self._scheduling.place(pod, node, request)
            if isinstance(found, Reason):
                raise NoRoom(f"pod {pod.key} does not fit on node {node}: {found.text}")
            placement = found
            reserve = Reserve(
                pod_uid=meta.uid,
                namespace=meta.namespace,
                name=meta.name,
                node=node,
                cards=tuple([card.uuid for card in placement.cards]),
                units=request.units_per_card,
                assume_time_ns=self._clock.wall_ns(),
            )
        ledger.reserve(reserve)
        gangs = self._scheduling.gangs
        binding_begins(gangs, pod, node)
        annotations = pod_annotations.decision_annotations(
            request,
            placement.cards,
            is_legacy=placement.is_legacy,
            assume_time_ns=reserve.assume_time_ns,
        )
        return _Decision(reserve, annotations | written.annotations_for(gangs, pod))

    def _placement_of(self, reserve: Reserve, pod: Pod) -> Placement:
        account = self._ledger.account(reserve.node, besides=reserve.pod_uid)
        if account is None:
            raise NoRoom(f"node {reserve.node} does not report GPUs any more")
        cards = tuple(e.card for e in account.cards if e.card.uuid in reserve.cards)
        if len(cards) != len(reserve.cards):
            raise NoRoom(
                f"pod {pod.key} has a reserved GPU that node {reserve.node} does not have any more"
            )
        return Placement(cards, account.inventory.is_legacy)

    async def _after_conflict(self, pod: Pod, decision: _Decision, conflict: Conflict) -> None:
        """Return if the pod is on that node with our decision; raise BindRefused if not."""
        meta, reserve = pod.metadata, decision.reserve
        try:
            async with asyncio.timeout(READ_SECONDS):
                now = await self._kube.get_pod(meta.namespace, meta.name)
        except NotFound:
            self._release(reserve)
            raise BindRefused(f"pod {pod.key} is deleted", "gone") from conflict
        except (ApiError, TimeoutError) as err:
            self._keep(reserve)
            raise BindRefused(
                f"it is not known yet whether {pod.key} is bound to {reserve.node}: {conflict}",
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
        # An earlier attempt may have landed whatever the answer to this one: reads will show.
        if reserve.attempt == 1:
            self._ledger.release(reserve.pod_uid, reserve.node)


def _same(pod: Pod, decision: _Decision) -> bool:
    keys = (ANNOTATION_CARDS, ANNOTATION_INDEX)
    return all(pod.annotations.get(key) == decision.annotations[key] for key in keys)
