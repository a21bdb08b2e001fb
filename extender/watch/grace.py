"""Gives the watch a moment before a pending pod is rejected again.

kube-scheduler retries a rejected pod because of an event: it has just seen another pod end, for
example. Our own watch may be a moment behind, and a rejection based on the state before that event
would leave the pod pending for minutes, because nothing else happens to it then.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from extender.decisions.filter import Filtered
from extender.decisions.preemption.proposals import Proposals
from extender.decisions.scheduling import Scheduling
from gpushare.objects.model import Pod

TURNS: Final = 5  # of the event loop: it handles what has arrived already within these
SECONDS: Final = 0.01
MOST: Final = 20
WITHIN_SECONDS: Final = 4.0  # kube-scheduler waits meanwhile, with all its pods: 5 % of its time


class Grace:
    """Decides a second time, after a moment for the watch, where the first answer is a rejection.

    It waits ``MOST`` times in ``WITHIN_SECONDS`` at most, and otherwise only handles what has
    arrived. It may wait several times in a row: a pod's end is several updates within some 150 ms,
    kube-scheduler retries at each (eventhandlers.go), and only the last one frees the units.
    """

    def __init__(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._waits: deque[float] = deque(maxlen=MOST)

    async def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        """Return the nodes to offer to a pod, and note the answer."""
        found = self._scheduling.filter(pod, nodes)
        if await self.waited(pod, found):
            found = self._scheduling.filter(pod, nodes)
        self.note(pod, len(nodes), found)
        return found

    async def waited(self, pod: Pod, found: Filtered) -> bool:
        """Wait before a pod is rejected again; return whether to decide a second time.

        It need not wait for an answer after which kube-scheduler tries the pod again anyway.
        """
        if found.fitting or found.is_retried:
            return False
        if not self._scheduling.state.pods.was_rejected(pod.uid):
            return False
        await self.wait()
        return True

    def note(self, pod: Pod, asked: int, found: Filtered) -> None:
        """Note an answer about so many nodes: explain and Events say why a pod is rejected."""
        why = () if found.fitting else (*found.failed.values(), *found.final.values())
        pods, now = self._scheduling.state.pods, self._scheduling.state.clock.monotonic()
        pods.answer(pod.uid, asked, why, now)

    async def preempt(self, pod: Pod, proposed: Mapping[str, Sequence[str]]) -> Proposals:
        """Sort proposed nodes, with the uids of their victims, by whether the pod would fit."""
        found = self._scheduling.proposals.judge(pod, proposed)
        if not found.kept:
            await self.wait()
            found = self._scheduling.proposals.judge(pod, proposed)
        return found

    async def wait(self) -> None:
        """Return once the watch has handled what has arrived."""
        now = self._scheduling.state.clock.monotonic()
        if len(self._waits) < MOST or now - self._waits[0] >= WITHIN_SECONDS:
            self._waits.append(now)
            await asyncio.sleep(SECONDS)
        for _ in range(TURNS):
            await asyncio.sleep(0)
