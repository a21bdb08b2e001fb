"""Ends gangs that have begun and do not get their minimum in time."""

import logging
from typing import Final

from extender.binding.fenced_writer import Writer
from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.eviction.stuck_pods import Evictions
from extender.metrics.counters import BROKEN_GANGS, EVICTIONS
from extender.watch.events import Notice
from gpushare.groups.group import Group
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

EVENT: Final = "GpushareGangBroken"
REASON: Final = "GangBroken"
EVICTIONS.labels(REASON)  # starts at 0: Prometheus misses an increase from nothing to 1


class Undo:
    """Evicts the bound members that a controller replaces, so that the gang waits as a whole."""

    def __init__(self, state: ClusterState, gangs: Gangs, kube: Writer, notice: Notice) -> None:
        self._clock, self._gangs, self._notice = state.clock, gangs, notice
        self._evictions = Evictions(kube, state.clock, any_version=True)

    async def check(self) -> None:
        """Evict all bound members of the gangs whose time is over."""
        now = self._clock.monotonic()
        due: list[tuple[Group, list[Pod]]] = []
        for group, record in self._gangs.begun():
            begun_at = record.begun_at if record.begun_at is not None else now
            is_due = now - begun_at >= self._gangs.complete_seconds(group)
            if not record.is_broken and (not is_due or self._gangs.is_binding(group)):
                continue
            bound = self._gangs.progress(group).bound
            evicted = [pod for pod in bound if pod.has_controller]
            if not record.is_broken:
                self._gangs.broke(group)
                self._tell(group, bound, evicted)
            if evicted:
                due.append((group, evicted))
            else:
                self._gangs.begin_again(group)  # members without a controller stay
        self._evictions.keep_only({pod.uid for _, pods in due for pod in pods})
        for _, pods in due:
            for pod in pods:
                if self._gangs.is_broken(pod) and self._evictions.may_ask(pod):
                    await self._evictions.ask(pod, REASON)

    def _tell(self, group: Group, bound: tuple[Pod, ...], evicted: list[Pod]) -> None:
        name = f"{group.key.namespace}/{group.key.name}"
        BROKEN_GANGS.inc()
        log.warning("gang is broken", extra={"gang": name, "evicted": len(evicted)})
        self._notice(
            (*evicted, *bound)[0],
            EVENT,
            f"gang {group.key.name} has {len(bound)} of {group.minimum} members bound and no room "
            "for the others in time: its bound members that have a controller are evicted",
        )
