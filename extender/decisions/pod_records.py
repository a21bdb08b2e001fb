"""What the extender knows about each pod: one record, and indexes over the records (pure)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import inf
from typing import Final

import msgspec

from extender.decisions.attempts import REMEMBERED_SECONDS, Attempts
from extender.decisions.callers import Callers
from extender.decisions.expectations import Expectations
from gpushare.annotations import pod_annotations
from gpushare.answers.explain import Asked
from gpushare.answers.pending.scheduler_message import lacks_sum
from gpushare.cards.model import Request
from gpushare.contract import CONDITION_CARD_USABLE, GATE_ADMISSION, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.ledger.changes import Changes
from gpushare.objects.model import Pod
from gpushare.placement import verdict
from gpushare.placement.rank import Policies

# The reason in an Event on a pod that kube-scheduler rejects itself on all nodes.
LACKS_SUM: Final = frozenset({RESOURCE_MEMORY})
# And in one on a pod that waits behind our gate.
WAITS_FOR_ADMISSION: Final = frozenset({GATE_ADMISSION})
MAX_OFFERED: Final = 5000  # pods whose attempts are kept
MAX_ASKED: Final = 10_000  # pods whose last answer is kept
SETTLED_SECONDS: Final = 2.0  # a pod that is pending for less gets no Event
AGAIN_SECONDS: Final = 60.0  # between two Events of one pod
# An Event is written again: the API server deletes Events after an hour (--event-ttl).
RENEWED_SECONDS: Final = 1800.0
_EXAMINED: Final = 1000


class PodRecord(msgspec.Struct, gc=False, eq=False):
    """What the extender knows about one pod; there is no cycle for garbage collection to find.

    ``pod`` is the pod as the watch last showed it; None if only kube-scheduler has named it.
    ``units`` are what it asks for in all, where that is known. ``request`` is parsed once per
    version while the pod has no node; ``refusal`` says why no node could ever grant it.
    ``asked`` is the last answer to kube-scheduler, ``reported`` the reasons in the last Event.
    ``lacks_since`` is when it was noticed that kube-scheduler rejects the pod without asking.
    """

    uid: str
    pod: Pod | None = None
    units: int | None = None
    request: Request | None = None
    refusal: str = ""
    attempts: Attempts | None = None
    asked: Asked | None = None
    reported: frozenset[str] = frozenset()
    reported_at: float = float("-inf")
    lacks_since: float | None = None


class PodRecords:
    """All records by uid. Every ``now`` is in seconds of one monotonic clock.

    A pod that the watch has not shown has a record only while there is an attempt or an answer to
    keep, and each of these has a limit. ``expected`` says where pods will probably go;
    ``expectation_changed`` is called with the node of every expectation that comes or goes.

    ``changes`` has the uids of pods without a node that came, changed or went. ``pending`` are the
    pods that kube-scheduler should ask about: without a node and without a scheduling gate; those
    with one are ``gated``.
    ``with_trouble`` report that their GPU cannot be used, ``unplaced`` have a node and no known
    GPU, ``unplaced_reported`` had an Event for it, somebody edited the decision of ``edited``.
    ``reasons`` counts the pods for which each reason holds on some node.
    """

    def __init__(self, policies: Policies, expectation_changed: Callable[[str], None]) -> None:
        self.changes = Changes()
        self.pending: dict[str, PodRecord] = {}
        self.gated: dict[str, PodRecord] = {}
        self.with_trouble: dict[str, PodRecord] = {}
        self.unplaced: dict[str, PodRecord] = {}
        self.unplaced_reported: dict[str, PodRecord] = {}
        self.edited: dict[str, PodRecord] = {}
        self.reasons: Counter[str] = Counter()
        self.expected = Expectations(expectation_changed)
        self._policies = policies
        self._records: dict[str, PodRecord] = {}
        self._uids: dict[str, dict[str, str]] = {}  # by namespace, then by name
        self._on_node: dict[str, dict[str, PodRecord]] = {}
        self._bound: Counter[int] = Counter()  # pods on nodes, by priority
        self._offered: dict[str, PodRecord] = {}  # oldest first, like all that follow
        self._asked: dict[str, PodRecord] = {}
        self._unreported: dict[str, PodRecord] = {}
        self._reported: dict[str, PodRecord] = {}
        self._indexes = (
            self.pending,
            self.gated,
            self.with_trouble,
            self.unplaced,
            self.unplaced_reported,
            self.edited,
            self._offered,
            self._asked,
            self._unreported,
            self._reported,
        )

    def get(self, uid: str) -> PodRecord | None:
        """Return the record of a pod that the watch or kube-scheduler has named."""
        return self._records.get(uid)

    def pod(self, uid: str) -> Pod | None:
        """Return a live pod that names our resources, as last seen."""
        record = self._records.get(uid)
        return record.pod if record is not None else None

    def named(self, namespace: str, name: str) -> Pod | None:
        """Return the live pod with this name, the last one that came."""
        return self.pod(self._uids.get(namespace, {}).get(name, ""))

    def on_node(self, node: str) -> Iterable[PodRecord]:
        """Return the live pods bound to a node that name our resources."""
        return self._on_node.get(node, {}).values()

    def uids(self) -> list[str]:
        return list(self._records)

    def watched_uids(self) -> Iterator[str]:
        """Return the pods that the watch has shown."""
        return (uid for uid, record in self._records.items() if record.pod is not None)

    def update(self, pod: Pod) -> PodRecord:
        meta, spec = pod.metadata, pod.spec
        uid, node = meta.uid, spec.node_name or ""
        record = self._record(uid)
        before, record.pod = record.pod, pod
        if before is None or not pod_annotations.has_same_amounts(before, pod):
            record.units = None
        if before is None or node or not pod_annotations.asks_the_same(before, pod):
            record.request, record.refusal = None, ""
        self._uids.setdefault(meta.namespace, {})[meta.name] = uid
        if not (before or pod).spec.node_name:
            self.changes.add(uid)
        if node:
            if record.units is None:
                record.units = pod_annotations.units_of(pod)
            here = self._on_node.setdefault(node, {})
            self._bound[pod.priority] += uid not in here
            here[uid] = record
            self.pending.pop(uid, None)
            self.gated.pop(uid, None)
            self.drop_attempts(uid)
            self._drop_answer(record)
        else:
            if record.request is None and not record.refusal:
                self._parse(record, pod)
            is_gated = bool(spec.scheduling_gates)
            (self.gated if is_gated else self.pending)[uid] = record
            (self.pending if is_gated else self.gated).pop(uid, None)
            if record.asked is None and record.reported != (why := _unasked_reasons(pod)) and why:
                self._unreported[uid] = record
        condition = pod.condition(CONDITION_CARD_USABLE) if pod.status.conditions else None
        if condition is not None and condition.status == "False":
            self.with_trouble[uid] = record
        else:
            self.with_trouble.pop(uid, None)
        return record

    def forget(self, uid: str) -> Pod | None:
        """Delete the record of a deleted pod; return the pod if the watch had shown it."""
        self.expected.drop(uid)
        record = self._records.get(uid)
        if record is None:
            return None
        self._drop_answer(record)
        self._records.pop(uid, None)
        for index in self._indexes:
            index.pop(uid, None)
        pod = record.pod
        if pod is None:
            return None
        meta = pod.metadata
        names = self._uids.get(meta.namespace, {})
        if names.get(meta.name) == uid:
            del names[meta.name]
            if not names:
                del self._uids[meta.namespace]
        if not pod.node:
            self.changes.add(uid)
            return pod
        others = self._on_node[pod.node]
        del others[uid]
        self._bound[pod.priority] -= 1
        if not self._bound[pod.priority]:
            del self._bound[pod.priority]
        if not others:
            del self._on_node[pod.node]
        return pod

    def request_of(self, pod: Pod) -> Request:
        """Return what the pod asks for; RequestError if no node can ever grant it.

        Parsed only where the record has not parsed the same.
        """
        record = self._records.get(pod.metadata.uid)
        if record is None or record.pod is None or not (record.request or record.refusal):
            return verdict.request_of(pod, self._policies)
        if record.pod is not pod and not pod_annotations.asks_the_same(record.pod, pod):
            return verdict.request_of(pod, self._policies)
        if record.request is None:
            raise RequestError(record.refusal)
        return record.request

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of the pods on nodes that request GPU memory; None without any."""
        return min(self._bound, default=None)

    def least_pending_units(self, callers: Callers) -> int:
        """The least that a pending pod requests in all; 0 without any.

        Pods count for which one of the ``callers`` should ask: not those of other schedulers, and
        not those for which kube-scheduler finds no node before it asks.
        """
        records = self.pending.values()
        found = (each.units for each in records if each.asked or _should_ask(callers, each.pod))
        return min((units for units in found if units is not None), default=0)

    def pending_by_namespace(self) -> Counter[str]:
        """Return the number of pending and gated pods of each namespace."""
        pods = (record.pod for record in chain(self.pending.values(), self.gated.values()))
        return Counter(pod.metadata.namespace for pod in pods if pod is not None)

    def begin_attempt(self, uid: str, now: float) -> Attempts:
        """Begin a new attempt of this pod; return its failed attempts."""
        self.expected.expire(uid, now)
        while self._offered:
            oldest = next(iter(self._offered.values()))
            is_old = oldest.attempts is None or now - oldest.attempts.at > REMEMBERED_SECONDS
            if len(self._offered) <= MAX_OFFERED and not is_old:
                break
            del self._offered[oldest.uid]
            oldest.attempts = None
            self._drop_if_unknown(oldest)
        attempts = self.attempts(uid)
        if attempts.last:
            attempts.begin()
        return attempts

    def offer(self, uid: str, nodes: Sequence[str], now: float) -> None:
        """Note the nodes that the current attempt of this pod was offered, the best first."""
        record = self._record(uid)
        self._offered.pop(uid, None)
        self._offered[uid] = record
        attempts = record.attempts = record.attempts or Attempts()
        attempts.last, attempts.at = tuple(nodes), now
        attempts.count += 1

    def attempts(self, uid: str) -> Attempts:
        """Return the attempts of a pod; without any an empty one, which is not kept."""
        record = self._records.get(uid)
        return (record.attempts if record is not None else None) or Attempts()

    def drop_attempts(self, uid: str) -> None:
        """Forget the attempts and the expectation of a pod: it is bound."""
        self.expected.drop(uid)
        record = self._offered.pop(uid, None)
        if record is not None:
            record.attempts = None
            self._drop_if_unknown(record)

    def answer(self, uid: str, offered: int, texts: Iterable[str], now: float) -> None:
        """Note an answer to kube-scheduler; ``texts`` say why no node fits, one per node.

        There are none if a node fits. Only time, number of nodes and counts per reason are kept:
        explain computes the rest.
        """
        self.changes.add(uid)
        reasons = dict(Counter(texts))
        before = self._asked.pop(uid, None)
        if before is None and not reasons:
            return  # the usual case leaves nothing behind
        record = self._record(uid)
        asked = record.asked
        since = now
        if asked is not None:
            since = asked.since if asked.reasons or not reasons else now
            self._count(asked.reasons, -1)
        self._count(reasons, 1)
        record.asked = Asked(since, now, offered, reasons)
        self._asked[uid] = record
        if reasons and reasons.keys() != record.reported:
            self._unreported[uid] = record
        else:
            self._unreported.pop(uid, None)
        if len(self._asked) > MAX_ASKED:
            self._drop_answer(next(iter(self._asked.values())))

    def was_rejected(self, uid: str) -> bool:
        """Return whether an earlier answer about this pod was that no node fits."""
        return uid in self._asked

    @property
    def rejected(self) -> int:
        """The number of pods that fitted no offered node when kube-scheduler last asked."""
        return sum(bool(each.asked and each.asked.reasons) for each in self._asked.values())

    def take_unreported(self, now: float, most: int) -> Iterator[PodRecord]:
        """Yield at most so many records whose reasons no Event has, and count them as reported."""
        self._expire_reports(now)
        left = most
        for uid, record in list(islice(self._unreported.items(), _EXAMINED)):
            asked = record.asked
            del self._unreported[uid]
            if asked is not None:
                since, reasons = asked.since, frozenset(asked.reasons)
            elif record.pod is not None and (unasked := _unasked_reasons(record.pod)):
                since, reasons = record.lacks_since or now, unasked
                record.lacks_since = since
            else:
                continue
            is_settled = now - since >= SETTLED_SECONDS
            if not is_settled or now - record.reported_at < AGAIN_SECONDS:
                self._unreported[uid] = record  # to the end: none is ahead of the others
                continue
            record.reported, record.reported_at = reasons, now
            self._reported.pop(uid, None)
            self._reported[uid] = record
            yield record
            left -= 1
            if not left:
                return

    def report_again(self, uid: str, *, at_once: bool) -> None:
        """Write another Event on a pod, although kube-scheduler is told the same reason.

        ``at_once``: the last Event only said that nothing was known yet.
        """
        record = self._records.get(uid)
        if record is not None and record.pod is not None:
            record.reported = frozenset()
            if at_once:
                record.reported_at = -inf
            self._unreported[uid] = record

    def _expire_reports(self, now: float) -> None:
        while self._reported:
            record = next(iter(self._reported.values()))
            if now - record.reported_at < RENEWED_SECONDS:
                return
            del self._reported[record.uid]
            record.reported = frozenset()
            if record.asked is None or record.asked.reasons:
                self._unreported[record.uid] = record

    def _record(self, uid: str) -> PodRecord:
        record = self._records.get(uid)
        if record is None:
            record = self._records[uid] = PodRecord(uid)
        return record

    def _parse(self, record: PodRecord, pod: Pod) -> None:
        try:
            record.request = verdict.request_of(pod, self._policies)
            record.units = record.request.units
        except RequestError as err:
            record.refusal = str(err)
            with suppress(RequestError):
                record.units = pod_annotations.amounts_of(pod).units

    def _drop_answer(self, record: PodRecord) -> None:
        if record.asked is None:
            return
        self._count(record.asked.reasons, -1)
        record.asked, record.reported, record.reported_at = None, frozenset(), float("-inf")
        self._asked.pop(record.uid, None)
        self._unreported.pop(record.uid, None)
        self._reported.pop(record.uid, None)
        self._drop_if_unknown(record)

    def _drop_if_unknown(self, record: PodRecord) -> None:
        if record.pod is None and not (record.attempts or record.asked):
            self._records.pop(record.uid, None)

    def _count(self, reasons: Iterable[str], by: int) -> None:
        for reason in reasons:
            self.reasons[reason] += by
            if not self.reasons[reason]:
                del self.reasons[reason]  # texts about a pod's own request are unlimited


def is_unschedulable(pod: Pod) -> bool:
    """Return whether kube-scheduler has tried the pod, and found no node."""
    condition = pod.condition("PodScheduled")
    return condition is not None and condition.reason == "Unschedulable"


def _should_ask(callers: Callers, pod: Pod | None) -> bool:
    return pod is not None and callers.ask_about(pod) and not is_unschedulable(pod)


def _unasked_reasons(pod: Pod) -> frozenset[str]:
    """Return why kube-scheduler does not ask about a pod that should get an Event."""
    if pod.waits_for_admission:
        return WAITS_FOR_ADMISSION
    return LACKS_SUM if lacks_sum(pod) else frozenset()
