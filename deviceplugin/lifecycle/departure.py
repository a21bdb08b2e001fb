"""How this plugin takes over from another, and how it leaves so that no pod fails by it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from deviceplugin.errors import CheckpointError
from deviceplugin.kubelet.checkpoint_file import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.lifecycle.handover import Predecessor, Successor, Successors
from deviceplugin.report.node import NodeReport
from deviceplugin.server.grpc_server import Service
from deviceplugin.server.registration import Registrar
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.clock import Clock
from gpushare.errors import ApiError
from gpushare.objects.model import Pod
from gpushare.process.lifetime import cancel

log = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 25.0  # of the 30 s that the pod has to end
CONFIRM_SECONDS: Final = 5.0  # for the driver to show the cards before we take over
STANDBY_SECONDS: Final = 3.0  # for a process of the same container to stand by
QUIET_SECONDS: Final = 1.0  # from the decision to bind a pod to its admission by the kubelet
LINGER_SECONDS: Final = 0.5  # for calls that the kubelet began before the other had registered
_LOOK_SECONDS: Final = 0.05
_SHOWN: Final = 5


class Departure:
    """``confirmed`` is set once the driver has shown the cards."""

    def __init__(
        self,
        *,
        registrar: Registrar,
        service: Service,
        report: NodeReport,
        pods: NodePods,
        checkpoint: CheckpointFile,
        confirmed: asyncio.Event,
        clock: Clock,
    ) -> None:
        self._registrar = registrar
        self._service = service
        self._report = report
        self._pods = pods
        self._checkpoint = checkpoint
        self._confirmed = confirmed
        self._clock = clock

    async def register(self, predecessor: Predecessor | None) -> None:
        """Register with the kubelet, and again whenever it has forgotten us. Until cancelled.

        No container may start before the driver has confirmed its card, and the kubelet tries a
        start that was refused 10 s later: as long as another plugin can answer, it does.
        """
        if predecessor is not None:
            await _first_of(self._confirmed.wait(), predecessor.ends(), seconds=CONFIRM_SECONDS)
        await self._registrar.run()

    async def arrive(self, predecessor: Predecessor | None) -> None:
        """Return when the kubelet reads our list, and no other plugin is left."""
        await self._registrar.is_read_once.wait()
        self._report.serves()
        if predecessor is not None:
            await predecessor.leaves()
            await self._registrar.register_again()

    async def leave(
        self,
        successors: Successors,
        *,
        is_one_coming: bool,
        handed_over: Callable[[], Awaitable[None]],
    ) -> None:
        """Hand over to a plugin that stands by; without one, wait until no pod is on its way.

        The parts that only one plugin may run have ended, calls are still answered.
        ``handed_over`` is awaited as soon as another plugin serves.
        """
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                successor = await self._successor(successors, is_one_coming=is_one_coming)
                if successor is None:
                    return
                await handed_over()
                await self._registrar.let_go()
                await successor.let_go()
                await asyncio.sleep(LINGER_SECONDS)
        except TimeoutError:
            waiting = [pod.key for pod in self._on_their_way()]
            log.warning("leaving too early", extra={"not_admitted_yet": waiting[:_SHOWN]})

    async def _successor(self, successors: Successors, *, is_one_coming: bool) -> Successor | None:
        if not self._registrar.is_read_once.is_set():
            return None  # there is nothing to hand over
        if is_one_coming:
            await _first_of(successors.come(), seconds=STANDBY_SECONDS)
        while True:
            if successors.are_waiting:
                found = await successors.take_over()
                if found is not None:
                    return found
                await self._registrar.take_back()
            await _first_of(successors.come(), self._leave_alone())
            if not successors.are_waiting:
                return None

    async def _leave_alone(self) -> None:
        """Have nothing new sent to this node; return once all that was sent is admitted."""
        try:
            if not await self._report.announce_leaving():
                return
        except ApiError as err:
            log.warning("the node goes on to be offered", extra={"why": str(err)})
            return
        announced = self._clock.monotonic()
        log.info("leaving: nothing new is sent to this node")
        while not self._is_quiet(announced):  # noqa: ASYNC110 - the kubelet's file tells nobody
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_quiet(self, announced: float) -> bool:
        since = max(announced, self._service.admitted_at)
        return self._clock.monotonic() - since >= QUIET_SECONDS and not self._on_their_way()

    def _on_their_way(self) -> list[Pod]:
        """The pods that were bound to this node and that the kubelet has not admitted yet."""
        try:
            admitted = {entry.pod_uid for entry in self._checkpoint.read()}
        except CheckpointError as err:
            log.warning("it is not known which pods are admitted", extra={"why": str(err)})
            return []
        return [
            pod
            for pod in self._pods
            if asks_for_share(pod)
            and not (pod.is_terminal or pod.metadata.deletion_timestamp or pod.status.start_time)
            and pod.uid not in admitted
        ]


async def _first_of(*waits: Coroutine[Any, Any, object], seconds: float | None = None) -> None:
    """Return when one of ``waits`` has ended, or after ``seconds``; cancel the others."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(tasks)
