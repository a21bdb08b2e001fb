"""GetPreferredAllocation and Allocate: whom the kubelet means, and what that one gets.

Early binding must know now, for the answer is final. Late binding answers with a name for the
device IDs and leaves the card to the container's start; it looks at the kubelet's pods only to
refuse, at once and with a reason, a pod that nobody has decided on.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response
from deviceplugin.allocation.grant import (
    Grant,
    check_own_variable,
    grant_of,
    has_decision,
    without_decision,
)
from deviceplugin.allocation.injection import Injections
from deviceplugin.allocation.which_pod import Admission, Candidate, Match, find
from deviceplugin.cards import device_list
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi import spec_files
from deviceplugin.cdi.binding import Binding
from deviceplugin.errors import (
    CheckpointError,
    InvalidRequest,
    KubeletError,
    NoMatch,
    PluginError,
    Refused,
)
from deviceplugin.kubelet.checkpoint import Entry
from deviceplugin.kubelet.checkpoint_file import CheckpointFile
from deviceplugin.kubelet.pods_endpoint import PodSource
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.objects.model import Pod
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.5  # with the kubelet's second well below what one answer may take

_LOOK_AGAIN_SECONDS: Final = 0.02


class Allocations:
    """The kubelet admits one pod at a time, so one Allocate leads to the next.

    ``binding`` is asked at each call.
    """

    def __init__(
        self,
        binding: Binding,
        cards: NodeCards,
        kubelet: PodSource,
        watch: NodePods,
        *,
        checkpoint: CheckpointFile,
        specs: spec_files.Specs,
        injections: Injections,
    ) -> None:
        self._binding = binding
        self._injections = injections
        self._cards = cards
        self._kubelet = kubelet
        self._watch = watch
        self._checkpoint = checkpoint
        self._specs = specs
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
        chosen = device_list.choose(available, must, size, grant.tags)
        if is_sure:
            self._preferred = frozenset(chosen), match
        return chosen

    async def allocate(self, device_ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
        """The answer for one container; an error here fails its pod for good.

        Raises InvalidRequest, NoMatch, Refused or KubeletError.
        """
        ids = frozenset(device_ids)
        if not ids:
            raise InvalidRequest("Allocate names no devices: nothing is asked for")
        if len(ids) < len(device_ids):
            raise InvalidRequest(
                f"Allocate names {len(device_ids)} devices and only {len(ids)} different ones: how "
                f"much is asked for cannot be told"
            )
        if self._binding.why_not:
            raise Refused(self._binding.why_not)
        holder = await self._holder_of_unknown(ids)
        choice, share = self._binding.now, spec_files.share_name(ids)
        if choice.binding == "late":
            if holder is None:
                await self._check_decision(ids)
            self._specs.withdraw(share)
            return allocate_response.late(share)
        if holder is not None:
            environment = self._environment_again(holder)
        else:
            environment = await self._environment(ids)
        if not choice.names_cdi_too:
            return allocate_response.early(environment)
        self._specs.withdraw(share)
        return allocate_response.early(environment, share)

    async def _holder_of_unknown(self, ids: frozenset[str]) -> Candidate | None:
        """The holder of devices that are not ours; None where all are ours.

        They are an older plugin's: a pod keeps them for as long as it lives. When it has just ended
        the kubelet may give them to the next, before it reads that they are listed no more.
        """
        inventory = self._cards.inventory
        unknown = device_list.unknown(ids, inventory) if inventory is not None else []
        if not unknown:
            return None
        holder = await self._holder(ids)
        if holder is None and not self._cards.once_inherited.issuperset(unknown):
            raise Refused(
                f"{len(unknown)} of {len(ids)} devices are of no card of this node "
                f"({unknown[0][:63]!r} is one), and no live pod holds them in the kubelet's "
                f"checkpoint"
            )
        return holder

    async def _holder(self, ids: frozenset[str]) -> Candidate | None:
        """The one live pod that holds just these devices, and its container; None if none does."""
        entries = [entry for entry in self._entries() if entry.device_ids == ids]
        if not entries:
            return None
        try:
            pods: Iterable[Pod] = await self._kubelet.fetch()
        except KubeletError as err:
            log.info("the watch says which pods live", extra={"why": str(err)})
            pods = self._watch
        live = {pod.uid: pod for pod in pods if not pod.is_terminal}
        holders = {entry.pod_uid: entry.container for entry in entries if entry.pod_uid in live}
        if len(holders) != 1:
            return None
        ((uid, container),) = holders.items()
        return Candidate(live[uid], container)

    async def _check_decision(self, ids: frozenset[str]) -> None:
        try:
            match = await self._match(ids)
        except (NoMatch, KubeletError) as err:
            metrics.FOUND.labels("later").inc()
            log.info("pod not known yet, its start will tell", extra={"why": str(err)})
            return
        if not any(has_decision(candidate.pod) for candidate in match.candidates):
            raise without_decision(match.pod)
        faults = [self._fault(candidate.pod) for candidate in match.candidates]
        if faults[0] is not None and all(faults):
            raise faults[0]
        log.info(
            "allocated, its start will tell the card",
            extra={
                "pod": match.pod.key,
                "container": match.container,
                "units": len(ids),
                "how": match.how.value,
                "candidates": len(match.candidates),
            },
        )

    async def _environment(self, ids: frozenset[str]) -> dict[str, str]:
        try:
            match = await self._match(ids)
        except KubeletError as err:
            return await self._environment_without_kubelet(ids, err)
        except NoMatch:
            # The kubelet has lost what it knew of a container that was served.
            holder = await self._holder(ids)
            if holder is None:
                raise
            return self._environment_again(holder)
        grant = self._early_grant(match.pod)
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
        return self._given(grant, match.container)

    def _fault(self, pod: Pod) -> Refused | None:
        """What is wrong with the pod and must be said before any of it starts; else None."""
        try:
            grant = grant_of(pod, self._cards.inventory)
        except Refused as err:
            log.info("its start will tell", extra={"pod": pod.key, "why": str(err)})
            return None
        try:
            self._injections.check_admission(grant)
        except Refused as err:
            return err
        return None

    def _given(self, grant: Grant, container: str) -> dict[str, str]:
        return grant.environment(container, self._injections.by_runtime(grant))

    def _environment_again(self, holder: Candidate) -> dict[str, str]:
        metrics.FOUND.labels("checkpoint").inc()
        log.info("allocated again", extra={"pod": holder.pod.key, "container": holder.container})
        return self._given(self._early_grant(holder.pod), holder.container)

    async def _environment_without_kubelet(
        self, ids: frozenset[str], why: KubeletError
    ) -> dict[str, str]:
        """From our own watch, which may lag: only where all that could be meant get the same."""
        match = await self._from_watch(len(ids))
        found = [self._environment_if_any(candidate) for candidate in match.candidates]
        if any(environment != found[0] for environment in found):
            names = ", ".join(candidate.pod.key for candidate in match.candidates[:5])
            raise NoMatch(
                f"{len(ids)} units could be for any of {len(found)} pods on different cards "
                f"({names}), and the kubelet does not say which it admits: {why}"
            ) from why
        environment = self._given(self._early_grant(match.pod), match.container)
        metrics.FOUND.labels("watch").inc()
        log.warning("pod taken from the watch", extra={"pod": match.pod.key, "why": str(why)})
        return environment

    def _environment_if_any(self, candidate: Candidate) -> dict[str, str] | None:
        """None for a pod that would be refused: what is wrong with it is not said of another."""
        try:
            return self._given(self._early_grant(candidate.pod), candidate.container)
        except Refused:
            return None

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

    def _early_grant(self, pod: Pod) -> Grant:
        grant = grant_of(pod, self._cards.inventory)
        for card in grant.cards:
            if trouble := self._cards.trouble(card):
                reason, why = trouble
                raise Refused(
                    f"pod {pod.key}: its card {card.uuid} is unhealthy: {why}",
                    pod=pod,
                    reason=reason,
                )
        check_own_variable(grant.request, pod)
        self._injections.check_admission(grant)
        return grant
