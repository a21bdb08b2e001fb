"""Checks every few seconds whether this node is set up correctly, and reports what is wrong.

Each finding is reported once as an Event and as a log line when it appears, and is listed in
/readyz while it lasts; dangerous ones make the plugin not ready. Nothing is stopped for them: pods
that run must go on.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deviceplugin import metrics
from deviceplugin.check import rules
from deviceplugin.check.rules import MissingPods, SetupProblem
from deviceplugin.errors import CheckpointError
from deviceplugin.foreign_files import shown
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.server.grpc_server import SOCKET_NAME, is_served
from deviceplugin.server.registration import KUBELET_SOCKET, Registrar
from deviceplugin.settings import NAME
from gpushare.clock import Clock
from gpushare.kube import events
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0

_FORGOTTEN: Final = (
    "the kubelet's device checkpoint no longer has this running pod (the checkpoint was deleted or "
    "lost), so the kubelet counts its aliyun.com/gpu-mem as free, at the latest after its next "
    "restart; the extender does not, and places nothing on it. When it is convenient, delete the "
    "pod and let its owner create another"
)
_NEVER_ASKED_FOR: Final = (
    "this pod runs with aliyun.com/gpu-mem, is not in the kubelet's device checkpoint and was "
    "never reported as running, so the kubelet started it without asking the device plugin (its "
    "checkpoint was lost or damaged while no plugin was registered). No GPU was assigned to it: "
    "with NVIDIA's runtime an image that asks for all GPUs can use all GPUs of the node, any other "
    "image none. Delete the pod now and let its owner create another"
)


class SelfCheck:
    """``node`` returns the Node as the watch shows it, None before it is known."""

    def __init__(
        self,
        *,
        kube: Kube,
        folder: Path,
        node: Callable[[], Node | None],
        registrar: Registrar,
        pods: NodePods,
        checkpoint: CheckpointFile,
        clock: Clock,
    ) -> None:
        self._kube = kube
        self._folder = folder
        self._node = node
        self._registrar = registrar
        self._pods = pods
        self._checkpoint = checkpoint
        self._clock = clock
        self._found: dict[str, SetupProblem] = {}  # by reason
        self._reported: set[str] = set()
        self._missing = MissingPods()
        self._reported_pods: set[str] = set()
        self._why_unread = ""

    @property
    def why_not_ready(self) -> list[str]:
        return [finding.text for finding in self._found.values() if finding.is_dangerous]

    @property
    def remarks(self) -> list[str]:
        """What is wrong and not dangerous."""
        return [finding.text for finding in self._found.values() if not finding.is_dangerous]

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._check_node()
            await self._check_pods()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _check_node(self) -> None:
        names = other_sockets(self._folder)
        rivals = [name for name in names if rules.is_rival(name)]
        served = [shown(name) for name in rivals if is_served(self._folder / name)]
        now = asyncio.get_running_loop().time()
        others = [shown(name) for name in names]
        found = rules.about_stream(self._registrar.ended_at, now, others)
        found += rules.about_node(self._node(), served)
        before, self._found = self._found, {finding.reason: finding for finding in found}
        for reason in self._found.keys() - before.keys():
            log.error(self._found[reason].text, extra={"finding": reason})
        for reason in before.keys() - self._found.keys():
            log.info("finding resolved", extra={"finding": reason})
        node = self._node()
        for finding in self._found.values():
            if node is not None and finding.reason not in self._reported:
                self._reported.add(finding.reason)
                await self._record(node, finding.reason, finding.text)

    async def _check_pods(self) -> None:
        try:
            held = {(entry.pod_uid, entry.container) for entry in self._checkpoint.read()}
        except CheckpointError as err:
            if self._why_unread != str(err):
                log.warning("the kubelet's devices are not known", extra={"why": str(err)})
            self._why_unread = str(err)
            self._missing.reset()
            return
        self._why_unread = ""
        missing = self._missing.check(self._pods, held, self._clock.monotonic())
        metrics.FORGOTTEN.set(len(missing.forgotten))
        metrics.NEVER_ASKED_FOR.set(len(missing.never_asked_for))
        self._reported_pods &= {pod.uid for pod in self._pods}
        for pod in missing.never_asked_for:
            await self._report_once(pod, "StartedWithoutPlugin", _NEVER_ASKED_FOR)
        for pod in missing.forgotten:
            await self._report_once(pod, "DevicesForgotten", _FORGOTTEN)

    async def _report_once(self, pod: Pod, reason: str, text: str) -> None:
        if pod.uid not in self._reported_pods:
            self._reported_pods.add(pod.uid)
            log.error(text, extra={"pod": pod.key})
            await self._record(pod, reason, text)

    async def _record(self, about: Node | Pod, reason: str, text: str) -> None:
        await events.record(self._kube, about, reason, text, component=NAME, clock=self._clock)


def other_sockets(folder: Path) -> Sequence[str]:
    """Return the names of the other plugins' sockets; none where the folder cannot be read."""
    try:
        return sorted(
            path.name
            for path in folder.iterdir()
            if path.name != KUBELET_SOCKET
            and not path.name.startswith(SOCKET_NAME)
            and path.is_socket()
        )
    except OSError:
        return []
