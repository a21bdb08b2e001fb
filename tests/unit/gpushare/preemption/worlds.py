"""A cluster for tests of the search for victims: pods that run, alone or in gangs, and may end."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from gpushare.cards.model import Share
from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM, LABEL_PREEMPTIBLE
from gpushare.groups.group import Group
from gpushare.groups.index import Groups
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import Requests, resources_used
from gpushare.planning.ask import Ask, NoPlan
from gpushare.preemption.model import Budgets, Preemption, Rules
from gpushare.preemption.search import VictimSearch
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.planning.worlds import PlannedWorld, check, pod

HIGH, MEDIUM, LOW = 100, 50, 10


class RunningWorld(PlannedWorld):
    """``ended`` are the members of gangs that have succeeded, by the name of the gang."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, Pod] = {}
        self.staying: set[str] = set()  # pods that are deleted and do not end in time
        self.groups = Groups()
        self.ended: dict[str, int] = {}

    def run(
        self,
        name: str,
        node: str,
        units: int = 0,
        *indexes: int,
        priority: int = LOW,
        cpu: int = 0,
        gang: str = "",
        minimum: int = 1,
        since: str = "",
        preemptible: bool = True,
        is_unplaced: bool = False,
        grace: int | None = None,
    ) -> Pod:
        """Run a pod that uses ``units`` of each of these cards, by default of the first one."""
        indexes = indexes or (0,)
        made = pod(name, units, cards=len(indexes), cpu=cpu, node=node, priority=priority)
        labels = dict(made.labels)
        if gang:
            labels |= {LABEL_GANG: gang, LABEL_GANG_MINIMUM: str(minimum)}
        if not preemptible:
            labels[LABEL_PREEMPTIBLE] = "false"
        elif preemptible:
            labels[LABEL_PREEMPTIBLE] = "true"
        meta = replace(made.metadata, labels=labels, creation_timestamp=since or None)
        spec = replace(made.spec, termination_grace_period_seconds=grace)
        made = replace(made, metadata=meta, spec=spec)
        uuids = () if is_unplaced else tuple(f"{node}-{index}" for index in indexes)
        self._start(made, Share(name, "default", name, node, units, uuids) if units else None)
        return made

    def _start(self, made: Pod, share: Share | None) -> None:
        if share is not None:
            self.ledger.put_share(share)
        self._use.put(made.uid, made.node, resources_used(made))
        self.running[made.uid] = made
        self.groups.update(made)

    def delete(self, *names: str, in_time: bool = True) -> None:
        """Begin to delete pods; without ``in_time`` something keeps them."""
        for name in names:
            meta = replace(self.running[name].metadata, deletion_timestamp="2030-01-01T00:00:00Z")
            self.running[name] = replace(self.running[name], metadata=meta)
            self.groups.update(self.running[name])
            if not in_time:
                self.staying.add(name)

    @contextmanager
    def gone(self, pods: Iterable[str]) -> Iterator[None]:
        """Take pods away as long as the context lasts."""
        taken = [(self.running[uid], self.ledger.share(uid)) for uid in pods]
        for each, _ in taken:
            self.stop(each.uid)
        try:
            yield
        finally:
            for each, share in taken:
                self._start(each, share)

    def stop(self, uid: str) -> None:
        """Take a pod away for good."""
        del self.running[uid]
        self.ledger.remove_share(uid)
        self._use.remove(uid)
        self.groups.forget(uid)

    def ending(self) -> list[str]:
        return [uid for uid in self.running if self.will_end(uid)]

    def pods_of(self, node: str) -> list[Pod]:
        share = self.ledger.share
        return [each for each in self.running.values() if each.node == node and share(each.uid)]

    def group_of(self, uid: str) -> Group | None:
        return self.groups.of(uid)

    def ended_of(self, group: Group) -> int:
        return self.ended.get(group.key.name, 0)

    def will_end(self, uid: str) -> bool:
        pod = self.running.get(uid)  # it may have ended while the search ran
        is_deleted = pod is not None and pod.metadata.deletion_timestamp is not None
        return is_deleted and uid not in self.staying

    def requests_used(self, uid: str) -> Requests:
        return self._use.requests_of(uid)


def find(
    world: RunningWorld, ask: Ask, rules: Rules | None = None, **more: object
) -> Preemption | NoPlan:
    """Return the answer of a search; its slots were replayed with the victims gone."""
    rules = rules or Rules(**more)  # type: ignore[arg-type]
    found = run_all(VictimSearch(world).find(ask, rules))
    if isinstance(found, Preemption):
        gone = [each.uid for each in found.victims]
        assert len(set(gone)) == len(gone)
        with world.gone(gone if found.is_free else [*gone, *world.ending()]):
            check(world, ask, found.plan)
    return found


def victims(found: Preemption | NoPlan) -> set[str] | None:
    """Return the names of the victims, in any order; None if no eviction helps."""
    if isinstance(found, NoPlan):
        return None
    return {each.metadata.name for each in found.victims}


def budgets(allowed: Mapping[str, int], of: Mapping[str, Iterable[str]]) -> Rules:
    return Rules(budgets=Budgets({uid: tuple(some) for uid, some in of.items()}, allowed))
