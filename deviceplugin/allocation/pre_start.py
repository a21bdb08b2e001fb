"""PreStartContainer: the call at which the owner of the devices is certain.

The kubelet's checkpoint now names pod and container for exactly these device IDs. An error here
leaves the container waiting with our text and the kubelet tries again, so nothing has to be
guessed: a container starts on the GPUs in its pod's annotations, or it does not start.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response
from deviceplugin.allocation.rules import Grant, check_capacity, check_isolation, grant_of
from deviceplugin.allocation.sources import Sources
from deviceplugin.cards.device_list import TAG_LENGTH
from deviceplugin.cdi import spec_files
from deviceplugin.errors import CheckpointError, InvalidRequest, KubeletError, Reason, Refused
from deviceplugin.isolation.variables import Enforcement
from deviceplugin.kubelet.checkpoint import Entry
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.clock import Clock

log = logging.getLogger(__name__)

_CAPACITY_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.02
_SWEEP_SECONDS: Final = 60.0
_KEPT_SECONDS: Final = 120.0  # far more than from a file's writing to its container's creation


class Starts:
    """Calls ``started(pod uid, UUIDs)`` once a container of that pod may start."""

    def __init__(
        self, sources: Sources, started: Callable[[str, Sequence[str]], None], clock: Clock
    ) -> None:
        self._cards = sources.cards
        self._kubelet = sources.kubelet
        self._watch = sources.watch
        self._checkpoint = sources.checkpoint
        self._specs = sources.specs
        self._injections = sources.injections
        self._started = started
        self._clock = clock
        self._swept_at: float | None = None
        self._let_start: set[str] = set()  # uids of pods, in this program's life
        self._counted: set[tuple[str, frozenset[str]]] = set()

    async def before_start(self, device_ids: Sequence[str]) -> None:
        """Return if the container may start now, with all that it needs in place.

        Raises InvalidRequest, Refused, CheckpointError or KubeletError; the kubelet tries again.
        """
        ids = frozenset(device_ids)
        if not ids:
            raise InvalidRequest("PreStartContainer names no devices")
        pod, entries = await self._owner(ids)
        grant = grant_of(pod, self._cards.inventory)
        for card in grant.cards:
            if trouble := self._cards.trouble(card, at_start=True):
                reason, why = trouble
                raise Refused(
                    f"pod {pod.key}: its GPU {card.uuid} cannot be used: {why}",
                    pod=pod,
                    reason=reason,
                )
        await self._wait_for_capacity(grant)  # from here on nothing may be awaited
        enforcement = self._cards.isolation.of(grant.cards)
        # An init container may have the same devices as others, and so the same file.
        names = [entry.container for entry in entries]
        for entry in entries:
            self._write_share(entry, grant, names, enforcement)
        self._let_start.add(entries[0].pod_uid)
        self._count_off_card(ids, grant)
        self._started(entries[0].pod_uid, grant.uuids)
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

    async def _wait_for_capacity(self, grant: Grant) -> None:
        """Refuse the start if the GPU is too full even once the watch shows which pods have ended.

        The extender may have seen that before this plugin, and a refusal costs the pod seconds. A
        watch whose connection is lost silently is late by far more, so the kubelet decides last.
        """
        deadline = None
        while True:
            now = self._clock.monotonic()
            deadline = deadline or now + _CAPACITY_SECONDS
            try:
                return check_capacity(grant, self._watch, self._cards.inventory, self._let_start)
            except Refused:
                if now >= deadline:
                    break
            await asyncio.sleep(_POLL_SECONDS)
        ended = await self._ended()
        pods = (pod for pod in self._watch if pod.uid not in ended)
        return check_capacity(grant, pods, self._cards.inventory, self._let_start)

    async def _ended(self) -> frozenset[str]:
        """Return the pods of the watch that the kubelet no longer has, if the kubelet answers."""
        try:
            live = {pod.uid for pod in await self._kubelet.fetch() if not pod.is_terminal}
        except KubeletError as err:
            log.info("using the watch to see which pods have ended", extra={"why": str(err)})
            return frozenset()
        return frozenset(pod.uid for pod in self._watch if pod.uid not in live)

    async def _owner(self, ids: frozenset[str]) -> tuple[NodePod, list[Entry]]:
        """Return the one live pod in the checkpoint's entries: those of deleted pods stay a while.

        Raises Refused if there is not exactly one.
        """
        entries = [entry for entry in self._checkpoint.read() if entry.device_ids == ids]
        uids = sorted({entry.pod_uid for entry in entries})
        if not uids:
            raise Refused(
                f"no container holds exactly these {len(ids)} devices ({_shown(ids)}) in the "
                f"kubelet's checkpoint"
            )
        known = {uid: self._watch.by_uid(uid) for uid in uids}
        if None in known.values():
            listed = {pod.metadata.uid: pod for pod in await self._kubelet.fetch()}
            known = {uid: self._watch.by_uid(uid) or listed.get(uid) for uid in uids}
        pods = {uid: pod for uid, pod in known.items() if pod is not None and not pod.is_terminal}
        if len(pods) != 1:
            raise Refused(
                f"the devices {_shown(ids)} belong to {len(pods)} live pods: the kubelet's "
                f"checkpoint names {', '.join(uids)}, and the live pods among them are "
                f"{', '.join(pod.key for pod in pods.values()) or 'none'}"
            )
        ((uid, pod),) = pods.items()
        return pod, [entry for entry in entries if entry.pod_uid == uid]

    def _write_share(
        self, entry: Entry, grant: Grant, names: Sequence[str], enforcement: Enforcement
    ) -> None:
        """Ensure that what Allocate answered now means the GPUs in the pod's annotations."""
        answered = allocate_response.read(entry.answer, self._cards.inventory)
        is_early = bool(answered.cards) or not answered.share
        units = sum(c.units for c in grant.request.containers if c.name == entry.container)
        wanted = enforcement.for_the_hook(grant.share_mib(units))
        if answered.told and not wanted:
            raise Refused(
                f"pod {grant.pod.key}: container {entry.container} was allocated when the driver "
                f"could limit its memory, and it cannot now: the kubelet keeps that answer for "
                f"the pod's lifetime, so delete the pod",
                pod=grant.pod,
                reason=Reason.ANSWER_STALE,
            )
        # Without an answer of ours, the hook obeys what envFrom may have.
        is_served = bool(answered.share) and {**wanted, **answered.told} == wanted
        is_served &= answered.told == wanted or not grant.reads_variables(names)
        check_isolation(grant, enforcement, is_served=is_served)
        if is_early and answered.cards != frozenset(grant.uuids):
            raise Refused(
                f"pod {grant.pod.key}: Allocate gave container {entry.container} "
                f"{', '.join(sorted(answered.cards)) or 'no GPU'}, and the pod's annotations name "
                f"{', '.join(grant.uuids)}: the kubelet keeps that answer for the pod's lifetime, "
                f"so delete the pod",
                pod=grant.pod,
                reason=Reason.ANSWER_STALE,
            )
        injection, edits = self._injections.at_start(
            grant,
            has_share=bool(answered.share),
            is_late=not is_early,
            was_let_start=entry.pod_uid in self._let_start,
            limits=enforcement.is_limited,
        )
        if answered.share:
            environment = grant.environment(
                names, injection, enforcement, answered.told, is_served=is_served
            )
            self._specs.write(answered.share, spec_files.Given(entry.pod_uid, environment, edits))

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if self._swept_at is not None and now - self._swept_at < _SWEEP_SECONDS:
            return
        if not self._watch.is_listed:
            return  # it is not known which pods are deleted
        try:
            live = {entry.pod_uid for entry in self._checkpoint.read()}
        except CheckpointError as err:
            log.info("no CDI files are swept", extra={"why": str(err)})
            return
        self._swept_at = now
        live |= {pod.uid for pod in self._watch}
        self._let_start &= live
        self._counted = {each for each in self._counted if each[0] in live}
        self._specs.sweep(live, self._clock.wall_ns() / 1e9 - _KEPT_SECONDS)

    def _count_off_card(self, ids: frozenset[str], grant: Grant) -> None:
        """Count IDs of other GPUs, once for a pod and its IDs: containers start again."""
        key = grant.pod.metadata.uid, ids
        if key not in self._counted:
            self._counted.add(key)
            tags = {card.tag for card in grant.cards}
            metrics.IDS_OFF_CARD.inc(sum(text[:TAG_LENGTH] not in tags for text in ids))


def _shown(ids: frozenset[str]) -> str:
    return " to ".join(dict.fromkeys((min(ids), max(ids))))
