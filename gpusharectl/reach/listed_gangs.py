"""Gangs as the API server's lists of pods and PodGroups show them."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpushare.annotations.pod_annotations import request_of
from gpushare.answers.group_states import GroupStates
from gpushare.clock import SystemClock
from gpushare.errors import ApiError, NotFound
from gpushare.groups.index import Groups
from gpushare.groups.model import Source
from gpushare.groups.pod_groups import API_GROUPS, RESOURCE, PodGroupObject, value_of
from gpushare.groups.reasons import NOT_SERVED
from gpushare.groups.sources import key_of
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pod_groups
from gpushare.objects.model import Pod
from gpushare.text.counted import counted
from gpusharectl.reach.rights import Right, needing

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ListedGangs:
    """``missing`` says which gangs are left out, and why."""

    states: GroupStates
    missing: list[str]


async def gangs_of(
    kube: Kube, pods: Iterable[Pod], unit_mib: int, namespace: str = ""
) -> ListedGangs:
    """Return the gangs of the pods, which are those of a namespace, or all.

    PodGroups are listed if a pod names one. Gangs whose PodGroups may not be listed are left out.
    Without the unit, which is 0 then, amounts are not known.
    """
    groups, missing, clock = Groups(), list[str](), SystemClock()
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
    states = GroupStates(groups, request_of, unit_mib, lambda: clock.wall_ns() / _NS)
    return ListedGangs(states, missing)


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
