"""PreStartContainer: the moment at which it is certain whose the devices are.

By now the kubelet's checkpoint names pod and container for exactly these device IDs. An error here
leaves the pod waiting with our text and is tried again, so nothing has to be guessed: a container
starts on the cards that are on its pod's record, or it does not start.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response, last_check
from deviceplugin.allocation.grant import Grant, grant_of, off_card
from deviceplugin.allocation.injection import Injections
from deviceplugin.cards import device_list
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi import spec_files
from deviceplugin.errors import CheckpointError, InvalidRequest, KubeletError, Reason, Refused
from deviceplugin.kubelet.checkpoint import Entry
from deviceplugin.kubelet.checkpoint_file import CheckpointFile
from deviceplugin.kubelet.pods_endpoint import PodSource
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.clock import Clock
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

_ROOM_SECONDS: Final = 0.5
_LOOK_AGAIN_SECONDS: Final = 0.02
_SWEEP_SECONDS: Final = 60.0
_KEPT_SECONDS: Final = 120.0  # far more than from a file's writing to its container's creation


class Starts:
    """``started(pod uid, UUIDs)`` is called once a container of that pod may start.

    ``was_let_start(pod uid)``: whether one was in this program's life.
    """

    def __init__(
        self,
        *,
        cards: NodeCards,
        kubelet: PodSource,
        watch: NodePods,
        checkpoint: CheckpointFile,
        specs: spec_files.Specs,
        injections: Injections,
        started: Callable[[str, Sequence[str]], None],
        was_let_start: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._cards = cards
        self._kubelet = kubelet
        self._watch = watch
        self._checkpoint = checkpoint
        self._specs = specs
        self._injections = injections
        self._started = started
        self._was_let_start = was_let_start
        self._clock = clock
        self._swept_at: float | None = None
        self._counted: set[str] = set()

    async def before_start(self, device_ids: Sequence[str]) -> None:
        """Nothing if the container may start now, with all that it needs in place.

        Raises InvalidRequest, Refused, CheckpointError or KubeletError; the kubelet tries again.
        """
        ids = frozenset(device_ids)
        if not ids:
            raise InvalidRequest("PreStartContainer names no devices")
        entries = self._entries_of(ids)
        pod, entries = await self._owner(ids, entries)
        grant = grant_of(pod, self._cards.inventory)
        for card in grant.cards:
            if trouble := self._cards.trouble(card, at_start=True):
                reason, why = trouble
                raise Refused(
                    f"pod {pod.key}: its card {card.uuid} cannot be used: {why}",
                    pod=pod,
                    reason=reason,
                )
        await self._wait_for_room(grant)  # from here to _started nothing may be awaited
        for entry in entries:
            self._make_true(entry, grant)
        self._count_off_card(ids, grant)
        self._started(pod.uid, grant.uuids)
        self._sweep()
        log.info(
            "container may start",
            extra={
                "pod": pod.key,
                "containers": sorted(entry.container for entry in entries),
                "units": len(ids),
                "cards": grant.uuids,
            },
        )

    async def _wait_for_room(self, grant: Grant) -> None:
        """Refused if the card is too full also when the watch has had time to show who has ended.

        The extender may have seen it before us, and a refusal costs the pod seconds; a watch whose
        connection is lost without a word is late by far more, so the kubelet has the last word.
        """
        deadline = self._clock.monotonic() + _ROOM_SECONDS
        while self._clock.monotonic() < deadline:
            try:
                self._check_room(grant, ())
            except Refused:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            else:
                return
        self._check_room(grant, await self._ended())

    def _check_room(self, grant: Grant, ended: Container[str]) -> None:
        """Refused if the card is too full, the pod uids ``ended`` left aside."""
        pods = (pod for pod in self._watch if pod.uid not in ended)
        last_check.check(grant, pods, self._cards.inventory, self._was_let_start)

    async def _ended(self) -> frozenset[str]:
        """The pods of the watch that the kubelet does not have any more; none if it cannot say."""
        try:
            live = {pod.uid for pod in await self._kubelet.fetch() if not pod.is_terminal}
        except KubeletError as err:
            log.info("the watch says which pods have ended", extra={"why": str(err)})
            return frozenset()
        return frozenset(pod.uid for pod in self._watch if pod.uid not in live)

    def _entries_of(self, ids: frozenset[str]) -> list[Entry]:
        entries = [entry for entry in self._checkpoint.read() if entry.device_ids == ids]
        if not entries:
            raise Refused(
                f"no container holds just these {len(ids)} devices ({_shown(ids)}) in the "
                f"kubelet's checkpoint"
            )
        return entries

    async def _owner(self, ids: frozenset[str], entries: list[Entry]) -> tuple[Pod, list[Entry]]:
        """The one live pod among the entries: those of deleted pods stay for a while."""
        uids = sorted({entry.pod_uid for entry in entries})
        pods = [pod for uid in uids if (pod := self._watch.by_uid(uid)) is not None]
        if len(pods) < len(uids):
            known = {pod.uid: pod for pod in await self._kubelet.fetch()}
            pods = [pod for uid in uids if (pod := self._watch.by_uid(uid) or known.get(uid))]
        pods = [pod for pod in pods if not pod.is_terminal]
        if len(pods) != 1:
            raise Refused(
                f"the devices {_shown(ids)} belong to {len(pods)} live pods: the kubelet's "
                f"checkpoint names {', '.join(uids)}, of which there are "
                f"{', '.join(pod.key for pod in pods) or 'none'}"
            )
        return pods[0], [entry for entry in entries if entry.pod_uid == pods[0].uid]

    def _make_true(self, entry: Entry, grant: Grant) -> None:
        """See to it that what Allocate answered now means the cards on record."""
        answered = allocate_response.read(entry.answer, self._cards.inventory)
        is_early = bool(answered.cards) or not answered.share
        if is_early and answered.cards != frozenset(grant.uuids):
            raise Refused(
                f"pod {grant.pod.key}: container {entry.container} was given "
                f"{', '.join(sorted(answered.cards)) or 'no card'} by Allocate, and "
                f"{', '.join(grant.uuids)} is on record: the kubelet keeps that answer as long as "
                f"the pod lives, so delete the pod",
                pod=grant.pod,
                reason=Reason.ANSWER_STALE,
            )
        injection, edits = self._injections.at_start(
            grant,
            has_share=bool(answered.share),
            is_late=not is_early,
            was_let_start=self._was_let_start(grant.pod.uid),
        )
        if answered.share:
            environment = grant.environment(entry.container, injection)
            self._specs.write(answered.share, spec_files.Given(grant.pod.uid, environment, edits))

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if self._swept_at is not None and now - self._swept_at < _SWEEP_SECONDS:
            return
        if not self._watch.is_listed:
            return  # whether a pod is gone cannot be told
        try:
            live = {entry.pod_uid for entry in self._checkpoint.read()}
        except CheckpointError as err:
            log.info("no CDI files are swept", extra={"why": str(err)})
            return
        self._swept_at = now
        live |= {pod.uid for pod in self._watch}
        self._specs.sweep(live, self._clock.wall_ns() / 1e9 - _KEPT_SECONDS)

    def _count_off_card(self, ids: frozenset[str], grant: Grant) -> None:
        # Once a pod and set of IDs: this is called again at each restart of the container.
        key = f"{grant.pod.uid} {spec_files.share_name(ids)}"
        if key in self._counted:
            return
        live = {entry.pod_uid for entry in self._checkpoint.read()}
        self._counted = {old for old in self._counted if old.partition(" ")[0] in live} | {key}
        metrics.IDS_OFF_CARD.inc(off_card(tuple(ids), grant.tags, device_list.TAG_LENGTH))


def _shown(ids: frozenset[str]) -> str:
    return " to ".join(dict.fromkeys((min(ids), max(ids)))) if ids else "none"
