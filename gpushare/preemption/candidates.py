"""Find the pods that may be victims, and those that are about to end (pure)."""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.cards.model import Share
from gpushare.contract import LABEL_PREEMPTIBLE
from gpushare.groups.group import Group
from gpushare.groups.model import GroupKey
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import Requests
from gpushare.preemption.ending import MOST_GRACE_SECONDS
from gpushare.preemption.model import PreemptionWorld, Rules

MEMBERS_A_STEP: Final = 64
UID_START: Final = 8  # characters of a uid that a hint has
LOWEST: Final = -(2**31)  # of all priorities
ABOVE_ALL: Final = 2**31
_LAST: Final = ("\uffff", "", "")  # of all ages


class Candidate(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A bound pod that may be a victim, alone or with its gang, and what it would leave.

    ``level`` is its priority; of a member of a gang, the highest priority of the gang. ``share`` is
    None without GPU memory. ``budget`` is the one that selects it, or empty.
    """

    pod: Pod
    node: str
    level: int
    share: Share | None
    requests: Requests
    is_hinted: bool
    budget: str = ""

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def units(self) -> int:
        """Return its units of all cards; they are known even if its cards are not."""
        share = self.share
        return share.units * max(1, len(share.cards)) if share is not None else 0

    @property
    def is_slow(self) -> bool:
        """Return whether it may take longer to end than anybody waits."""
        return self.pod.grace_seconds > MOST_GRACE_SECONDS

    @property
    def age(self) -> tuple[str, str, str]:
        """Return what sorts those first that exist longest."""
        meta = self.pod.metadata
        return meta.creation_timestamp or "", meta.name, meta.uid


# Candidates of a lower rank are put back first: whether it is quick, and whether it is hinted.
Rank = tuple[bool, bool]
Class = tuple[int, Rank]  # level and rank


@dataclass(slots=True, eq=False)
class Gang:
    """A gang of which pods may be victims: all ``members`` that are bound and live, or some.

    ``loose`` are the uids of those of which up to ``surplus`` may be victims, so that the minimum
    is left. ``may_go``: all members may be victims together. ``age`` is that of the oldest member.
    """

    key: GroupKey
    level: int
    surplus: int
    members: list[Candidate] = field(default_factory=list)
    loose: set[str] = field(default_factory=set)
    may_go: bool = True
    is_slow: bool = False
    is_hinted: bool = False
    age: tuple[str, str, str] = _LAST

    def add(self, member: Candidate, *, may_go: bool) -> None:
        self.members.append(member)
        self.is_slow |= member.is_slow
        self.is_hinted |= member.is_hinted
        self.age = min(self.age, member.age)
        self.may_go &= may_go
        share = member.share
        are_cards_known = not asks_for_share(member.pod) if share is None else bool(share.cards)
        if may_go and are_cards_known:
            self.loose.add(member.uid)

    @property
    def rank(self) -> Rank:
        return not self.is_slow, self.is_hinted


@dataclass(slots=True, eq=False)
class Candidates:
    """``ending`` are the pods that are about to end, by node.

    ``singles`` are the candidates of no gang, by node and class.
    """

    ending: dict[str, set[str]] = field(default_factory=dict)
    singles: dict[str, dict[Class, list[Candidate]]] = field(default_factory=dict)
    gangs: list[Gang] = field(default_factory=list)


def candidates_of(
    world: PreemptionWorld, members: Sequence[Pod], rules: Rules
) -> Generator[None, None, Candidates]:
    """Return who may be a victim for these members, in short steps.

    Of pods without GPU memory only those count of whose gang a member requests it.
    """
    reader = _Reader(world, members, rules)
    for name in list(world.node_names()):
        yield
        reader.read_node(name)
    for group in list(reader.groups.values()):
        yield from reader.read_gang(group)
    return reader.found


class _Reader:
    """``groups`` are the gangs of the pods that were read so far."""

    def __init__(self, world: PreemptionWorld, members: Sequence[Pod], rules: Rules) -> None:
        self.found = Candidates()
        self.groups: dict[GroupKey, Group] = {}
        self._world, self._rules = world, rules
        self._is_ruled = bool(
            rules.spared
            or rules.undecided
            or rules.spared_namespaces
            or rules.preemptible_only
            or rules.budgets.of
        )
        self._priority = min(pod.priority for pod in members)
        if rules.any_priority:
            self._priority = ABOVE_ALL
        elif any(pod.spec.preemption_policy == "Never" for pod in members):
            self._priority = LOWEST
        groups = (world.group_of(pod.uid) for pod in members)
        self._own = {group.key for group in groups if group is not None}

    def read_node(self, name: str) -> None:
        """Take the pods with GPU memory on a node, and note their gangs."""
        world, priority, hinted = self._world, self._priority, self._rules.hinted
        group_of, requests_used = world.group_of, world.requests_used
        may_go, budget_of = self._may_go, self._rules.budgets.of
        leaving = self._rules.leaving
        shares = {share.pod_uid: share for share in world.ledger.shares(name)}
        here: dict[Class, list[Candidate]] = {}
        for pod in world.pods_of(name):
            uid = pod.metadata.uid
            group = group_of(uid)
            if group is not None:
                self.groups[group.key] = group
            elif pod.metadata.deletion_timestamp or uid in leaving:
                self._note_ending(pod)
            elif (level := pod.spec.priority or 0) < priority:
                share = shares.get(uid)
                if share is None or not share.cards or (self._is_ruled and not may_go(pod)):
                    continue
                is_hinted = uid[:UID_START] in hinted if hinted else False
                budget = self._budget_of(uid) if budget_of else ""
                found = Candidate(pod, name, level, share, requests_used(uid), is_hinted, budget)
                of = level, (not found.is_slow, is_hinted)
                if of in here:
                    here[of].append(found)
                else:
                    here[of] = [found]
        if here:
            self.found.singles[name] = here

    def read_gang(self, group: Group) -> Generator[None, None, None]:
        """Take the members of a gang, also those without GPU memory."""
        bound: list[Pod] = []
        is_growing, undecided = False, 0
        for number, pod in enumerate(list(group.members.values())):
            if number % MEMBERS_A_STEP == 0:
                yield
            is_leaving = pod.metadata.deletion_timestamp or pod.uid in self._rules.leaving
            if pod.node and is_leaving:
                self._note_ending(pod)
            elif pod.node:
                bound.append(pod)
                undecided += pod.uid in self._rules.undecided
            else:
                is_growing |= self._world.ledger.has_reserve(pod.uid)
        level = max((pod.priority for pod in bound), default=self._priority)
        if level >= self._priority or group.key in self._own:
            return
        surplus = 0  # if it is not known how many members are needed, all are
        if group.problem is None:
            count = len(bound) - undecided + self._world.ended_of(group)
            surplus = max(0, count - group.minimum)
        gang = Gang(group.key, level, surplus)
        for number, pod in enumerate(bound):
            if number % MEMBERS_A_STEP == 0:
                yield
            gang.add(self._member(pod, level), may_go=self._may_go(pod))
        # A member that is being bound would stay without the others.
        gang.may_go = gang.may_go and not is_growing and not exceeded(gang.members, self._rules)
        if gang.may_go or (gang.loose and surplus):
            self.found.gangs.append(gang)

    def _member(self, pod: Pod, level: int) -> Candidate:
        world, uid, hinted = self._world, pod.metadata.uid, self._rules.hinted
        share, requests = world.ledger.share(uid), world.requests_used(uid)
        is_hinted = uid[:UID_START] in hinted if hinted else False
        return Candidate(pod, pod.node, level, share, requests, is_hinted, self._budget_of(uid))

    def _note_ending(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid in self._rules.leaving or self._world.will_end(uid):
            self.found.ending.setdefault(pod.node, set()).add(pod.metadata.uid)

    def _may_go(self, pod: Pod) -> bool:
        """Return whether no rule but that on priorities keeps a pod from being a victim."""
        rules, uid = self._rules, pod.metadata.uid
        if uid in rules.spared or uid in rules.undecided:
            return False
        if pod.metadata.namespace in rules.spared_namespaces:
            return False
        if rules.preemptible_only and pod.labels.get(LABEL_PREEMPTIBLE) != "true":
            return False
        budgets = rules.budgets.of.get(uid, ())
        return not budgets or (len(budgets) == 1 and rules.budgets.allowed.get(budgets[0], 0) > 0)

    def _budget_of(self, uid: str) -> str:
        budgets = self._rules.budgets.of.get(uid)
        return budgets[0] if budgets else ""


def exceeded(victims: Iterable[Candidate], rules: Rules) -> list[str]:
    """Return the budgets that do not let all of these pods go."""
    counts = Counter(each.budget for each in victims if each.budget)
    allowed = rules.budgets.allowed
    return [name for name, count in counts.items() if count > allowed.get(name, 0)]
