"""Whatever fails while gangs are placed, each is bound as a whole or keeps nothing."""

import math
import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.extender.gangs.promises import Promises
from tests.unit.extender.gangs.store import DELETED
from tests.unit.extender.gangs.world import World
from tests.unit.extender.scripted import changed

EXAMPLES = 1000 if os.environ.get("GPUSHARE_LONG") else 60
SETTLED_WITHIN_SECONDS = 900
MOST_GANGS = 4  # that are not whole
MOST_MEMBERS = 5
NUMBERS = st.integers(0, 30)
PAUSES = st.sampled_from([0.0, 0.001, 0.004, 0.02, 0.3])
DELAYS = st.sampled_from([0.0, 0.0, 0.003, 0.5, 4.0])
OUTCOMES = st.sampled_from(
    ["done", "done", "slow", "refused", "lost", "done, unknown", "late, unknown"]
)
ZONES = st.sampled_from("xy")
NODES = st.tuples(st.lists(st.sampled_from([8, 16]), min_size=2, max_size=3), ZONES)
GANGS = st.fixed_dictionaries(
    {
        "size": st.sampled_from([2, 3, 3, 4, 4, 1, 5]),
        "short": st.sampled_from([0, 0, 0, 1, 2]),
        "units": st.lists(
            st.sampled_from([8, 4, 6, 8, 12, None, 16]),
            min_size=MOST_MEMBERS,
            max_size=MOST_MEMBERS,
        ),
        "is_mixed": st.booleans(),
        "in_zone": st.booleans(),
        "is_gated": st.sampled_from([False, False, True]),
        "missing": st.sampled_from([0, 0, 0, 1]),
    }
)


class Gangs(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()
        self.store = self.world.store
        self.promises = Promises(self.world)

    def teardown(self):
        try:
            if self.world.replicas:
                self.all_faults_end()
        finally:
            self.world.end()

    @initialize(
        nodes=st.lists(NODES, min_size=1, max_size=3),
        gangs=st.lists(GANGS, min_size=1, max_size=3),
        may_patch=st.booleans(),
    )
    def bring_up(self, nodes, gangs, may_patch):
        self.store.may_patch = may_patch
        self.world.start(nodes)
        for each in gangs:
            self.make(**each)

    @rule(gang=GANGS, pause=PAUSES)
    def gang_is_made(self, gang, pause):
        if len(self.world.gangs) - len(self.promises.whole) < MOST_GANGS:
            self.make(**gang)
        self.world.go(pause)

    def make(self, *, size, short, units, is_mixed, in_zone, is_gated, missing):
        asked = units[:size] if is_mixed else [units[0] or 4] * size
        self.world.make_gang(
            asked[: max(1, size - missing)],
            minimum=max(1, size - short),
            in_zone=in_zone,
            is_gated=is_gated and self.store.may_patch,
        )

    @rule(number=NUMBERS, units=st.sampled_from([4, 8, None]), pause=PAUSES)
    def member_comes(self, number, units, pause):
        gang = chosen(number, list(self.world.gangs))
        if len(self.world.members(gang)) < MOST_MEMBERS:
            self.world.add_member(gang, units)
        self.world.go(pause)

    @precondition(lambda self: self.store.pods)
    @rule(
        number=NUMBERS,
        how=st.sampled_from(["removed", "terminated", "replaced", "Succeeded", "Failed"]),
        pause=PAUSES,
    )
    def member_goes(self, number, how, pause):
        pods = [pod for pod in self.store.pods.values() if self.is_in_use(pod)]
        pod = chosen(number, pods or list(self.store.pods.values()))
        if how == "terminated":
            self.store.put(changed(pod, {"deletion_timestamp": DELETED}))
        elif how == "removed":
            self.store.remove(pod)
        elif how == "replaced":
            self.world.replace(pod)
        elif pod.node and not pod.is_terminal:
            self.store.put(changed(pod, status={"phase": how}))
        self.world.go(pause)

    @rule(
        number=NUMBERS,
        what=st.sampled_from(["cordon", "lost", "ill"]),
        pause=PAUSES,
    )
    def node_fails(self, number, what, pause):
        used = {slot.node for slot in self.world.slots()}
        name = chosen(number, sorted(used) or list(self.world.well))
        self.world.change_node(name, what)
        self.world.go(pause)
        if what == "lost":
            self.world.replace_on(name)

    @rule(number=NUMBERS, pause=PAUSES)
    def node_is_mended(self, number, pause):
        self.world.change_node(chosen(number, list(self.world.well)), "well")
        self.world.go(pause)

    @rule(seconds=st.sampled_from([0.02, 0.3, 1.5, 5.0, 12.0, 31.0]))
    def time_passes(self, seconds):
        self.world.go(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.005, 0.5, math.inf]), which=st.integers(0, 1))
    def watch_lags(self, seconds, which):
        self.world.replicas[which].set_lag(seconds)

    @precondition(lambda self: self.world.waiting())
    @rule(number=NUMBERS, hidden=st.integers(0, 9), delay=DELAYS, outcome=OUTCOMES, pause=PAUSES)
    def pod_is_tried(self, number, hidden, delay, outcome, pause):
        pod = chosen(number, self.world.waiting())
        self.world.attempt(pod, list(self.store.nodes)[hidden : hidden + 1], delay, outcome)
        self.world.go(pause)

    @rule(
        outcomes=st.lists(OUTCOMES, min_size=1, max_size=6),
        delays=st.lists(DELAYS, min_size=1, max_size=6),
        is_backwards=st.booleans(),
        pause=PAUSES,
    )
    def all_pods_are_tried(self, outcomes, delays, is_backwards, pause):
        waiting = self.world.waiting()
        for number, pod in enumerate(waiting[::-1] if is_backwards else waiting):
            self.world.attempt(pod, (), chosen(number, delays), chosen(number, outcomes))
        self.world.go(pause)

    @precondition(lambda self: self.world.leader is not None)
    @rule(is_killed=st.booleans(), to=st.integers(0, 1), pause=st.sampled_from([0.0, 0.3, 5.0]))
    def leader_changes(self, is_killed, to, pause):
        self.world.begin(self.world.fail_over(to, is_killed=is_killed))
        self.world.go(pause)

    def is_in_use(self, pod):
        """Whether the pod has a slot or a node."""
        return bool(pod.node) or pod.uid in {slot.pod_uid for slot in self.world.slots()}

    @invariant()
    def all_promises_hold(self):
        self.promises.check()

    def all_faults_end(self):
        """In the end each gang is whole, or keeps nothing and fits nowhere."""
        world = self.world
        for name in world.well:
            world.change_node(name, "well")
        for replica in world.replicas:
            replica.set_lag(0.0)
        until, why = world.loop.now + SETTLED_WITHIN_SECONDS, "not looked yet"
        while why:
            for pod in list(self.store.pods.values()):
                if pod.metadata.deletion_timestamp:
                    self.store.remove(pod)
            world.go(1.0)
            for pod in world.waiting():
                world.attempt(pod, (), 0.0)
            world.go(0.5)
            self.promises.check()
            why = self.promises.why_not_settled()
            assert not why or world.loop.now < until, why


def chosen(number, items):
    return items[number % len(items)]


TestGangs = Gangs.TestCase
TestGangs.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
