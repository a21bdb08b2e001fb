"""What a replica lets go of when it stops leading: all that no pod on the API server shows."""

import pytest

from extender.decisions.gangs.plans import GangPlans
from extender.gangs.planning import GangPlanning
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Slot
from gpushare.planning.ask import Plan
from tests.builders import node, pod
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import bound


@pytest.fixture
def cluster():
    made = ClusterWatch(1, lambda *_: None, FakeClock(), Policy())
    made.node_changed(node("n", 16, 16))
    made.pod_changed(bound("runs", 8, "GPU-0", "n"))
    for name in ("a", "b"):
        labels = {LABEL_GANG: "train", LABEL_GANG_MINIMUM: "2"}
        made.pod_changed(pod(name, 4, labels=labels))
    return made


SLOTS = tuple(Slot("n", ("GPU-0",), 4, uid) for uid in ("uid-a", "uid-b"))


def free(cluster):
    return [entry.free for entry in cluster.ledger.account("n").cards]


def test_reserves_holds_and_claims_go_and_bound_pods_stay(cluster):
    scheduling = cluster.scheduling
    [group] = cluster.state.groups
    GangPlans(scheduling.gangs).take(group, Plan(SLOTS, ""))
    cluster.ledger.reserve(Reserve("uid-c", "default", "c", "n", ("GPU-0",), 1, 1))
    cluster.ledger.keep(Claim("uid-d", (Slot("n", ("GPU-1",), 3),), 1e9, 5))
    assert len(scheduling.gangs.progress(group).slotted) == 2
    scheduling.forget()
    assert free(cluster) == [8, 16]
    assert not scheduling.gangs.progress(group).slotted
    assert scheduling.gangs.lacking(group, scheduling.gangs.record(group)) == 2


class SlowPlanner:
    """Return a plan that fits; something else happens before that."""

    def __init__(self, meanwhile):
        self._meanwhile = meanwhile

    def plan(self, ask):
        yield
        self._meanwhile()
        return Plan(SLOTS, "")

    def unusable(self, slots, pods, owner):
        return {}


async def test_a_plan_that_is_still_being_made_is_not_kept(cluster):
    planning = GangPlanning(cluster.scheduling)
    [group] = cluster.state.groups
    planning.planner = SlowPlanner(cluster.scheduling.forget)
    assert not await planning.plan(group)
    assert free(cluster) == [8, 16]
