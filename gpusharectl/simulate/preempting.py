"""Find whom a pod or gang of a simulation would have evicted (pure)."""

from typing import Final

from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask
from gpushare.preemption.model import Preemption, Rules
from gpushare.preemption.search import VictimSearch
from gpushare.process.time_slices import run_all
from gpusharectl.simulate.simulated_cluster import SimulatedCluster
from gpusharectl.simulate.world import SimulatedWorld

MOST_FAILED: Final = 200  # searches at one time: each takes up to 50 ms for 1,000 nodes
_TOO_MANY: Final = (
    f"evicts nobody here: {MOST_FAILED} other kinds of pods found no victims at that time"
)
_NEVER: Final = "Never"


class Preempting:
    """Searches as the extender does, with its default rules and without PodDisruptionBudgets.

    After MOST_FAILED searches that ``failed``, it notes for whom it does not search any more.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster, self._search = cluster, VictimSearch(SimulatedWorld(cluster))
        self.failed = 0

    def find(self, ask: Ask) -> Preemption | None:
        """Return whom to evict so that the members fit; None if that is not possible or allowed."""
        quotas, members = self._cluster.quotas, ask.members
        lowest = min((pod.priority for pod in self._cluster.bound()), default=None)
        if lowest is None or min(pod.priority for pod in members) <= lowest:
            return None
        limited = quotas.limited(ask)
        if isinstance(limited, Reason) or any(p.spec.preemption_policy == _NEVER for p in members):
            return None
        if self.failed >= MOST_FAILED:
            self._cluster.unknown.add(_TOO_MANY, ask.owner)
            return None
        found = run_all(self._search.find(limited, Rules()))
        if isinstance(found, Preemption) and found.victims:
            return None if quotas.exceeding(limited, found.plan.slots) else found
        self.failed += 1
        return None
