"""Looks every few seconds whether this node is set up right, and says so where it is not.

Each finding is told once as an Event and as a log line whenever it appears, and stands in /readyz
for as long as it lasts; the dangerous ones are reasons not to be ready. Nothing is stopped for
them: pods that run must go on.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deviceplugin import metrics
from deviceplugin.check import rules
from deviceplugin.check.forgotten import Forgotten
from deviceplugin.check.rules import Finding
from deviceplugin.errors import CheckpointError
from deviceplugin.foreign_files import shown
from deviceplugin.kubelet.checkpoint_file import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.report.node import COMPONENT
from deviceplugin.server.grpc_server import SOCKET_NAME, is_served
from deviceplugin.server.registration import KUBELET_SOCKET, Registrar
from gpushare.clock import Clock
from gpushare.kube import events
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0

_FORGOTTEN: Final = (
    "the kubelet's device checkpoint no longer has this running pod (somebody deleted the "
    "checkpoint, or it was lost), so the kubelet counts its aliyun.com/gpu-mem as free, from its "
    "next restart on at the latest; the extender does not, and places nothing on it. When it "
    "suits, delete the pod and let its owner make another"
)
_NEVER_ASKED_FOR: Final = (
    "this pod runs with aliyun.com/gpu-mem, is not in the kubelet's device checkpoint and was "
    "never reported as running, so the kubelet has started it without asking the device plugin "
    "(its checkpoint was lost or damaged while no plugin was registered). It was given no card: "
    "under NVIDIA's runtime an image that asks for all cards has all cards of the node, any other "
    "none. Delete the pod now and let its owner make another"
)


class SelfCheck:
    """``node`` gives the Node as the watch shows it, None before there is one."""

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
        self._found: list[Finding] = []
        self._told: set[str] = set()
        self._forgotten = Forgotten()
        self._told_pods: set[str] = set()
        self._why_unread = ""

    @property
    def why_not_ready(self) -> list[str]:
        return [finding.text for finding in self._found if finding.is_dangerous]

    @property
    def remarks(self) -> list[str]:
        """What is wrong and endangers nobody."""
        return [finding.text for finding in self._found if not finding.is_dangerous]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._look_at_node()
            await self._look_at_pods()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _look_at_node(self) -> None:
        names = sockets_beside_ours(self._folder)
        rivals = [name for name in names if rules.is_rival(name)]
        served = [shown(name) for name in rivals if is_served(self._folder / name)]
        now = asyncio.get_running_loop().time()
        others = [shown(name) for name in names]
        found = rules.about_stream(self._registrar.ended_at, now, others)
        found += rules.about_node(self._node(), served)
        before = {finding.reason for finding in self._found}
        self._found = list({finding.reason: finding for finding in found}.values())
        for finding in self._found:
            if finding.reason not in before:
                log.error(finding.text, extra={"finding": finding.reason})
        for reason in before - {finding.reason for finding in self._found}:
            log.info("set right", extra={"finding": reason})
        node = self._node()
        for finding in self._found:
            if node is not None and finding.reason not in self._told:
                self._told.add(finding.reason)
                await self._tell(node, finding.reason, finding.text)

    async def _look_at_pods(self) -> None:
        try:
            held = {(entry.pod_uid, entry.container) for entry in self._checkpoint.read()}
        except CheckpointError as err:
            if self._why_unread != str(err):
                log.warning("cannot tell whose devices the kubelet knows", extra={"why": str(err)})
            self._why_unread = str(err)
            self._forgotten.cannot_tell()
            return
        self._why_unread = ""
        missing = self._forgotten.look(self._pods, held, self._clock.monotonic())
        metrics.FORGOTTEN.set(len(missing.forgotten))
        metrics.NEVER_ASKED_FOR.set(len(missing.never_asked_for))
        self._told_pods &= {pod.uid for pod in self._pods}
        for pod in missing.never_asked_for:
            await self._tell_once(pod, "StartedWithoutPlugin", _NEVER_ASKED_FOR)
        for pod in missing.forgotten:
            await self._tell_once(pod, "DevicesForgotten", _FORGOTTEN)

    async def _tell_once(self, pod: Pod, reason: str, text: str) -> None:
        if pod.uid not in self._told_pods:
            self._told_pods.add(pod.uid)
            log.error(text, extra={"pod": pod.key})
            await self._tell(pod, reason, text)

    async def _tell(self, about: Node | Pod, reason: str, text: str) -> None:
        await events.record(self._kube, about, reason, text, component=COMPONENT, clock=self._clock)


def sockets_beside_ours(folder: Path) -> Sequence[str]:
    """Names of the other plugins' sockets; none where the folder cannot be read."""
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
