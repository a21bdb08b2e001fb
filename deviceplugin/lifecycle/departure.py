"""Takes over from another plugin, and leaves in a way that fails no pod."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from deviceplugin.errors import CheckpointError
from deviceplugin.kubelet.checkpoint import CheckpointFile, Version
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.lifecycle.handover import Predecessor, Successor, Successors
from deviceplugin.report.node import NodeReport
from deviceplugin.server.grpc_server import Service
from deviceplugin.server.registration import Registrar
from gpushare.clock import Clock
from gpushare.errors import ApiError
from gpushare.process.lifetime import cancel

log = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 25.0  # of the pod's grace period of 30 s
CONFIRM_SECONDS: Final = 5.0  # for the driver to show the GPUs before taking over
TAKE_IN_SECONDS: Final = 5.0  # for the kubelet to take in the device list that it reads
STANDBY_SECONDS: Final = 3.0  # for a process of the same container to stand by
QUIET_SECONDS: Final = 1.0  # from the decision to bind a pod to its admission by the kubelet
ROUND_TRIPS: Final = 4  # in the same time: the extender's watch, both its writes, our watch
LINGER_SECONDS: Final = 0.5  # for calls from before the other plugin had registered
_POLL_SECONDS: Final = 0.05
_SHOWN: Final = 5


class Departure:
    """``confirmed`` is set once the driver has shown the GPUs."""

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
        """Register with the kubelet, and again whenever it has lost the plugin, until cancelled.

        No container may start before the driver has confirmed its GPU, and the kubelet retries a
        refused start after 10 s: as long as another plugin can answer, it does.
        """
        if predecessor is not None:
            await _first_of(self._confirmed.wait(), predecessor.ends(), seconds=CONFIRM_SECONDS)
        await self._registrar.run()

    async def arrive(self, predecessor: Predecessor | None) -> None:
        """Return once the kubelet knows our devices, and no other plugin is left."""
        before = self._checkpoint.version()
        await self._registrar.is_read_once.wait()
        await self._taken_in(before)
        self._report.serves()
        if predecessor is not None:
            await predecessor.leaves()
            await self._registrar.register_again()

    async def _taken_in(self, before: Version | None) -> None:
        """Return once the kubelet has taken in our list, which it has written since ``before``.

        It opens the list first, and rejects every pod that it admits in between. On a busy node,
        that is long enough for pods that have waited for this plugin.
        """
        try:
            async with asyncio.timeout(TAKE_IN_SECONDS):
                while not self._checkpoint.has_devices_since(before):  # noqa: ASYNC110 - a file
                    await asyncio.sleep(_POLL_SECONDS)
        except (TimeoutError, CheckpointError) as err:
            # No GPU is healthy, or the file has another format.
            log.info("the kubelet's devices are not known", extra={"why": repr(err)})

    async def leave(
        self,
        successors: Successors,
        *,
        is_one_coming: bool,
        handed_over: Callable[[], Awaitable[None]],
    ) -> None:
        """Hand over to a plugin that stands by; without one, wait until no pod is on its way.

        The parts that only one plugin may run have ended; calls are still answered.
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
            log.warning(
                "leaving before all pods are admitted", extra={"not_admitted_yet": waiting[:_SHOWN]}
            )

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
            await _first_of(successors.come(), self._drain())
            if not successors.are_waiting:
                return None

    async def _drain(self) -> None:
        """Stop new pods from coming to this node; return once all that were sent are admitted."""
        began = self._clock.monotonic()
        try:
            if not await self._report.announce_leaving():
                return
        except ApiError as err:
            log.warning("the node is still offered", extra={"why": str(err)})
            return
        announced = self._clock.monotonic()
        log.info("leaving: no new pods are sent to this node")
        # A slow API server delays a pod that was already sent as much as this write.
        quiet_seconds = QUIET_SECONDS + ROUND_TRIPS * (announced - began)
        while not self._is_quiet(announced, quiet_seconds):  # noqa: ASYNC110 - the kubelet's file sends no notification
            await asyncio.sleep(_POLL_SECONDS)

    def _is_quiet(self, announced: float, quiet_seconds: float) -> bool:
        since = max(announced, self._service.admitted_at)
        return self._clock.monotonic() - since >= quiet_seconds and not self._on_their_way()

    def _on_their_way(self) -> list[NodePod]:
        """Return the pods bound to this node that the kubelet has not admitted yet."""
        try:
            admitted = {entry.pod_uid for entry in self._checkpoint.read()}
        except CheckpointError as err:
            log.warning("the admitted pods are not known", extra={"why": str(err)})
            return []
        return [
            pod
            for pod in self._pods
            if pod.asks
            and not (pod.is_terminal or pod.metadata.deletion_timestamp or pod.status.start_time)
            and pod.uid not in admitted
        ]


async def _first_of(*waits: Coroutine[Any, Any, object], seconds: float | None = None) -> None:
    """Return when one of ``waits`` has ended, or after ``seconds``; cancel the others.

    Raises the error of one that has failed.
    """
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel(tasks)
