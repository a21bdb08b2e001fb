"""Victims by trying every set of pods."""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations

from gpushare.contract import LABEL_CARD_COUNT, LABEL_PREEMPTIBLE, RESOURCE_MEMORY
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.planning.ask import Ask
from gpushare.preemption.model import Rules
from tests.unit.gpushare.planning.brute_force import Member, Node, fits, most
from tests.unit.gpushare.planning.worlds import ZONE
from tests.unit.gpushare.preemption.worlds import RunningWorld

Gone = Collection[str]


class BruteForce:
    """All sets of victims of a small state."""

    def __init__(self, world: RunningWorld, ask: Ask, rules: Rules) -> None:
        self._world, self._ask, self._rules = world, ask, rules
        self._priority = min(pod.priority for pod in ask.members)
        self._nodes = list(world.nodes)
        self.ending = frozenset(
            uid for uid in world.ending() if self._uses_gpus(world.running[uid])
        )
        self._before = {name: self._left(name) for name in self._nodes}

    def fits_without(self, gone: Gone, members: int, least: int) -> bool:
        """Return whether ``least`` of the first members fit once these pods are gone."""
        pods = self._ask.members[:members]
        for zone in self._zones():
            nodes = [self._node(name, gone) for name in self._nodes]
            asked = [self._member(pod, zone) for pod in pods]
            if fits(nodes, asked) if least == members else most(nodes, asked) >= least:
                return True
        return False

    def sets(self) -> Iterator[tuple[int, frozenset[str]]]:
        """Return all permitted sets of victims, with the highest level of each."""
        levels = {}
        for uid, pod in self._world.running.items():
            level = self._level(pod)
            is_deleted = pod.metadata.deletion_timestamp is not None
            if level < self._priority and not is_deleted and self._uses_gpus(pod):
                levels[uid] = level
        for size in range(1, len(levels) + 1):
            for some in combinations(levels, size):
                found = frozenset(some)
                if self.permits(found):
                    yield max(levels[uid] for uid in found), found

    def permits(self, gone: frozenset[str]) -> bool:
        counts: Counter[str] = Counter()
        for uid in gone:
            counts.update(self._rules.budgets.of.get(uid, ()))
        allowed = self._rules.budgets.allowed
        if any(number > allowed.get(name, 0) for name, number in counts.items()):
            return False
        groups: dict[str, Group] = {}
        for uid in gone:
            if not self._may_go(self._world.running[uid]):
                return False
            group = self._world.group_of(uid)
            if group is not None:
                groups[str(group.key)] = group
            elif not self._are_cards_known(uid):
                return False
        return all(self._leaves_enough(group, gone) for group in groups.values())

    def level(self, uid: str) -> int:
        return self._level(self._world.running[uid])

    def _uses_gpus(self, pod: Pod) -> bool:
        """Return whether the pod or a member of its gang requests GPU memory."""
        group = self._world.group_of(pod.uid)
        uids = [pod.uid] if group is None else list(group.members)
        return any(self._world.ledger.share(uid) is not None for uid in uids)

    def _leaves_enough(self, group: Group, gone: frozenset[str]) -> bool:
        bound = {
            uid
            for uid, pod in group.members.items()
            if pod.node and not pod.metadata.deletion_timestamp
        }
        if bound <= gone:
            return True
        left = len(bound - gone) + self._world.ended_of(group)
        return left >= group.minimum and all(map(self._are_cards_known, bound & gone))

    def _are_cards_known(self, uid: str) -> bool:
        share = self._world.ledger.share(uid)
        return share is None or bool(share.cards)

    def _may_go(self, pod: Pod) -> bool:
        rules = self._rules
        return (
            pod.uid not in rules.spared
            and (not rules.preemptible_only or pod.labels[LABEL_PREEMPTIBLE] == "true")
            and len(rules.budgets.of.get(pod.uid, ())) < 2
        )

    def _level(self, pod: Pod) -> int:
        group = self._world.group_of(pod.uid)
        if group is None:
            return pod.priority
        bound = [
            each.priority
            for each in group.members.values()
            if each.node and not each.metadata.deletion_timestamp
        ]
        return max(bound, default=pod.priority)

    def _zones(self) -> Iterator[str | None]:
        if not self._ask.zone_key:
            yield None
            return
        zones = {node.labels.get(ZONE, "") for node in self._world.nodes.values()} - {""}
        yield from [zone for zone in zones if self._ask.zone in (None, zone)]

    def _member(self, pod: Pod, zone: str | None) -> Member:
        request = pod.containers[0].requests
        memory, cpu = int(request.get(RESOURCE_MEMORY, 0)), int(request.get("cpu", 0))
        cards = int(pod.labels.get(LABEL_CARD_COUNT, 1)) if memory else 0
        ask, allowed = self._ask, set(self._nodes)
        if ask.only is not None:
            allowed &= ask.only
        allowed -= ask.avoid.get(pod.uid, frozenset())
        if memory:
            allowed -= ask.cooling
        if zone is not None:
            allowed = {n for n in allowed if self._world.nodes[n].labels.get(ZONE) == zone}
        names = named(pod)
        if names is not None:
            allowed &= names
        places = frozenset(self._nodes.index(name) for name in allowed)
        return memory // cards if cards else 0, cards, cpu, places

    def _left(self, name: str) -> tuple[dict[str, int], int]:
        """Return what cards and CPUs have left; less than nothing where claims take more.

        What holds and claims keep for the gang itself does not count.
        """
        mine = {pod.uid for pod in self._ask.members}
        with self._world.without(mine):
            account = self._world.ledger.account(name, priority=self._priority)
            free = self._world.free_resources(name, priority=self._priority)
        assert account is not None
        assert free is not None
        cards = {e.card.uuid: e.card.units - e.committed for e in account.open}
        return cards, free["cpu"] // 1000

    def _node(self, name: str, gone: Gone) -> Node:
        before, cpu = self._before[name]
        cards = dict(before)
        for uid in gone:
            pod, share = self._world.running[uid], self._world.ledger.share(uid)
            if pod.node != name:
                continue
            cpu += int(pod.containers[0].requests.get("cpu", 0))
            if share is not None:
                for uuid in share.cards or cards:
                    if uuid in cards:
                        cards[uuid] += share.units
        return tuple(max(0, each) for each in cards.values()), max(0, cpu)


def named(pod: Pod) -> set[str] | None:
    """Return the nodes that the required affinity names."""
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    if not affinity or affinity.required is None:
        return None
    (term,) = affinity.required.node_selector_terms or ()
    (requirement,) = term.match_fields or ()
    return set(requirement.values or ())
