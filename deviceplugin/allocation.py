"""GetPreferredAllocation and Allocate: whom the kubelet means, and what that one gets.

Early binding must know now, for the answer is final. Late binding answers with a name for the
device IDs and leaves the card to the container's start; it looks at the kubelet's pods only to
refuse, at once and with a reason, a pod that nobody has decided on.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Literal

from deviceplugin import answers, cdi, devices, metrics
from deviceplugin.checkpoint import Entry
from deviceplugin.checkpoint_file import CheckpointFile
from deviceplugin.errors import CheckpointError, KubeletError, NoMatch, PluginError, Reason, Refused
from deviceplugin.grant import Grant, grant_of, has_decision, without_decision
from deviceplugin.identity import Admission, Match, find
from deviceplugin.kubelet_pods import PodSource
from deviceplugin.node_cards import NodeCards
from deviceplugin.pods import NodePods
from gpushare.objects import Pod
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.5  # with the kubelet's second well below what one answer may take

_LOOK_AGAIN_SECONDS: Final = 0.02

BindingName = Literal["late", "early"]


class Allocations:
    """The kubelet admits one pod at a time, so one Allocate leads to the next."""

    def __init__(
        self,
        binding: BindingName,
        cards: NodeCards,
        kubelet: PodSource,
        watch: NodePods,
        checkpoint: CheckpointFile,
    ) -> None:
        self._binding = binding
        self._cards = cards
        self._kubelet = kubelet
        self._watch = watch
        self._checkpoint = checkpoint
        self._admission: Admission | None = None
        self._preferred: tuple[frozenset[str], Match] | None = None
        self._known_to_watch: frozenset[str] = frozenset()

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Units of the cards on the pod's record, then others; empty where no pod can be told.

        A wish is never worth a failed pod, so this raises nothing of ours.
        """
        self._preferred = None
        is_sure = True
        try:
            try:
                match = await self._find(size)
            except KubeletError:
                # A wrong guess costs device IDs of another card, which are counted.
                match, is_sure = find(list(self._watch), self._holders(), size, None), False
            grant = grant_of(match.pod, self._cards.inventory)
        except PluginError as err:
            log.info("no preference among devices", extra={"units": size, "why": str(err)})
            return []
        chosen = devices.choose(available, must, size, grant.tags)
        if is_sure:
            self._preferred = frozenset(chosen), match
        return chosen

    async def allocate(self, device_ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
        """The answer for one container; an error here fails its pod for good.

        Raises NoMatch, Refused or KubeletError.
        """
        ids = frozenset(device_ids)
        if not ids:
            raise Refused("Allocate names no devices: nothing is asked for")
        if self._binding == "late":
            await self._check_decision(ids)
            return answers.late(cdi.share_name(ids))
        return answers.early(await self._environment(ids))

    async def _check_decision(self, ids: frozenset[str]) -> None:
        try:
            match = await self._match(ids)
        except (NoMatch, KubeletError) as err:
            metrics.FOUND.labels("later").inc()
            log.info("pod not known yet, its start will tell", extra={"why": str(err)})
            return
        if not any(has_decision(candidate.pod) for candidate in match.candidates):
            raise without_decision(match.pod)

    async def _environment(self, ids: frozenset[str]) -> dict[str, str]:
        try:
            match = await self._match(ids)
        except KubeletError as err:
            return await self._environment_without_kubelet(ids, err)
        grant = self._healthy_grant(match.pod)
        log.info(
            "allocated",
            extra={
                "pod": match.pod.key,
                "container": match.container,
                "units": len(ids),
                "cards": grant.uuids,
                "how": match.how.value,
                "candidates": len(match.candidates),
            },
        )
        return grant.environment(match.container)

    async def _environment_without_kubelet(
        self, ids: frozenset[str], why: KubeletError
    ) -> dict[str, str]:
        """From our own watch, which may lag: only where all that could be meant get the same."""
        match = await self._from_watch(len(ids))
        found = [
            self._healthy_grant(candidate.pod).environment(candidate.container)
            for candidate in match.candidates
        ]
        if any(environment != found[0] for environment in found):
            names = ", ".join(candidate.pod.key for candidate in match.candidates[:5])
            raise NoMatch(
                f"{len(ids)} units could be for any of {len(found)} pods on different cards "
                f"({names}), and the kubelet does not say which it admits: {why}"
            ) from why
        metrics.FOUND.labels("watch").inc()
        log.warning("pod taken from the watch", extra={"pod": match.pod.key, "why": str(why)})
        return found[0]

    async def _from_watch(self, units: int) -> Match:
        """Find the pod in our own watch, which sees one pod in three later than the kubelet.

        A pod that was not there at the Allocate before is taken at once. One that was may have been
        rejected since, while the one that is meant is still on its way: it is taken only when
        WATCH_SECONDS have passed. Raises NoMatch then.
        """
        known, clock = self._known_to_watch, asyncio.get_running_loop()
        deadline = clock.time() + WATCH_SECONDS
        while True:
            is_late = clock.time() >= deadline
            try:
                match = find(list(self._watch), self._holders(), units, None)
            except NoMatch:
                if is_late:
                    raise
            else:
                if is_late or match.pod.uid not in known:
                    self._known_to_watch = frozenset(pod.uid for pod in self._watch)
                    return match
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _match(self, ids: frozenset[str]) -> Match:
        preferred, self._preferred = self._preferred, None
        if preferred is not None and preferred[0] == ids:
            match = preferred[1]
        else:
            match = await self._find(len(ids))
        self._admission = match.admission
        metrics.FOUND.labels(match.how.value).inc()
        return match

    async def _find(self, units: int) -> Match:
        return find(await self._kubelet.fetch(), self._holders(), units, self._admission)

    def _holders(self) -> dict[str, set[str]]:
        holders: dict[str, set[str]] = {}
        for entry in self._entries():
            holders.setdefault(entry.pod_uid, set()).add(entry.container)
        return holders

    def _entries(self) -> Sequence[Entry]:
        try:
            return self._checkpoint.read()
        except CheckpointError as err:
            # The kubelet's own list still tells pods apart, and the start is checked exactly.
            log.warning("going on without the checkpoint", extra={"why": str(err)})
            return ()

    def _healthy_grant(self, pod: Pod) -> Grant:
        grant = grant_of(pod, self._cards.inventory)
        for card in grant.cards:
            if why := self._cards.why_unhealthy(card):
                raise Refused(
                    f"pod {pod.key}: its card {card.uuid} is unhealthy: {why}",
                    pod=pod,
                    reason=Reason.CARD_UNHEALTHY,
                )
        return grant
