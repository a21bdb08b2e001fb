"""kube-scheduler's own preemption and the extender's beside each other, with random pods."""

import random
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from localcluster.errors import LocalClusterError
from localcluster.wait import wait_until
from tests.trials.preemption.history import BY_EXTENDER, BY_SCHEDULER, Seen
from tests.trials.preemption.stage import CLASSES, IN_VAIN, Described, Stage

NODES: Final = 8
SIZES: Final = 2, 4, 6, 8, 10, 12, 16
PRESENT: Final = 110  # pods at a time, of which some wait
EVERY_SECONDS: Final = 0.12  # a pod or gang is created or ended
GANGS: Final = 0.15
LARGEST_GANG: Final = 4
GATED: Final = 0.5
SETTLED_SECONDS: Final = 8.0  # after an eviction of a member, until all of its gang are evicted
_OURS: Final = re.compile(r"evicted for (?:pod|gang) default/(\S+) of")
_EVENTS: Final = "/api/v1/namespaces/default/events?limit=100000"


@dataclass
class _Evictions:
    """The pods that were evicted for one pod or gang."""

    priority: int = 0
    by: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))


class Beside:
    """Create and end pods for some minutes."""

    def __init__(self, stage: Stage, minutes: float, rng: random.Random) -> None:
        self._stage, self._seconds, self._rng = stage, minutes * 60, rng
        self._priority: dict[str, int] = {}  # by the name of a pod or gang
        self._there: dict[str, list[str]] = {}  # names of the pods of each
        self._ended_at: dict[str, float] = {}  # by the name of a pod or gang
        self._to_judge: dict[str, float] = {}  # gangs of which members were evicted, and when
        self._seen: set[str] = set()  # uids that were evicted
        self._made = 0

    def play(self) -> str:
        stage = self._stage
        vain = stage.metric(IN_VAIN)
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            began = time.monotonic()
            if len(self._present()) < PRESENT:
                self._create()
            else:
                self._end()
            self._judge_gangs()
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))
        self._settle()
        figures = self._judge_evictions()
        vain = stage.metric(IN_VAIN) - vain
        bound = sum(each.is_bound for each in stage.history.pods.values())
        return f"{len(stage.history.pods)} pods, {bound} bound; {figures}; {vain:.0f} in vain"

    def _present(self) -> list[str]:
        """Return the pods that were not evicted, forgetting who is gone."""
        left = {each.name for each in self._stage.history.present()}
        return [name for names in self._there.values() for name in names if name in left]

    def _create(self) -> None:
        rng, number = self._rng, self._made
        self._made += 1
        level, gated = rng.randrange(len(CLASSES)), rng.random() < GATED
        units, cards = rng.choice(SIZES), 2 if rng.random() < 0.1 else 1
        if rng.random() < GANGS:
            name, size = f"g{number}", rng.randint(2, LARGEST_GANG)
            gang = name, size - (size > 2 and rng.random() < 0.4)
            made = [
                Described(f"{name}-{n}", units, level, 1, gated, 1, NODES, gang=gang)
                for n in range(size)
            ]
        else:
            name = f"s{number}"
            made = [Described(name, units, level, cards, gated, rng.choice((1, 2)), NODES)]
        self._priority[name] = [*CLASSES.values()][level]
        self._there[name] = [each.name for each in made]
        self._stage.create(*made)

    def _end(self) -> None:
        name = self._rng.choice([*self._there])
        self._ended_at[name] = time.monotonic()
        self._stage.delete(*self._there.pop(name), grace=1)

    def _judge_gangs(self) -> None:
        """Check that no gang goes on with fewer members than it needs, once it had time to end."""
        now, pods = time.monotonic(), list(self._stage.history.pods.values())
        for each in pods:
            if each.by and each.uid not in self._seen:
                self._seen.add(each.uid)
                if each.gang:
                    self._to_judge[each.gang] = each.evicted_at
        for gang, at in [*self._to_judge.items()]:
            if now - at < SETTLED_SECONDS:
                continue
            del self._to_judge[gang]
            if gang in self._ended_at:
                continue
            members = [each for each in pods if each.gang == gang]
            left = [e.name for e in members if e.is_bound and not (e.is_ending or e.is_gone)]
            if left and len(left) < members[0].minimum:
                self._stage.lost.append(
                    f"gang {gang} goes on with {left}, of at least {members[0].minimum}"
                )

    def _settle(self) -> None:
        """Wait until all gangs are judged, then end everything that waits."""

        def unjudged() -> str | None:
            self._judge_gangs()
            return ", ".join(self._to_judge) or None

        try:
            wait_until("no gang to be evicted", unjudged, seconds=60)
        except LocalClusterError as err:
            self._stage.lost.append(str(err))

    def _judge_evictions(self) -> str:
        lost, history = self._stage.lost, self._stage.history
        evictions, unnamed = self._evictions()
        for name, found in evictions.items():
            for by, victims in found.by.items():
                for victim in victims:
                    if victim.priority >= found.priority:
                        lost.append(
                            f"{victim.name} of {victim.priority} was evicted for {name} of "
                            f"{found.priority} by {by}"
                        )
            for ours in found.by[BY_EXTENDER]:
                for other in found.by[BY_SCHEDULER]:
                    if _overlap(ours, other):
                        lost.append(f"{name}: {ours.name} and {other.name} evicted by both")
            self._judge_member(name, found)
        by = Counter(each.by for each in history.evicted())
        both = sum(all(found.by[each] for each in (BY_EXTENDER, BY_SCHEDULER))
                   for found in evictions.values())  # fmt: skip
        return (
            f"{by[BY_SCHEDULER]} evicted by kube-scheduler, {by[BY_EXTENDER]} by the extender, "
            f"for {len(evictions)} pods and gangs, {both} of them by both one after the other; "
            f"{unnamed} evictions without an Event"
        )

    def _judge_member(self, name: str, found: _Evictions) -> None:
        """Check that kube-scheduler evicts for a member of a gang only after that was whole."""
        gang, _, number = name.partition("-")
        if not number:
            return
        members = [e for e in self._stage.history.pods.values() if e.gang == gang]
        bound = sorted(each.bound_at for each in members)
        first = min(each.evicted_at for each in found.by[BY_SCHEDULER])
        if bound[members[0].minimum - 1] > first:
            self._stage.lost.append(f"{name}: a single member of a gang has evicted others")

    def _evictions(self) -> tuple[dict[str, _Evictions], int]:
        """Return who was evicted for each pod and gang, and of how many this is not known."""
        by_uid = {each.uid: each for each in self._stage.history.evicted()}
        found: dict[str, _Evictions] = defaultdict(_Evictions)
        with self._stage.cluster.api() as api:
            events = api.get(_EVENTS)["items"]
        named = set()
        for each in events:
            victim = by_uid.get(each["involvedObject"].get("uid", ""))
            ours = _OURS.search(each.get("message", ""))
            related = (each.get("related") or {}).get("name")
            if victim is None or each["reason"] not in {"Preempted", "GpusharePreempted"}:
                continue
            name = ours.group(1) if ours else related
            # Both may evict one pod for different ones; its condition is that of the first.
            is_first = (ours is not None) == (victim.by == BY_EXTENDER)
            if name is None or victim.uid in named or not is_first:
                continue
            named.add(victim.uid)
            found[name].by[victim.by].append(victim)
            found[name].priority = self._priority[name.partition("-")[0]]
        return found, len(by_uid) - len(named)


def _overlap(one: Seen, other: Seen) -> bool:
    """Return whether a pod was evicted before the other one was gone."""
    first, last = sorted((one, other), key=lambda each: each.evicted_at)
    return last.evicted_at < first.gone_at
