"""Known defects that the simulation must catch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import aiohttp

from extender.binding import unknown_outcomes
from extender.binding.binder import Binder
from extender.binding.fenced_writer import Writer
from extender.binding.unknown_outcomes import Reconciler
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.members import Members
from extender.decisions.queue.waiting_pods import WaitingPods
from extender.decisions.scheduling import Placement, Scheduling
from extender.gangs.takeover import Takeover
from extender.leadership.election import Elected
from extender.watch.cluster import ClusterWatch
from extender.watch.live_pods import PodUse
from gpushare.annotations import pod_annotations
from gpushare.cards.model import Card
from gpushare.kube.fencing import FencedBody
from gpushare.kube.lease import Election
from gpushare.placement.reasons import NO_CARDS
from gpushare.quota.quotas import Quotas
from tests.simulation.run import simulate

MOST_RUNS: Final = 600


def caught(mutant: str, most: int = MOST_RUNS) -> tuple[int, str] | None:
    """Return the first seed whose run shows a defect, and the violation.

    Seeds count from 1; None if ``most`` runs do not show it.
    """
    with MUTANTS[mutant]():
        for seed in range(1, most + 1):
            if violations := simulate(seed).violations:
                return seed, violations[0]
    return None


def _release_after_unknown() -> AbstractContextManager[object]:
    def keep(self, reserve):
        self._ledger.release(reserve.pod_uid, reserve.node)

    return patch.object(Binder, "_keep", keep)


def _deletion_frees() -> AbstractContextManager[object]:
    real = ClusterWatch.pod_changed

    def changed(self, pod):
        (self.pod_deleted if pod.metadata.deletion_timestamp else lambda p: real(self, p))(pod)

    return patch.object(ClusterWatch, "pod_changed", changed)


def _lead_at_once() -> AbstractContextManager[object]:
    real = Elected.__init__

    def init(self, elector, settle, **parts: Any):
        replica = settle.__self__
        parts["settle_seconds"] = 0.0
        real(self, elector, settle=replica._gangs.take_over, **parts)

    return patch.object(Elected, "__init__", init)


def _forget_unplaced() -> AbstractContextManager[object]:
    real = pod_annotations.share_of

    def share_of(pod, inventory, units=None):
        share = real(pod, inventory, units)
        return None if share is not None and share.is_unplaced else share

    return patch.object(pod_annotations, "share_of", share_of)


def _bind_without_looking() -> AbstractContextManager[object]:
    def place(self, pod, node, request):
        account = self._ledger.account(node)
        if account is None:
            return NO_CARDS
        cards = tuple(each.card for each in account.cards[: request.card_count])
        return Placement(cards, account.inventory.is_legacy)

    return patch.object(Scheduling, "place", place)


@contextmanager
def _one_read_is_enough() -> Iterator[None]:
    def why_free(self, reserve, pod):
        return "not bound" if pod.uid != reserve.pod_uid or not pod.node else ""

    with ExitStack() as stack:
        stack.enter_context(patch.object(Reconciler, "_why_free", why_free))
        stack.enter_context(patch.object(Binder, "is_open", lambda *_: False))
        stack.enter_context(patch.object(unknown_outcomes, "OVERDUE_SECONDS", 0.0))
        yield


def _keep_what_is_gone() -> AbstractContextManager[object]:
    def replacing(self, items):
        for pod in items:
            if isinstance(pod, PodUse):
                self.use_changed(pod)
            else:
                self.pod_changed(pod)
            yield

    return patch.object(ClusterWatch, "replacing_pods", replacing)


def _forget_others_after_a_list() -> AbstractContextManager[object]:
    real = ClusterWatch.replacing_pods

    def replacing(self, items):
        yield from real(self, [pod for pod in items if not isinstance(pod, PodUse)])

    return patch.object(ClusterWatch, "replacing_pods", replacing)


def _conflict_is_success() -> AbstractContextManager[object]:
    async def after(self, pod, decision, conflict):
        pass

    return patch.object(Binder, "_after_conflict", after)


def _take_over_unplanned() -> AbstractContextManager[object]:
    async def run(self):
        self._gangs.may_keep = True

    return patch.object(Takeover, "run", run)


MUTANTS: Final[Mapping[str, Callable[[], AbstractContextManager[object]]]] = {
    "release the reserve after an unknown outcome": _release_after_unknown,
    "count a pod with a deletionTimestamp as gone": _deletion_frees,
    "write whatever the lease says": lambda: patch.object(
        Writer, "_check", lambda self, *_: self._clock.monotonic()
    ),
    "decide at once after taking the lease": _lead_at_once,
    "forget pods whose card nobody can tell": _forget_unplaced,
    "bind without looking at what is free": _bind_without_looking,
    "release a reserve after one read": _one_read_is_enough,
    "keep pods that a new list does not have": _keep_what_is_gone,
    "forget what pods without GPU memory use after a list": _forget_others_after_a_list,
    "take the lease before it has ended": lambda: patch.object(
        Election, "free_at", property(lambda self: self._seen_at + 0.5)
    ),
    "send a body without asking whether it may go": lambda: patch.object(
        FencedBody, "write_with_length", aiohttp.BytesPayload.write_with_length
    ),
    "place pods on cordoned cards": lambda: patch.object(
        Card, "takes_new", property(lambda self: self.is_healthy)
    ),
    "take a conflict for success": _conflict_is_success,
    "take over gangs that have begun without a plan": _take_over_unplanned,
    "bind a member whatever the others have": lambda: patch.object(
        Members, "why_not_bind", lambda *_: None
    ),
    "place pods beyond the quota of their namespace": lambda: patch.object(
        Quotas, "left", lambda *_: None
    ),
    "plan a gang without room only once": lambda: patch.object(
        Gangs, "is_due", lambda _, __, record: record.tried is None
    ),
    "let pods rest for ever that did not come to their room": lambda: patch.object(
        WaitingPods, "_end_rests", lambda *_: None
    ),
    "give a gang a few seconds to become whole": lambda: patch.object(
        Gangs, "complete_seconds", lambda *_: 5.0
    ),
}
