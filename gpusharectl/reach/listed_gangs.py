"""Gangs as the API server's lists of pods and PodGroups show them."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpushare.annotations.pod_annotations import request_of
from gpushare.answers.gangs import GangView, NoGangs
from gpushare.answers.group_states import GroupStates
from gpushare.clock import SystemClock
from gpushare.errors import ApiError, NotFound
from gpushare.groups.index import Groups
from gpushare.groups.model import GroupKey, Source
from gpushare.groups.pod_groups import API_GROUPS, RESOURCE, PodGroupObject, value_of
from gpushare.groups.reasons import NOT_SERVED
from gpushare.groups.sources import key_of
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pod_groups
from gpushare.objects.model import Pod
from gpushare.placement.trial import World
from gpushare.planning.ask import NoPlan
from gpushare.planning.planner import Planner
from gpushare.planning.waiting import ask_of
from gpushare.process.time_slices import run_all
from gpushare.text.counted import counted
from gpusharectl.reach.rights import Right, needing

MOST_PLANNED: Final = 20  # gangs: each takes up to half a second in a large cluster
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ListedGangs:
    """``missing`` says which gangs are left out, and why."""

    states: GroupStates
    missing: list[str]


class ReportedGangs(NoGangs):
    """The gangs that an extender reports, for the pods that name them. Implements GangStates."""

    def __init__(self, pods: Iterable[Pod], views: Iterable[GangView]) -> None:
        self._views = list(views)
        by_key = {each.key: each for each in self._views}
        keys = ((pod.uid, key_of(pod)) for pod in pods)
        self._of = {uid: by_key.get(str(key)) for uid, key in keys}

    def views(self) -> Iterable[GangView]:
        return self._views

    def view_of(self, uid: str) -> GangView | None:
        return self._of.get(uid)


async def gangs_of(
    kube: Kube,
    pods: Iterable[Pod],
    unit_mib: int,
    namespace: str = "",
    *,
    world: World | None = None,
) -> ListedGangs:
    """Return the gangs of the pods, which are those of a namespace, or all.

    PodGroups are listed if a pod names one. Gangs whose PodGroups may not be listed are left out.
    Without the unit, which is 0 then, amounts are not known. In a ``world`` with all nodes and pods
    the first gangs that wait are planned, so that it is known what has room for them.
    """
    groups, missing = await groups_of(kube, pods, namespace)
    clock = SystemClock()
    states = GroupStates(
        groups,
        request_of,
        unit_mib,
        lambda: clock.wall_ns() / _NS,
        _no_plans(groups, world) if world is not None else {},
    )
    return ListedGangs(states, missing)


async def groups_of(
    kube: Kube, pods: Iterable[Pod], namespace: str = ""
) -> tuple[Groups, list[str]]:
    """Return the gangs of the pods, and which gangs are left out, as in ``gangs_of``."""
    groups, missing = Groups(), list[str]()
    by_source: dict[Source, list[Pod]] = {source: [] for source in Source}
    for pod in pods:
        key = key_of(pod)
        if key is not None:
            by_source[key.source].append(pod)
    for source, members in by_source.items():
        if not members:
            continue
        if source in API_GROUPS:
            try:
                await _put_pod_groups(groups, kube, source, namespace)
            except ApiError as err:
                number = counted(len({key_of(pod) for pod in members}), "gang")
                missing.append(f"{number} with PodGroups left out: {err}")
                continue
        for pod in members:
            groups.update(pod)
    return groups, missing


def _no_plans(groups: Groups, world: World) -> dict[GroupKey, NoPlan]:
    """Plan the first gangs that wait, around their bound members; return those without room."""
    found, planner = {}, Planner(world)
    ours = (each for each in groups if each.is_ours and each.problem is None)
    due = (each for each in ours if each.bound < each.minimum)
    for group in islice((each for each in due if each.count >= each.minimum), MOST_PLANNED):
        plan = run_all(planner.plan(ask_of(group, world)))
        if isinstance(plan, NoPlan):
            found[group.key] = plan
    return found


async def _put_pod_groups(groups: Groups, kube: Kube, source: Source, namespace: str) -> None:
    group, versions = API_GROUPS[source]
    for version in versions:
        collection = pod_groups(group, version, namespace=namespace)
        try:
            with needing(Right("list", f"{RESOURCE}.{group}", namespace)):
                found = await list_all(kube, collection, PodGroupObject)
        except NotFound:
            continue
        deque(groups.replaced_pod_groups(source, [value_of(each, source) for each in found]), 0)
        return
    groups.set_unreadable(source, NOT_SERVED)
