"""Gangs in a simulation: who belongs together, what each waits for, and where it fits (pure)."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from gpushare.answers.gang_text import view
from gpushare.answers.gangs import GangFacts, GangFigures, GangView, Phase, facts_of
from gpushare.answers.queue.over_quota import is_over
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.model import GroupKey, PodGroup
from gpushare.groups.pod_groups import API_GROUPS
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask, NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.process.time_slices import run_all
from gpushare.quota.planned import planned
from gpusharectl.simulate.simulated_cluster import SimulatedCluster
from gpusharectl.simulate.view import short
from gpusharectl.simulate.world import SimulatedWorld


def name_of(group: Group) -> str:
    """Return for example ``gang ml/train``."""
    return f"gang {short(group.key.namespace, group.key.name)}"


class SimulatedGangs:
    """Implements GangStates. ``at`` is the simulated time in seconds.

    A gang that has been complete once is PLACED: its later members are placed one by one.
    """

    gates_stay = False

    def __init__(self, cluster: SimulatedCluster, pod_groups: Iterable[PodGroup]) -> None:
        self.at = 0
        self._cluster, self._world = cluster, SimulatedWorld(cluster)
        self._planner, self._groups = Planner(self._world), cluster.groups
        self._since: dict[str, int] = {}  # by uid
        self._whole: set[GroupKey] = set()
        self._no_plan: dict[GroupKey, NoPlan] = {}  # as of ``_planned_at``
        self._planned_at = (0, 0)
        listed = list(pod_groups)
        for source in API_GROUPS:
            own = [each for each in listed if each.key.source is source]
            deque(self._groups.replaced_pod_groups(source, own), maxlen=0)

    def put(self, pod: Pod) -> None:
        """Take a new pod, or one that was bound."""
        self._groups.update(pod)
        group = self._groups.of(pod.uid)
        if group is None:
            return
        self._since.setdefault(pod.uid, self.at)
        if group.problem is None and group.bound >= group.minimum:
            self._whole.add(group.key)

    def forget(self, pod: Pod) -> None:
        group = self._groups.of(pod.uid)
        self._groups.forget(pod.uid)
        self._since.pop(pod.uid, None)
        if group is not None and not group.members:
            self._whole.discard(group.key)
            self._no_plan.pop(group.key, None)

    def of(self, pod: Pod) -> Group | None:
        """Return the gang of a pod."""
        return self._groups.of(pod.uid)

    def plan(self, group: Group) -> tuple[Slot, ...]:
        """Return where members can start now: enough of them for the minimum, or none."""
        found = self._plan(group)
        self._no_plan.pop(group.key, None)
        if isinstance(found, NoPlan):
            self._no_plan[group.key] = found
            return ()
        return found.slots

    def renew(self) -> None:
        """Find out what has room now for the gangs that wait."""
        now = self._cluster.ledger.changes.now, self._cluster.namespaces.version
        if now == self._planned_at:
            return
        self._planned_at = now
        for key in list(self._no_plan):
            group = self._groups.get(key)
            if group is not None:
                self.plan(group)

    def ask(self, group: Group) -> Ask | None:
        """Return what to plan for a gang; None if nothing can start now, whatever is free."""
        waiting = tuple(pod for pod in group.present() if not pod.node)
        least = self._lacking(group)
        if group.problem is not None or not waiting or least > len(waiting):
            return None
        return Ask(
            name_of(group),
            waiting,
            least,
            zone_key=group.zone_key,
            zone=self._zone(group),
            cards=sum(self._cards(pod) for pod in group.present()),
        )

    def why_over(self, group: Group) -> Reason | None:
        """Return why the quota leaves too little for a gang that waits, if that is the reason."""
        found = self._no_plan.get(group.key)
        return found.reason if found is not None and is_over(found.reason) else None

    def _lacking(self, group: Group) -> int:
        return 0 if group.key in self._whole else group.minimum - group.bound

    def _plan(self, group: Group) -> Plan | NoPlan:
        ask = self.ask(group)
        if ask is None:
            return Plan(())
        return run_all(planned(self._planner, self._cluster.quotas, self._world, ask))

    def views(self) -> Iterator[GangView]:
        return (self._view(group) for group in list(self._groups))

    def view_of(self, uid: str) -> GangView | None:
        group = self._groups.of(uid)
        return None if group is None else self._view(group)

    def figures(self) -> GangFigures:
        return GangFigures({}, 0)  # for the metrics of a program

    def _view(self, group: Group) -> GangView:
        return view(self._facts(group), self.at)

    def _facts(self, group: Group) -> GangFacts:
        found = facts_of(group, self._world.request_of, self._world.unit_mib)
        created = min(self._since[uid] for uid in group.members)
        over, waiting = self.why_over(group), [pod for pod in group.present() if not pod.node]
        lacking = self._cluster.lacking
        return replace(
            found,
            phase=Phase.PLACED if group.key in self._whole else found.phase,
            zone=self._zone(group) or "",
            created=datetime.fromtimestamp(created, UTC).isoformat(),
            no_plan=self._no_plan.get(group.key),
            over_quota=lacking.of_gang(over, waiting, self._lacking(group)) if over else None,
        )

    def _zone(self, group: Group) -> str | None:
        if not group.zone_key:
            return None
        nodes = (self._world.node(pod.node) for pod in group.present() if pod.node)
        zones = (node.labels.get(group.zone_key) for node in nodes if node is not None)
        return next((zone for zone in zones if zone), None)

    def _cards(self, pod: Pod) -> int:
        try:
            return self._world.request_of(pod).card_count
        except RequestError:
            return 0
