"""Releases every gated pod, without room for it: while gates are off (``gates: false``)."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from extender.gates.patch import release_patch
from extender.gates.releaser import Outcome, Release, Releaser
from gpushare.clock import Clock
from gpushare.contract import GATE_ADMISSION
from gpushare.kube import paths
from gpushare.kube.backoff import Retries
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

# A gated pod has no node; it counts also if it has no GPU memory and no gang.
GATED: Final = paths.pods(field_selector="spec.nodeName=")
WAIT_SECONDS: Final = 60.0


class Ungating:
    """Watches gated pods, and removes our gate from each until that succeeds.

    The extender needs the right to patch pods; without it, every attempt fails and is logged.
    """

    def __init__(self, kube: Kube, releaser: Releaser, clock: Clock) -> None:
        self._releaser = releaser
        self._gated: dict[str, Pod] = {}
        self._change = asyncio.Event()
        self._retries: Retries[str] = Retries(clock)
        self._informer = Informer(kube, GATED, Pod, self, naming=GATE_ADMISSION.encode())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            group.create_task(self._release_all())

    def replaced(self, items: list[Pod]) -> None:
        self._gated = {pod.uid: pod for pod in items if pod.has_our_gate}
        self._retries.keep_only(self._gated)
        self._change.set()

    def changed(self, pod: Pod) -> None:
        if not pod.has_our_gate:
            self.deleted(pod)
        else:
            self._gated[pod.uid] = pod
            self._change.set()

    def deleted(self, pod: Pod) -> None:
        self._gated.pop(pod.uid, None)

    async def _release_all(self) -> None:
        while True:
            self._change.clear()
            due = [pod for uid, pod in self._gated.items() if self._retries.is_ready(uid)]
            releases = [Release(pod, release_patch(pod)) for pod in due]
            outcomes = await self._releaser.release_all(releases)
            for pod in due:
                has_ended = outcomes[pod.uid] in (Outcome.RELEASED, Outcome.GONE)
                self._retries.tried(pod.uid, landed=has_ended)
                if has_ended:
                    self.deleted(pod)
            if due:
                log.info("gated pods released without a plan", extra=_counted(outcomes))
            await self._retries.wait(self._change, WAIT_SECONDS)


def _counted(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    return {str(outcome): number for outcome, number in Counter(outcomes.values()).items()}
