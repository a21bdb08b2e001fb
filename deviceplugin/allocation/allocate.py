"""GetPreferredAllocation and Allocate: find the container that is meant, and answer for it.

Early binding must decide now, because the answer is final. Late binding answers with a name for the
device IDs and leaves the GPU to the container's start; it reads the kubelet's pods only to refuse a
pod without a decision at once and with a reason.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation import allocate_response
from deviceplugin.allocation.admission import Admission, Candidate, Match, find
from deviceplugin.allocation.rules import (
    Grant,
    check_isolation,
    check_own_limits,
    check_own_variable,
    grant_of,
)
from deviceplugin.allocation.sources import Sources
from deviceplugin.cards import device_list
from deviceplugin.cdi import spec_files
from deviceplugin.cdi.binding import Binding
from deviceplugin.errors import (
    CheckpointError,
    InvalidRequest,
    KubeletError,
    NoMatch,
    PluginError,
    Reason,
    Refused,
)
from deviceplugin.kubelet.checkpoint import Entry
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.cards.model import Inventory
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.5  # with the kubelet's second well below what one answer may take

_POLL_SECONDS: Final = 0.02


class Allocations:
    """The state between calls: the kubelet admits one pod at a time.

    ``binding`` is read at each call.
    """

    def __init__(self, binding: Binding, sources: Sources) -> None:
        self._binding = binding
        self._injections = sources.injections
        self._cards = sources.cards
        self._kubelet = sources.kubelet
        self._watch = sources.watch
        self._checkpoint = sources.checkpoint
        self._specs = sources.specs
        self._admission: Admission | None = None
        self._preferred: tuple[frozenset[str], Match] | None = None
        self._last_grant: tuple[NodePod, Inventory | None, Grant] | None = None
        self._known_to_watch: frozenset[str] = frozenset()

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return units of the chosen GPUs, then others; nothing where the pod is not known.

        A preference is never worth a failed pod, so no PluginError is raised.
        """
        self._preferred = None
        is_certain = True
        try:
            try:
                match = await self._find(size)
            except KubeletError:
                # A wrong guess costs device IDs of another GPU, which are counted.
                match, is_certain = find(self._watched(), self._holders(), size, None), False
            grant = self._grant(match.pod)
        except PluginError as err:
            log.info("no preference among devices", extra={"units": size, "why": str(err)})
            return []
        tags = [card.tag for card in grant.cards]
        chosen = device_list.choose(available, must, size, tags)
        if is_certain:
            self._preferred = frozenset(chosen), match
        return chosen

    async def allocate(self, device_ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
        """Return the answer for one container; an error here fails its pod for good.

        Raises InvalidRequest, NoMatch, Refused or KubeletError.
        """
        ids = frozenset(device_ids)
        if not ids:
            raise InvalidRequest("Allocate names no devices, so there is nothing to allocate")
        if len(ids) < len(device_ids):
            raise InvalidRequest(
                f"Allocate names {len(device_ids)} devices, of which only {len(ids)} are "
                f"different: the requested amount is not known"
            )
        if self._binding.why_not:
            raise Refused(self._binding.why_not)
        holder = await self._holder_of_unknown(ids)
        choice, share = self._binding.now, spec_files.share_name(ids)
        if choice.binding == "late":
            told = await self._check_decision(ids) if holder is None else {}
            self._specs.withdraw(share)
            return allocate_response.late(share, told)
        if holder is not None:
            environment = self._environment_again(holder)
        else:
            environment = await self._environment(ids)
        if not choice.names_cdi_too:
            return allocate_response.early(environment)
        self._specs.withdraw(share)
        return allocate_response.early(environment, share)

    async def _holder_of_unknown(self, ids: frozenset[str]) -> Candidate | None:
        """Return the holder of devices that are not ours; None where all are ours.

        They belong to Aliyun gpushare's device plugin: a pod keeps them for its lifetime. When it
        has just ended the kubelet may give them to the next pod, before it reads that they are no
        longer listed.
        """
        inventory = self._cards.inventory
        unknown = device_list.unknown(ids, inventory) if inventory is not None else []
        if not unknown:
            return None
        holder = await self._holder(ids)
        if holder is None and not self._cards.once_inherited.issuperset(unknown):
            raise Refused(
                f"{len(unknown)} of {len(ids)} devices belong to no GPU of this node (for example "
                f"{unknown[0][:63]!r}), and no running pod holds them in the kubelet's checkpoint"
            )
        return holder

    async def _holder(self, ids: frozenset[str]) -> Candidate | None:
        """Return the one live pod that holds exactly these devices, and its container."""
        entries = [entry for entry in self._entries() if entry.device_ids == ids]
        if not entries:
            return None
        try:
            pods: Iterable[NodePod] = await self._kubelet.fetch()
        except KubeletError as err:
            log.info("using the watch to see which pods live", extra={"why": str(err)})
            pods = self._watch
        live = {pod.uid: pod for pod in pods if not pod.is_terminal}
        holders = {entry.pod_uid: entry.container for entry in entries if entry.pod_uid in live}
        if len(holders) != 1:
            return None
        ((uid, container),) = holders.items()
        return Candidate(live[uid], container, (uid, ""))

    async def _check_decision(self, ids: frozenset[str]) -> dict[str, str]:
        """Refuse the pod now if all pods that may be meant have to be.

        Return the variables for NVIDIA's hook if they are the same for all of these pods.

        The decision is in the same write as the pod's node, so the kubelet never has one without
        the other: a pod in its list that has no decision gets none. Our watch may lag behind the
        kubelet, and a pod that is refused wrongly has failed for good, so without the kubelet's
        list the pod is admitted; it is refused at its start, and the extender evicts it.
        """
        try:
            match = await self._match(ids)
        except (NoMatch, KubeletError) as err:
            metrics.FOUND.labels("later").inc()
            log.info("pod not known yet, checked at its start", extra={"why": str(err)})
            return {}
        faults = {each.pod.uid: self._fault(each.pod) for each in match.candidates}
        fault = faults[match.pod.uid]
        if fault is not None and all(faults.values()):
            raise fault
        self._log("allocated, GPU assigned at its start", match, len(ids))
        told = [self._for_the_hook(each.pod, len(ids)) for each in match.candidates]
        return told[0] if all(each == told[0] for each in told) else {}

    def _for_the_hook(self, pod: NodePod, units: int) -> dict[str, str]:
        try:
            grant = self._grant(pod)
        except Refused:
            return {}
        return self._cards.isolation.of(grant.cards).for_the_hook(grant.share_mib(units))

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
        environment = self._environment_of(match)
        self._log("allocated", match, len(ids), cards=self._grant(match.pod).uuids)
        return environment

    def _fault(self, pod: NodePod) -> Refused | None:
        """Return what must be reported before any container of the pod starts, if anything."""
        try:
            grant = self._grant(pod)
        except Refused as err:
            if err.reason in {Reason.NO_DECISION, Reason.DECISION_UNREADABLE}:
                return err
            log.info("refused at its start", extra={"pod": pod.key, "why": str(err)})
            return None
        try:
            self._injections.check_admission(grant)
        except Refused as err:
            return err
        return None

    def _environment_again(self, holder: Candidate) -> dict[str, str]:
        metrics.FOUND.labels("checkpoint").inc()
        log.info("allocated again", extra={"pod": holder.pod.key, "container": holder.container})
        return self._environment_of(holder)

    async def _environment_without_kubelet(
        self, ids: frozenset[str], why: KubeletError
    ) -> dict[str, str]:
        """Use our own watch, which may lag: only where all pods that may be meant get the same."""
        match = await self._from_watch(len(ids))
        found = [self._environment_if_any(candidate) for candidate in match.candidates]
        if any(environment != found[0] for environment in found):
            names = ", ".join(candidate.pod.key for candidate in match.candidates[:5])
            raise NoMatch(
                f"{len(ids)} units could be for any of {len(found)} pods on different GPUs "
                f"({names}), and the kubelet does not report which pod it is admitting: {why}"
            ) from why
        environment = self._environment_of(match)
        metrics.FOUND.labels("watch").inc()
        log.warning("pod taken from the watch", extra={"pod": match.pod.key, "why": str(why)})
        return environment

    def _environment_if_any(self, candidate: Candidate) -> dict[str, str] | None:
        """Return None for a pod to refuse: its fault is not reported of another pod."""
        try:
            return self._environment_of(candidate)
        except Refused:
            return None

    async def _from_watch(self, units: int) -> Match:
        """Find the pod in our own watch, which sees one pod in three later than the kubelet.

        A pod that was not there at the previous Allocate is returned at once. One that was may have
        been rejected since, while the right one is still missing: it is returned only after
        WATCH_SECONDS. Raises NoMatch then.
        """
        known, clock = self._known_to_watch, asyncio.get_running_loop()
        deadline = clock.time() + WATCH_SECONDS
        while True:
            is_late = clock.time() >= deadline
            try:
                match = find(self._watched(), self._holders(), units, None)
            except NoMatch:
                if is_late:
                    raise
            else:
                if is_late or match.pod.uid not in known:
                    self._known_to_watch = frozenset(pod.uid for pod in self._watch)
                    return match
            await asyncio.sleep(_POLL_SECONDS)

    def _watched(self) -> list[NodePod]:
        """Return the pods of our watch that may be meant.

        One that cannot be read could be meant by any call, also after the kubelet rejected it.
        """
        return [pod for pod in self._watch if pod.asked is not None]

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
            # The kubelet's own list still distinguishes pods, and the start is checked exactly.
            log.warning("going on without the checkpoint", extra={"why": str(err)})
            return ()

    def _grant(self, pod: NodePod) -> Grant:
        """Return the pod's grant, which is the same at Allocate as at GetPreferredAllocation."""
        inventory, last = self._cards.inventory, self._last_grant
        if last is None or last[0] is not pod or last[1] is not inventory:
            self._last_grant = last = pod, inventory, grant_of(pod, inventory)
        return last[2]

    def _environment_of(self, found: Match | Candidate) -> dict[str, str]:
        """Return the environment of an early answer; Refused if the container must not start."""
        grant = self._grant(found.pod)
        for card in grant.cards:
            if trouble := self._cards.trouble(card):
                reason, why = trouble
                raise Refused(
                    f"pod {found.pod.key}: its GPU {card.uuid} is unhealthy: {why}",
                    pod=found.pod,
                    reason=reason,
                )
        check_own_variable(grant)
        check_own_limits(grant)
        enforcement = self._cards.isolation.of(grant.cards)
        check_isolation(grant, enforcement)
        self._injections.check_admission(grant)
        injection = self._injections.by_runtime(grant)
        return grant.environment([found.container], injection, enforcement, {})

    def _log(self, message: str, match: Match, units: int, **more: object) -> None:
        fields = {"pod": match.pod.key, "container": match.container, "units": units}
        fields |= {"how": match.how.value, "candidates": len(match.candidates)}
        log.info(message, extra=fields | more)
