"""Makes kube-scheduler try a pod without a gate again."""

from extender.gangs.rights import PatchRight
from extender.gates.releaser import Outcome, Release, Releaser
from extender.metrics.counters import WAKE_UPS
from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_POKE
from gpushare.objects.model import Pod


class Pokes:
    """kube-scheduler tries a pod again that it has rejected when an annotation of it changes."""

    def __init__(self, releaser: Releaser, right: PatchRight, clock: Clock) -> None:
        self._releaser, self._right, self._clock = releaser, right, clock

    async def poke(self, pod: Pod) -> Outcome:
        value = f"{self._clock.wall_ns():x}"
        patch = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION_POKE: value}}}
        outcome = await self._releaser.patch(Release(pod, patch))
        WAKE_UPS.labels("poked" if outcome is Outcome.RELEASED else "refused").inc()
        if outcome is Outcome.REFUSED:
            self._right.doubt()
        return outcome
