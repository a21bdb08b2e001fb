"""Whatever fails while gangs are placed, each is bound as a whole or keeps nothing."""

import asyncio
import math
from itertools import combinations
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.gangs.answers import NotWatchedYet
from extender.settings.configuration import GangSettings
from extender.wire import BindingArgs
from gpushare.annotations import inventory
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_INVENTORY,
    ANNOTATION_SLOT,
    GATE_ADMISSION,
    RESOURCE_MEMORY,
)
from gpushare.errors import GpushareError
from gpushare.ledger.holds import Hold
from gpushare.objects.model import OwnerReference, Pod
from tests.builders import node
from tests.gangs import member
from tests.simulation import loop as virtual
from tests.simulation.loop import VirtualLoop, virtual_time
from tests.unit.extender.gangs.replica import Replica
from tests.unit.extender.gangs.store import DELETED, Outcome, Store
from tests.unit.extender.scripted import changed

COMPLETE_SECONDS = 20
SETTLED_WITHIN_SECONDS = 900
PARTIAL_SECONDS = 1.0  # in which the duties have looked at every hold
ZONE = "zone"
PAUSES = st.sampled_from([0.0, 0.001, 0.004, 0.02, 0.3])
DELAYS = st.sampled_from([0.0, 0.0, 0.003, 0.5, 4.0])
OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from(
    ["done", "done", "slow", "refused", "lost", "done, unknown", "late, unknown"]
)
GANGS = {
    "size": st.integers(1, 5),
    "short": st.sampled_from([0, 0, 1, 2]),
    "units": st.lists(st.sampled_from([4, 6, 8, 8, 12, 16, None]), min_size=5, max_size=5),
    "is_mixed": st.booleans(),
    "in_zone": st.booleans(),
    "is_gated": st.booleans(),
    "missing": st.sampled_from([0, 0, 1]),
}


class Gangs(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = VirtualLoop()
        self.store = Store()
        self.wrong = []
        self.made = self.changes = 0
        self.leader = None
        self.replicas = []
        self.busy = set()  # names of pods that kube-scheduler works on
        self.begun_at = {}  # by gang, by the store
        self.whole = set()
        self.partial_since = {}
        self.spread = {}  # by gang: how it was made
        self.tasks = set()

    # The machinery

    def go(self, seconds):
        """Let virtual time pass."""
        with virtual_time(self.loop), patch.object(virtual, "COMPUTING_SECONDS", 0.002):
            self.loop.run_until_complete(asyncio.sleep(seconds))

    def begin(self, work):
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.wrong.append(repr(task.exception()))

    def teardown(self):
        try:
            if self.replicas:
                self.settle()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            with virtual_time(self.loop):
                left = asyncio.gather(*asyncio.all_tasks(self.loop), return_exceptions=True)
                self.loop.run_until_complete(left)
            self.loop.close()

    # The cluster

    @initialize(
        nodes=st.lists(
            st.tuples(
                st.lists(st.sampled_from([8, 16]), min_size=1, max_size=3), st.sampled_from("xy")
            ),
            min_size=1,
            max_size=3,
        ),
        gangs=st.lists(st.fixed_dictionaries(GANGS), min_size=1, max_size=3),
    )
    def bring_up(self, nodes, gangs):
        self.well = {}
        for number, (cards, zone) in enumerate(nodes):
            made = changed(node(f"n{number}", *cards), {"labels": {ZONE: zone}})
            self.well[made.name] = made
            self.store.put(made)
        self.store.begins, self.store.evicts = self.binding_begins, self.evicts
        self.store.listeners.append(self.happened)
        self.gang_settings = GangSettings(complete_seconds=COMPLETE_SECONDS)
        with virtual_time(self.loop):
            self.loop.run_until_complete(self.start())
        for each in gangs:
            self.make(**each)

    async def start(self):
        self.replicas = [self.replica(), self.replica()]
        await self.replicas[0].take_over()
        self.leader = self.replicas[0]

    def replica(self):
        made = Replica(self.store, self.gang_settings)
        made.start()
        return made

    @rule(gang=st.fixed_dictionaries(GANGS), pause=PAUSES)
    def gang_is_made(self, gang, pause):
        if len(self.spread) - len(self.whole) < 4:
            self.make(**gang)
        self.go(pause)

    def make(self, *, size, short, units, is_mixed, in_zone, is_gated, missing):
        gang = f"g{len(self.spread)}"
        asked = units[:size] if is_mixed else [units[0] or 4] * size
        least = max(1, size - short)
        self.spread[gang] = {"minimum": least, "in_zone": in_zone, "is_gated": is_gated}
        for amount in asked[: max(1, size - missing)]:
            self.add_member(gang, amount)

    def add_member(self, gang, units):
        how = self.spread[gang]
        self.made += 1
        made = member(
            f"{gang}-{self.made}",
            gang,
            how["minimum"],
            units=units,
            gates=(GATE_ADMISSION,) if how["is_gated"] else (),
            zone_key=ZONE if how["in_zone"] else None,
            created=f"2026-01-01T00:{self.made // 60:02}:{self.made % 60:02}Z",
        )
        owner = OwnerReference(True, "Job", gang, f"job-{gang}")
        self.store.put(changed(made, {"owner_references": (owner,)}))

    @rule(number=st.integers(0, 30), units=st.sampled_from([4, 8, None]), pause=PAUSES)
    def member_comes(self, number, units, pause):
        gangs = list(self.spread)
        if not gangs:
            return
        gang = gangs[number % len(gangs)]
        if len(self.members(gang)) < 5:
            self.add_member(gang, units)
        self.go(pause)

    @rule(
        number=st.integers(0, 30),
        how=st.sampled_from(["removed", "terminated", "replaced", "succeeded", "failed"]),
        pause=PAUSES,
    )
    def member_goes(self, number, how, pause):
        pods = list(self.store.pods.values())
        if not pods:
            return
        pod = pods[number % len(pods)]
        if how == "terminated":
            self.store.put(changed(pod, {"deletion_timestamp": DELETED}))
        elif how in {"removed", "replaced"}:
            self.store.remove(pod)
            if how == "replaced":
                self.add_member(gang_of(pod), units_of(pod))
        elif pod.node:
            self.store.put(changed(pod, status={"phase": how.capitalize()}))
        self.go(pause)

    @rule(
        number=st.integers(0, 10),
        what=st.sampled_from(["cordon", "lost", "ill", "well", "well"]),
        pause=PAUSES,
    )
    def node_changes(self, number, what, pause):
        names = list(self.well)
        name = names[number % len(names)]
        well = self.well[name]
        if what == "lost":
            if name in self.store.nodes:
                self.store.remove(self.store.nodes[name])
            self.go(pause)
            for pod in [each for each in self.store.pods.values() if each.node == name]:
                self.replace(pod)  # by the pod garbage collector, and the controller
        elif what == "cordon":
            self.store.put(changed(well, spec={"unschedulable": True}))
        elif what == "ill":
            units = [card.units for card in cards_of(well)]
            ill = node(name, *units, unhealthy=(number % len(units),))
            self.store.put(changed(ill, {"labels": well.labels}))
        else:
            self.store.put(well)
        self.go(pause)

    @rule(pause=st.sampled_from([0.02, 0.3, 1.5, 5.0, 12.0, 31.0]))
    def time_passes(self, pause):
        self.go(pause)

    @rule(seconds=st.sampled_from([0.0, 0.005, 0.5, math.inf]), which=st.integers(0, 1))
    def watch_lags(self, seconds, which):
        self.replicas[which].set_lag(seconds)

    # kube-scheduler

    @rule(
        number=st.integers(0, 30),
        without=st.integers(0, 15),
        delay=DELAYS,
        outcome=OUTCOMES,
        pause=PAUSES,
    )
    def pod_is_tried(self, number, without, delay, outcome, pause):
        waiting = self.waiting()
        if waiting:
            pod = waiting[number % len(waiting)]
            names = list(self.store.nodes)
            hidden = {names[n] for n in range(len(names)) if without == n}
            self.begin(self.attempt(pod, hidden, delay, outcome))
        self.go(pause)

    @rule(
        outcomes=st.lists(OUTCOMES, min_size=1, max_size=6),
        delays=st.lists(DELAYS, min_size=1, max_size=6),
        is_backwards=st.booleans(),
        pause=PAUSES,
    )
    def all_pods_are_tried(self, outcomes, delays, is_backwards, pause):
        waiting = self.waiting()
        for number, pod in enumerate(waiting[::-1] if is_backwards else waiting):
            delay, outcome = delays[number % len(delays)], outcomes[number % len(outcomes)]
            self.begin(self.attempt(pod, (), delay, outcome))
        self.go(pause)

    def waiting(self):
        return [
            pod
            for pod in self.store.pods.values()
            if not (pod.node or pod.gates or pod.metadata.deletion_timestamp)
            and pod.metadata.name not in self.busy
        ]

    async def attempt(self, pod, hidden, delay, outcome: Outcome):
        name = pod.metadata.name
        self.busy.add(name)
        try:
            await self.tried(pod, hidden, delay, outcome)
        except (NotWatchedYet, GpushareError):
            pass
        finally:
            self.busy.discard(name)

    async def tried(self, pod, hidden, delay, outcome):
        selector = pod.spec.node_selector or {}
        nodes = [
            each.name
            for each in self.store.nodes.values()
            if each.name not in hidden
            and not each.spec.unschedulable
            and selector.items() <= each.labels.items()
        ]
        leader = self.leader
        if not nodes:
            return
        if units_of(pod) is None:  # kube-scheduler does not ask about it
            await asyncio.sleep(delay)
            self.store.bind(pod, nodes[0], {})
            return
        if leader is None:
            return
        found = await leader.answers.filter(pod, nodes)
        if not found.fitting:
            return
        await asyncio.sleep(delay)
        if leader is not self.leader:
            return  # the connection is gone
        self.store.outcomes[pod.uid] = outcome
        args = BindingArgs(name_of(pod), pod.metadata.namespace, pod.uid, found.fitting[0])
        await leader.binder.bind(args)

    # Leaders

    @precondition(lambda self: self.leader is not None)
    @rule(is_killed=st.booleans(), to=st.integers(0, 1), pause=PAUSES)
    def leader_changes(self, is_killed, to, pause):
        self.begin(self.fail_over(is_killed, to))
        self.go(pause)

    async def fail_over(self, is_killed, to):
        former, self.leader = self.leader, None
        begun = self.started(former)
        if is_killed:
            former.kill()
            number = self.replicas.index(former)
            self.replicas[number] = self.replica()
        else:
            former.stop_leading()
        await asyncio.sleep(3.1)  # what was written may land until then
        begun = begun if self.changes == begun[0] else (0, set())
        new = self.replicas[to]
        if self.replicas[to] is former:
            await former.writer.quiet()
        new.set_lag(0.0)
        await new.take_over()
        before, gangs = begun
        if before == self.changes and not gangs <= (now := self.started(new)[1]):
            self.wrong.append(f"{gangs - now} are not started any more after a takeover")
        self.leader = new

    def started(self, replica):
        """The gangs of which some members are bound, and all others up to the minimum go on."""
        found = set()
        for group in replica.groups:
            record = replica.gangs.known(group)
            if record is not None and group.started and not replica.gangs.lacking(group, record):
                found.add(group.key.name)
        return self.changes, found if replica.is_current() else set()

    # What must hold

    def happened(self, item, is_gone):
        if not isinstance(item, Pod):
            self.changes += 1
            return
        gang = gang_of(item)
        if is_gone or item.is_terminal or item.metadata.deletion_timestamp or not item.node:
            self.changes += 1
        bound = self.bound(gang)
        if any(map(is_started, bound)):
            self.begun_at.setdefault(gang, self.loop.now)
        if len(bound) + self.succeeded(gang) >= self.spread[gang]["minimum"]:
            self.whole.add(gang)
        elif not self.live(gang):
            self.whole.discard(gang)

    def binding_begins(self, pod, at):
        """A Binding reaches the API server, of the leader by its own knowledge."""
        gang, leader = gang_of(pod), self.leader
        if leader is None or gang in self.whole:
            return
        slot = leader.ledger.slot_of(pod.uid)
        minimum = self.spread[gang]["minimum"]
        group = leader.groups.of(pod.uid)
        if group is None:
            return  # deleted by what the watch has shown meanwhile
        there = [
            name_of(each)
            for each in group.present()
            if each.node or leader.ledger.slot_of(each.uid) is not None
        ]
        if len(there) + self.succeeded(gang) < minimum:
            self.wrong.append(f"{name_of(pod)} is bound while only {there} of {minimum} go on")
        if slot is not None and slot.node != at:
            self.wrong.append(f"{name_of(pod)} is bound to {at}, not to its slot's node")

    def evicts(self, pod):
        gang = gang_of(pod)
        if gang in self.whole:
            self.wrong.append(f"{name_of(pod)} of a whole gang is evicted")
        if self.loop.now - self.begun_at[gang] < COMPLETE_SECONDS - 1:
            self.wrong.append(f"{name_of(pod)} is evicted too early")
        self.loop.call_soon(self.replace, pod)

    def replace(self, pod):
        now = self.store.current(pod)
        if now is not None:
            self.store.remove(now)
            self.add_member(gang_of(pod), units_of(pod))

    @invariant()
    def nothing_is_wrong(self):
        wrong = [*self.wrong, *(error for each in self.replicas for error in each.errors)]
        assert not wrong, "\n".join(wrong)

    @invariant()
    def no_card_has_more_than_it_can_take(self):
        used = {}
        for pod in self.store.pods.values():
            if pod.node and not pod.is_terminal and units_of(pod):
                key = pod.node, pod.annotations[ANNOTATION_CARDS]
                used[key] = used.get(key, 0) + units_of(pod)
        for (name, uuid), units in used.items():
            (has,) = (card.units for card in cards_of(self.well[name]) if card.uuid == uuid)
            assert units <= has, used
        for replica in self.replicas:
            for name in replica.ledger.nodes():
                for each in replica.ledger.account(name).cards:
                    assert each.free >= 0, (name, each)

    @invariant()
    def only_plans_keep_anything(self):
        now = self.loop.now
        partial = {}
        for replica in self.replicas:
            for kept in list(replica.ledger.kept()):
                assert isinstance(kept, Hold)
                assert replica.leads or self.leader is None, f"a follower keeps {kept}"
                group = replica.groups.named(kept.owner)
                assert group is not None, kept
                record = replica.gangs.known(group)
                assert record is not None, kept
                assert record.plan, f"without a plan: {kept}"
                if replica.gangs.lacking(group, record) and not group.started:
                    partial[kept.owner] = self.partial_since.get(kept.owner, now)
            for group in replica.groups:
                self.in_one_zone(replica, group)
        self.partial_since = partial
        late = [owner for owner, at in partial.items() if now - at > PARTIAL_SECONDS]
        assert not late, f"{late} keep slots without having all"

    def in_one_zone(self, replica, group):
        if not group.zone_key:
            return
        slots = (replica.ledger.slot_of(pod.uid) for pod in group.present())
        nodes = {pod.node for pod in group.present() if pod.node and is_started(pod)}
        nodes |= {slot.node for slot in slots if slot is not None}
        zones = {self.well[name].labels[ZONE] for name in nodes}
        assert len(zones) < 2, f"{group.key} is in zones {zones}"

    def settle(self):
        """Without any fault more, each gang becomes whole or keeps nothing, and fits nowhere."""
        for made in self.well.values():
            self.store.put(made)
        for replica in self.replicas:
            replica.set_lag(0.0)
        until, why = self.loop.now + SETTLED_WITHIN_SECONDS, "not looked yet"
        while why:
            self.go(1.0)
            self.nothing_is_wrong()
            self.no_card_has_more_than_it_can_take()
            self.only_plans_keep_anything()
            for pod in [*self.store.pods.values()]:
                if pod.metadata.deletion_timestamp and pod.metadata.name not in self.busy:
                    self.store.remove(pod)
            for pod in self.waiting():
                self.begin(self.attempt(pod, (), 0.0, "done"))
            self.go(0.5)
            why = self.why_not_settled()
            assert not why or self.loop.now < until, why

    def why_not_settled(self):
        if self.leader is None or self.busy or self.tasks:
            return "somebody is busy"
        for gang in self.spread:
            if gang in self.whole:
                continue
            if any(map(is_started, self.bound(gang))):
                return f"{gang} is bound in part: {[*map(name_of, self.bound(gang))]}"
            owner = f"default/labels/{gang}"
            if self.leader.ledger.hold_of(owner):
                return f"{gang} keeps something"
            if self.fits(gang):
                return f"{gang} would fit and is not bound"
        return ""

    def fits(self, gang):
        """Whether the minimum can be placed, by trying everything."""
        how, bound = self.spread[gang], self.bound(gang)
        waiting = [pod for pod in self.live(gang) if not pod.node]
        missing = how["minimum"] - len(bound) - self.succeeded(gang)
        if missing > len(waiting):
            return False
        zones = {self.well[pod.node].labels[ZONE] for pod in bound if is_started(pod)}
        areas = [None] if not how["in_zone"] else zones or {"x", "y"}
        free = {}
        for name in self.leader.ledger.nodes():
            for each in self.leader.ledger.account(name).cards:
                free[name, each.card.uuid] = each.free
        for area in areas:
            there = [
                units
                for (name, _), units in free.items()
                if area is None or self.well[name].labels[ZONE] == area
            ]
            if not there:
                continue
            for chosen in combinations(waiting, max(0, missing)):
                if packs(sorted((units_of(each) or 0 for each in chosen), reverse=True), there):
                    return True
        return False

    def members(self, gang):
        return [pod for pod in self.store.pods.values() if gang_of(pod) == gang]

    def live(self, gang):
        return [
            pod
            for pod in self.members(gang)
            if not (pod.is_terminal or pod.metadata.deletion_timestamp)
        ]

    def bound(self, gang):
        return [pod for pod in self.live(gang) if pod.node]

    def succeeded(self, gang):
        return sum(pod.status.phase == "Succeeded" for pod in self.members(gang))


def cards_of(well):
    return inventory.decode(well.annotations[ANNOTATION_INVENTORY]).cards


def packs(sizes, free):
    if not sizes:
        return True
    first, *rest = sizes
    for place, units in enumerate(free):
        if units >= first:
            left = [*free]
            left[place] -= first
            if packs(rest, left):
                return True
    return False


def gang_of(pod):
    return name_of(pod).split("-")[0]


def name_of(pod):
    return pod.metadata.name


def is_started(pod):
    """Whether it was bound or released by the extender; kube-scheduler binds others by itself."""
    return bool(units_of(pod)) or ANNOTATION_SLOT in pod.annotations


def units_of(pod):
    found = pod.containers[0].limits.get(RESOURCE_MEMORY)
    return None if found is None else int(found)


TestGangs = Gangs.TestCase
TestGangs.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
