"""Reports on pods why they cannot start, or not run so: an Event once, a condition while it lasts.

Answers do not wait for it: a refusal is queued here and written later, with retries until it is
written or the pod is deleted.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from deviceplugin import metrics
from deviceplugin.errors import Reason, Refused
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.report.rules import Verdict, condition_due, is_reported
from deviceplugin.settings import NAME
from gpushare.clock import Clock
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.errors import ApiError, Conflict, NotFound
from gpushare.kube import events
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod, PodCondition

log = logging.getLogger(__name__)

EVENT: Final = "GpushareCannotStart"
_OF_LIMITS: Final = {Reason.LIMIT_MISSING, Reason.LIMIT_CHANGED}  # names of Events too
_ROUND_SECONDS: Final = 60.0
_AT_ONCE: Final = 8
# The watch may show a pod only after it was refused, and a rejected pod may be deleted soon.
_REMEMBERED_SECONDS: Final = 60.0

_Key = tuple[str, str]  # pod uid, and the reason of an Event or nothing for the condition


class RefusalWriter(Protocol):
    async def set_pod_condition(
        self, namespace: str, name: str, uid: str, condition: PodCondition, changed_at: str
    ) -> None: ...

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class LimitMissing:
    """A container of ``pod`` runs without the limit of its memory that it was given.

    ``evicts``: the pod must not run so, and the extender evicts it by the condition.
    """

    pod: Pod
    reason: Reason
    text: str
    evicts: bool


@dataclass(frozen=True, slots=True)
class _Landed:
    """``condition`` was written on the pod when it had ``version``."""

    version: str
    condition: PodCondition


class RefusalReport:
    def __init__(self, *, kube: RefusalWriter, pods: NodePods, clock: Clock) -> None:
        self._kube = kube
        self._pods = pods
        self._clock = clock
        self._wake = pods.subscribe()
        self._retries: Retries[_Key] = Retries(clock)
        self._verdicts: dict[str, Verdict] = {}
        self._unlimited: dict[str, Verdict] = {}
        self._unknown: Collection[str] | None = None  # None before the first measurement: all
        self._refused_at: dict[str, float] = {}
        self._landed: dict[str, _Landed] = {}
        self._recorded: set[_Key] = set()
        self._events: dict[_Key, dict[str, Any]] = {}

    def refused(self, err: Refused, *, is_tried_again: bool) -> None:
        """Report that a container of ``err.pod`` was refused.

        ``is_tried_again``: at its start, which the kubelet retries. A pod that was refused at its
        admission has failed for good, so it gets only the Event.
        """
        if err.pod is None or err.reason is None:
            return
        pod, reason = err.pod, err.reason
        metrics.REFUSED.labels(reason.value).inc()
        self._refused_at[pod.uid] = self._clock.monotonic()
        if is_tried_again:
            self._verdicts[pod.uid] = Verdict(pod, reason, str(err))
        self._record_once(pod, reason, str(err))
        self._wake.set()

    def set_limits_missing(self, found: Sequence[LimitMissing], unknown: Collection[str]) -> None:
        """Report which pods run without a limit of their memory now.

        All others have theirs, except those with a uid in ``unknown``: what was reported of them
        stays.
        """
        self._unknown = unknown
        self._unlimited = {
            each.pod.uid: Verdict(each.pod, each.reason, each.text) for each in found if each.evicts
        }
        for each in found:
            self._record_once(each.pod, each.reason, each.text)
        self._wake.set()

    def may_start(self, pod_uid: str) -> None:
        """Report that a container of this pod starts now."""
        pod = self._pods.by_uid(pod_uid)
        before = self._verdicts.get(pod_uid)
        if before is not None:
            self._verdicts[pod_uid] = Verdict(before.pod)
        elif pod is not None and pod.condition(CONDITION_CARD_USABLE) is not None:
            self._verdicts[pod_uid] = Verdict(pod)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled: write what is due."""
        while True:
            self._wake.clear()
            self._forget()
            conditions = self._conditions_due()
            self._retries.keep_only({*self._events, *((uid, "") for uid in conditions)})
            due = [
                *(partial(self._write_event, key) for key in self._events),
                *(partial(self._write_condition, *each) for each in conditions.values()),
            ]
            for place in range(0, len(due), _AT_ONCE):
                await asyncio.gather(*(write() for write in due[place : place + _AT_ONCE]))
            await self._retries.wait(self._wake, _ROUND_SECONDS)

    def _record_once(self, pod: Pod, reason: Reason, text: str) -> None:
        key = (pod.uid, reason.value)
        seen = self._pods.by_uid(pod.uid) or pod
        if key in self._recorded or is_reported(seen.condition(CONDITION_CARD_USABLE), reason):
            return
        self._recorded.add(key)
        name = reason.value if reason in _OF_LIMITS else EVENT
        self._events[key] = events.made(pod, name, text, component=NAME, clock=self._clock)

    def _forget(self) -> None:
        """Drop the state of deleted pods."""
        old = self._clock.monotonic() - _REMEMBERED_SECONDS
        known = {pod.uid for pod in self._pods}
        known |= {uid for uid, at in self._refused_at.items() if at > old}
        self._refused_at = {u: at for u, at in self._refused_at.items() if u in known}
        self._verdicts = {u: verdict for u, verdict in self._verdicts.items() if u in known}
        self._landed = {u: landed for u, landed in self._landed.items() if u in known}
        self._recorded = {key for key in self._recorded if key[0] in known}
        self._events = {key: event for key, event in self._events.items() if key[0] in known}

    def _conditions_due(self) -> dict[str, tuple[Pod, PodCondition]]:
        pods = {uid: verdict.pod for uid, verdict in self._verdicts.items()}
        pods |= {pod.uid: pod for pod in self._pods}
        due = {}
        for uid, pod in pods.items():
            if pod.is_terminal:
                continue
            present, unlimited = self._present(pod), self._unlimited.get(uid)
            is_unknown = unlimited is None and (self._unknown is None or uid in self._unknown)
            if is_unknown and any(is_reported(present, reason) for reason in _OF_LIMITS):
                continue  # it may be so still
            last = unlimited or self._verdicts.get(uid)
            wanted = condition_due(present, last, runs=pod.runs)
            if wanted is not None:
                due[uid] = pod, wanted
        return due

    def _present(self, pod: Pod) -> PodCondition | None:
        landed = self._landed.get(pod.uid)
        if landed is not None and landed.version == pod.metadata.resource_version:
            return landed.condition  # the watch has not shown it yet
        return pod.condition(CONDITION_CARD_USABLE)

    async def _write_condition(self, pod: Pod, condition: PodCondition) -> None:
        if not self._retries.is_ready((pod.uid, "")):
            return
        meta, now = pod.metadata, events.rfc3339(self._clock.wall_ns())
        has_landed = False
        try:
            await self._kube.set_pod_condition(
                meta.namespace, meta.name, meta.uid, condition, changed_at=now
            )
        except (NotFound, Conflict) as err:
            # The pod was deleted, maybe recreated: the watch will show that.
            log.info("pod is deleted, its condition too", extra={"pod": pod.key, "why": str(err)})
        except ApiError as err:
            log.warning("condition not written yet", extra={"pod": pod.key, "why": str(err)})
        else:
            has_landed = True
            self._landed[pod.uid] = _Landed(meta.resource_version, condition)
            log.info("condition", extra={"pod": pod.key, "status": condition.status})
        self._retries.tried((pod.uid, ""), landed=has_landed)

    async def _write_event(self, key: _Key) -> None:
        if not self._retries.is_ready(key):
            return
        event = self._events[key]
        try:
            await self._kube.create_event(event["metadata"]["namespace"], event)
        except (NotFound, Conflict) as err:
            # The namespace was deleted, or an earlier attempt was successful.
            log.info("event needs no more attempts", extra={"why": str(err)})
        except ApiError as err:
            log.warning("event not written yet", extra={"why": str(err)})
            self._retries.tried(key, landed=False)
            return
        self._events.pop(key, None)
        self._retries.tried(key, landed=True)
