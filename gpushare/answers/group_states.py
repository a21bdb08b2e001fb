"""Gangs as their pods and PodGroups show them, without what only the leader knows (pure)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from gpushare.answers.gang_text import view
from gpushare.answers.gangs import GangFacts, GangFigures, GangView, Phase, facts_of
from gpushare.cards.model import Request
from gpushare.groups.group import Group
from gpushare.groups.index import Groups
from gpushare.groups.model import GroupKey
from gpushare.objects.model import Pod
from gpushare.planning.ask import NoPlan

_NONE: Final[Mapping[GroupKey, NoPlan]] = MappingProxyType({})


class GroupStates:
    """``now`` returns the seconds since 1970. Implements GangStates.

    Plans, slots and zones are not known, so no gang is STARTING or BROKEN. ``no_plans`` are those
    that have no room.
    """

    gates_stay = False

    def __init__(
        self,
        groups: Groups,
        request_of: Callable[[Pod], Request],
        unit_mib: int,
        now: Callable[[], float],
        no_plans: Mapping[GroupKey, NoPlan] = _NONE,
    ) -> None:
        self._groups, self._request_of = groups, request_of
        self._unit_mib, self._now, self._no_plans = unit_mib, now, no_plans
        self._facts: dict[GroupKey, tuple[int, GangFacts]] = {}  # with the version of the group

    def views(self) -> Iterator[GangView]:
        self.forget()
        groups = [group for group in self._groups if group.is_ours]
        return (view(self.facts(group), self._now()) for group in groups)

    def view_of(self, uid: str) -> GangView | None:
        group = self._groups.of(uid)
        if group is None or not group.is_ours:
            return None
        return view(self.facts(group), self._now())

    def figures(self) -> GangFigures:
        phases = dict.fromkeys((phase.value for phase in Phase), 0)
        waiting: Counter[str] = Counter()
        for group in self._groups:
            if not group.is_ours:
                continue
            facts = self.facts(group)
            phases[facts.phase.value] += 1
            waiting[facts.phase.value] += facts.members - facts.bound
        return GangFigures(phases, waiting.total() - waiting[Phase.PLACED.value])

    def forget(self) -> None:
        """Forget the facts about gangs that are gone."""
        if len(self._facts) > len(self._groups):
            self._facts = {key: self._facts[key] for key in self._facts if self._groups.get(key)}

    def facts(self, group: Group) -> GangFacts:
        """Return what is known about a gang; computed once for each version of the group."""
        version, found = self._facts.get(group.key, (-1, None))
        if found is None or version != group.version:
            found = facts_of(group, self._request_of, self._unit_mib)
            if (no_plan := self._no_plans.get(group.key)) is not None:
                found = replace(found, no_plan=no_plan)
            self._facts[group.key] = group.version, found
        return found
