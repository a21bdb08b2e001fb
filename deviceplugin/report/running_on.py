"""Annotates each pod that runs with its GPUs: ASSIGNED, ASSIGN_TIME and ``running-on``.

Answers do not wait for it. That a container was let start is not enough: on a misconfigured node
the runtime rejects it afterwards, at each attempt of the kubelet. So the kubelet must have reported
in the pod's status that a container with devices has run. The due reports are derived each time
from that status and the kubelet's checkpoint, so nothing is lost when this program ends: a
container that a killed predecessor let start is reported by its successor.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response
from deviceplugin.allocation.rules import visible_cards
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.errors import CheckpointError, PluginError
from deviceplugin.kubelet.checkpoint import CheckpointFile, Entry
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.annotations.pod_annotations import encode_running_on
from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_ASSIGN_TIME, ANNOTATION_ASSIGNED, ANNOTATION_RUNNING_ON
from gpushare.errors import ApiError
from gpushare.kube.backoff import Retries

log = logging.getLogger(__name__)

_ROUND_SECONDS = 60.0
_AT_ONCE = 8


class PodWriter(Protocol):
    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: dict[str, str]
    ) -> None: ...


class PodReport:
    def __init__(
        self,
        *,
        kube: PodWriter,
        pods: NodePods,
        cards: NodeCards,
        checkpoint: CheckpointFile,
        specs: Specs,
        clock: Clock,
    ) -> None:
        self._kube = kube
        self._pods = pods
        self._cards = cards
        self._checkpoint = checkpoint
        self._specs = specs
        self._clock = clock
        self._started: dict[str, tuple[str, ...]] = {}
        self._retries: Retries[str] = Retries(clock)  # by pod uid
        self._wake = pods.subscribe()
        self._done: dict[str, str] = {}  # pod uid to the resourceVersion that was dealt with

    def started(self, pod_uid: str, uuids: Sequence[str]) -> None:
        """Remember that a container of this pod may start now on these GPUs."""
        self._started[pod_uid] = tuple(uuids)
        self._wake.set()

    async def run(self) -> None:
        """Annotate pods until cancelled, with retries until it is written or the pod deleted."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_cards())
            tasks.create_task(self._write_what_is_due())

    async def _follow_cards(self) -> None:
        """Check again when a GPU may be known whose number was in an answer."""
        version = self._cards.version
        while True:
            version = await self._cards.changed(version)
            self._wake.set()

    async def _write_what_is_due(self) -> None:
        while True:
            self._wake.clear()
            due = list(self._due())
            metrics.REPORTS_WAITING.set(len(due))
            self._retries.keep_only({pod.uid for pod, _ in due})
            ready = [each for each in due if self._retries.is_ready(each[0].uid)]
            await asyncio.gather(*(self._report(pod, uuids) for pod, uuids in ready[:_AT_ONCE]))
            metrics.REPORTS_WAITING.set(len(self._retries) + max(0, len(ready) - _AT_ONCE))
            if len(ready) <= _AT_ONCE:
                await self._retries.wait(self._wake, _ROUND_SECONDS)

    async def _report(self, pod: NodePod, uuids: tuple[str, ...]) -> None:
        self._retries.tried(pod.uid, landed=await self._write(pod, uuids))

    def _due(self) -> Iterator[tuple[NodePod, tuple[str, ...]]]:
        entries: dict[str, list[Entry]] | None = None
        alive = {pod.uid for pod in self._pods}
        self._done = {u: version for u, version in self._done.items() if u in alive}
        for pod in self._pods:
            if not pod.has_run or _is_reported(pod):
                continue
            if pod.is_terminal and pod.uid not in self._started:
                continue  # the checkpoint names the devices of an ended pod only for a while
            if self._done.get(pod.uid) == pod.metadata.resource_version:
                continue  # invalid, or written and not yet shown by the watch
            if entries is None:
                entries = self._entries()
            uuids = self._started.get(pod.uid) or self._given(pod, entries.get(pod.uid, []))
            if uuids:
                yield pod, uuids
        if entries is not None:
            # The watch may show a pod only after its start, so the checkpoint counts as well.
            known = alive | entries.keys()
            self._started = {u: cards for u, cards in self._started.items() if u in known}

    def _entries(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        try:
            for entry in self._checkpoint.read():
                found.setdefault(entry.pod_uid, []).append(entry)
        except CheckpointError as err:
            log.warning("reports wait for the checkpoint", extra={"why": str(err)})
        return found

    def _given(self, pod: NodePod, entries: Sequence[Entry]) -> tuple[str, ...]:
        """Return the GPUs of a container that has started; none if none has."""
        started = {status.name for status in pod.share_statuses if status.has_run}
        for entry in entries:
            if entry.container in started and (cards := self._cards_of(entry)):
                return tuple(sorted(cards))
        return ()

    def _cards_of(self, entry: Entry) -> frozenset[str]:
        """Return UUIDs; none while a number of Aliyun gpushare's plugin belongs to no known GPU."""
        found = self._named_by(entry)
        return frozenset() if any(name.isdigit() for name in found) else found

    def _named_by(self, entry: Entry) -> frozenset[str]:
        try:
            answered = allocate_response.read(entry.answer, self._cards.inventory)
        except PluginError as err:
            log.warning("a running container's answer is invalid", extra={"why": str(err)})
            return frozenset()
        if answered.cards or not answered.share:
            return answered.cards
        given = self._specs.read(answered.share)
        if given is None or given.pod_uid != entry.pod_uid:
            return frozenset()
        return visible_cards(given.environment, self._cards.inventory)

    async def _write(self, pod: NodePod, uuids: tuple[str, ...]) -> bool:
        if pod.request is None:
            log.warning("a running pod's request is invalid", extra={"why": pod.fault})
            self._done[pod.uid] = pod.metadata.resource_version
            return True
        annotations = {
            ANNOTATION_ASSIGNED: "true",
            ANNOTATION_ASSIGN_TIME: str(self._clock.wall_ns()),
            ANNOTATION_RUNNING_ON: encode_running_on(pod.request, uuids),
        }
        meta = pod.metadata
        try:
            await self._kube.annotate_pod(meta.namespace, meta.name, meta.uid, annotations)
        except ApiError as err:
            # A deleted pod leaves the watch, too, and is then no longer due.
            log.info("report not written yet", extra={"pod": pod.key, "why": str(err)})
            return False
        self._done[pod.uid] = meta.resource_version
        log.info("reported as running", extra={"pod": pod.key, "cards": uuids})
        return True


def _is_reported(pod: NodePod) -> bool:
    return pod.annotations.get(ANNOTATION_ASSIGNED) == "true" and bool(
        pod.annotations.get(ANNOTATION_RUNNING_ON)
    )
