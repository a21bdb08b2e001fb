"""Admits gangs and pods that wait: takes room for them in order, then removes their gates."""

import asyncio
from collections.abc import Generator, Iterator
from math import inf
from typing import Final

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.stages import GangStages
from extender.decisions.queue.facts import QueueViews
from extender.decisions.queue.unplaced import Unplaced
from extender.decisions.queue.waiting_pods import WaitingPods
from extender.gangs.planning import GangPlanning
from extender.gangs.pokes import Pokes
from extender.gangs.rights import PatchRight
from extender.gates.patch import nomination_patch, release_patch
from extender.gates.releaser import Outcome, Release, Releaser
from extender.queue.admission_round import AdmissionRound
from extender.queue.head_claims import HeadClaiming
from extender.settings.configuration import QueueSettings
from gpushare.groups.group import Group
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod

EVERY_SECONDS: Final = 0.1
POKE_SECONDS: Final = 1.0  # after which kube-scheduler should have asked about an ungated pod
POKE_AGAIN_SECONDS: Final = 10.0  # the second time twice as long, and so on
MOST_POKE_SECONDS: Final = 320.0
NOMINATED_NODES: Final = 2000  # in the cluster, from which a nomination saves more than it costs
SHOWN_SECONDS: Final = 2.0  # in which the watch should have shown that a gate is gone

_QUEUE: Final = QueueSettings()


class Admission:
    """Gives gangs and pods that wait a slot, in their order, and releases them.

    A gang or pod without a gate is planned too. kube-scheduler may not notice that there is room
    for it now, so its pods get an annotation that makes kube-scheduler try them again.
    """

    def __init__(
        self,
        gangs: Gangs,
        planning: GangPlanning,
        releaser: Releaser,
        right: PatchRight,
        settings: QueueSettings = _QUEUE,
    ) -> None:
        self._state, self._gangs, self._planning = gangs.state, gangs, planning
        self._stages = GangStages(gangs)
        self._pods = WaitingPods(gangs.state, is_autoscaled=settings.autoscaled)
        self._heads = HeadClaiming(gangs, planning, self._pods, settings)
        self._round = AdmissionRound(
            gangs, planning, self._pods, settings, self._heads.is_passed_over
        )
        self._unplaced = Unplaced(gangs, self._pods)
        self._is_autoscaled = settings.autoscaled
        gangs.state.queue = QueueViews(
            gangs,
            self._pods,
            settings,
            failed=lambda: self._round.without_room,
            first_seconds=lambda: self._heads.first_seconds,
        )
        self._releaser, self._right = releaser, right
        self._pokes = Pokes(releaser, right, gangs.state.clock)
        self._releasing: set[str] = set()  # uids
        self._released: dict[str, float] = {}  # by uid, when, as long as the watch may not show it
        self._retries: Retries[str] = Retries(gangs.state.clock, 1.0, 60.0)
        self._poked: dict[str, tuple[float, float]] = {}  # by uid: when, and for how long

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claim())
            while True:
                await self.check(tasks)  # its computations rest by themselves
                await asyncio.sleep(0.0 if self._round.is_cut_short else EVERY_SECONDS)

    async def _claim(self) -> None:
        """Check the claims beside the rounds: that takes seconds in a large cluster."""
        while True:
            await self.check_claims()
            await asyncio.sleep(EVERY_SECONDS)

    async def check_claims(self) -> None:
        """Claim GPUs for those that have been first for too long."""
        if self._gangs.admits:
            await self._heads.check(self._round.without_room)
        else:
            self._heads.drop_all()

    async def check(self, tasks: asyncio.TaskGroup) -> None:
        """Plan what has no slots, and release what has."""
        now = self._state.clock.monotonic()
        self._released = {uid: at for uid, at in self._released.items() if now - at < SHOWN_SECONDS}
        self._retries.keep_while(self._is_known)
        self._gangs.admits = await self._right.is_given()
        self._gangs.gates_stay = self._right.is_denied
        if not self._gangs.admits:
            # Without the component for gates, a gang gets room when kube-scheduler asks about it.
            await self._planning.slices.run(self._pods.renew())  # people see what waits
            return
        await self._release_all(tasks)
        await self._round.run(lambda each: self._admitted(tasks, each))
        await self._planning.slices.pause()
        if self._is_autoscaled:
            await self._planning.slices.run(self._begin(tasks, self._unplaced_releases()))
        await self._release_all(tasks)
        await self._planning.slices.run(self._poke_late(tasks))

    def _is_known(self, uid: str) -> bool:
        state = self._state
        is_pod = state.pods.get(uid) is not None or uid in state.gated_without_need
        return is_pod or state.groups.of(uid) is not None

    async def _admitted(self, tasks: asyncio.TaskGroup, admitted: Group | Pod) -> None:
        if isinstance(admitted, Group):
            await self._planning.slices.pause()
            await self._planning.slices.run(self._begin(tasks, self._of_gang(admitted)))
        elif not admitted.gates:
            tasks.create_task(self._poke(admitted))
        elif (release := self._release_of_single(admitted)) is not None:
            self._start(tasks, release)

    async def _release_all(self, tasks: asyncio.TaskGroup) -> None:
        with self._round.pace():
            await self._planning.slices.run(self._begin(tasks, self._releases()))

    def _begin(
        self, tasks: asyncio.TaskGroup, releases: Iterator[Release | None]
    ) -> Generator[None, None, None]:
        for release in releases:
            if release is not None:
                self._start(tasks, release)
            yield

    def _start(self, tasks: asyncio.TaskGroup, release: Release) -> None:
        self._releasing.add(release.pod.uid)
        tasks.create_task(self._release(release))

    def _releases(self) -> Iterator[Release | None]:
        """Yield what can be released, and None for each pod and gang that cannot be."""
        for group in self._stages.complete():
            yield from self._of_gang(group) if group is not None else (None,)
        for pod in self._pods.with_slots():
            yield self._release_of_single(pod) if pod.gates else None
        for pod in list(self._state.gated_without_need.values()):
            yield Release(pod, release_patch(pod)) if self._may_release(pod) else None

    def _unplaced_releases(self) -> Iterator[Release | None]:
        for pod in self._unplaced.permitted():
            is_due = pod is not None and self._may_release(pod)
            yield Release(pod, release_patch(pod)) if pod is not None and is_due else None

    def _of_gang(self, group: Group) -> Iterator[Release | None]:
        yield None
        if not group.gated:
            return
        zone = self._gangs.zone_of(group)
        for pod in group.present():
            if pod.has_our_gate:
                yield self._release_of(pod, zone=(group.zone_key, zone) if zone else None)

    def _release_of_single(self, pod: Pod) -> Release | None:
        """Return the release of a pod in no gang; kube-scheduler needs little time for one."""
        return self._release_of(pod, is_nominated=len(self._state.nodes) >= NOMINATED_NODES)

    def _release_of(
        self, pod: Pod, *, zone: tuple[str, str] | None = None, is_nominated: bool = True
    ) -> Release | None:
        slot = self._state.ledger.slot_of(pod.uid)
        if slot is None or not self._may_release(pod):
            return None
        patch = release_patch(pod, node=slot.node, cards=slot.cards, zone=zone)
        nomination = nomination_patch(pod, slot.node, slot.cards) if is_nominated else None
        return Release(pod, patch, nomination)

    def _may_release(self, pod: Pod) -> bool:
        is_left = pod.uid not in self._releasing and pod.uid not in self._released
        return is_left and self._retries.is_ready(pod.uid)

    async def _release(self, release: Release) -> None:
        pod = release.pod
        try:
            outcome = await self._releaser.release(release)
        finally:
            self._releasing.discard(pod.uid)
        is_done = outcome in {Outcome.RELEASED, Outcome.GONE}
        self._retries.tried(pod.uid, landed=is_done)
        if outcome is Outcome.RELEASED:
            self._released[pod.uid] = self._state.clock.monotonic()
        if outcome is Outcome.REFUSED:
            self._right.doubt()
        if outcome in {Outcome.CONFLICT, Outcome.REFUSED}:
            # Its nodes are restricted by now, or we may not do this: the next plan shows.
            self._state.ledger.drop_slot(pod.uid)

    def _poke_late(self, tasks: asyncio.TaskGroup) -> Generator[None, None, None]:
        """Poke ungated members with slots about which kube-scheduler has not asked.

        A member that was poked and is not bound is poked once more for each plan, and less and less
        often in between.
        """
        now = self._state.clock.monotonic()
        self._poked = {
            uid: (at, pause)
            for uid, (at, pause) in self._poked.items()
            if now - at < 2 * MOST_POKE_SECONDS
        }
        for group in self._stages.complete():
            yield
            if group is None:
                continue
            record = self._gangs.record(group)
            is_gated = group.gated == group.count - group.bound
            if is_gated or now - record.held_at < POKE_SECONDS:
                continue
            for pod in self._gangs.progress(group).slotted:
                is_asked = pod.uid in record.offered and self._state.is_plain(group)
                at, pause = self._poked.get(pod.uid, (-inf, POKE_AGAIN_SECONDS / 2))
                is_due = at < record.held_at or now - at >= pause
                if is_due and not (pod.gates or is_asked):
                    self._poked[pod.uid] = now, min(2 * pause, MOST_POKE_SECONDS)
                    tasks.create_task(self._poke(pod))
                    yield

    async def _poke(self, pod: Pod) -> None:
        await self._pokes.poke(pod)
