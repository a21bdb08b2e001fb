"""What counts against a gang, what it prefers, and what happens while a plan is made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import ANNOTATION_CARDS_NOT, ANNOTATION_NODE_POLICY
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.gone import NOBODY, Gone
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.scheduling import Taint, Toleration
from gpushare.placement.reasons import COOLING, CORDONED, LEAVING, NO_ROOM, UNHEALTHY
from gpushare.planning.ask import NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.planning.reasons import NO_RESOURCES, NODE_RULES, OTHER_REQUEST
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.planning.worlds import (
    ZONE,
    PlannedWorld,
    ask,
    check,
    gang,
    hold,
    nodes_of,
    plan,
    pod,
    slot_of,
)

NOT_READY = Taint("node.kubernetes.io/not-ready", "NoExecute")


def make_unschedulable(world):
    world.add("n1", 8, unschedulable=True)


def taint(world):
    world.add("n1", 8, taints=[Taint("team", "NoSchedule", "a")])


def make_not_ready(world):
    world.add("n1", 8, taints=[NOT_READY])


def close(world):
    world.closed["n1"] = LEAVING
    world.ledger.changes.add("n1")


def cordon_card(world):
    world.add("n1", 8, cordoned=[0])


def break_card(world):
    world.add("n1", 8, unhealthy=[0])


def take_cpu(world):
    world.use("n1", 0, cpu=1000)


def take_card(world):
    world.use("n1", 8, 0)


def delete(world):
    del world.nodes["n1"]
    world.resource_changes.add("n1")
    world.ledger.set_inventory("n1", None)


CHANGES = {
    make_unschedulable: NODE_RULES,
    taint: NODE_RULES,
    make_not_ready: NODE_RULES,
    close: LEAVING,
    cordon_card: CORDONED,
    break_card: UNHEALTHY,
    take_cpu: NO_RESOURCES,
    take_card: NO_ROOM,
    delete: None,
}
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


class TestNodes:
    @each_change
    def test_a_node_that_kube_scheduler_or_filter_would_refuse_takes_nobody(self, change):
        world = PlannedWorld()
        world.add("n1", 8)
        change(world)
        assert isinstance(plan(world, gang(1, 1, cpu=1)), NoPlan)

    @each_change
    def test_a_change_is_noticed_by_a_planner_that_knew_the_node(self, change):
        world = PlannedWorld()
        world.add("n1", 8)
        planner, asked = Planner(world), ask(gang(1, 1, cpu=1))
        assert isinstance(run_all(planner.plan(asked)), Plan)
        change(world)
        assert isinstance(run_all(planner.plan(asked)), NoPlan)
        world.closed.clear()
        world.add("n2", 8)
        assert nodes_of(run_all(planner.plan(asked))) in (["n1"], ["n2"])

    @each_change
    def test_slots_that_cannot_be_used_any_longer_are_found(self, change):
        world = PlannedWorld()
        world.add("n1", 8)
        members = {each.uid: each for each in gang(2, 1, cpu=1)}
        found = plan(world, members.values())
        hold(world, found)
        planner = Planner(world)
        assert planner.unusable(found.slots, members) == {}
        change(world)
        reasons = planner.unusable(found.slots, members)
        assert set(reasons) == set(members)
        expected = CHANGES[change]
        assert expected is None or set(reasons.values()) == {expected}

    def test_members_that_tolerate_a_taint_may_go_there(self):
        world = PlannedWorld()
        taint(world)
        tolerates = Toleration("team", "Exists")
        assert nodes_of(plan(world, gang(1, 1, tolerations=[tolerates]))) == ["n1"]

    def test_a_card_that_the_policy_of_the_pods_excludes_is_not_taken(self):
        world = PlannedWorld()
        world.add("n1", 8, 8)
        members = gang(2, 8, annotations={ANNOTATION_CARDS_NOT: "n1-0"})
        assert isinstance(plan(world, members), NoPlan)
        world.add("n2", 8)
        assert {slot.cards for slot in plan(world, members).slots} == {("n1-1",), ("n2-0",)}

    def test_a_node_that_fails_pods_takes_no_gpu_memory_for_a_while(self):
        world = PlannedWorld()
        world.add("n1", 8)
        cooling = frozenset({"n1"})
        assert isinstance(plan(world, gang(1, 1), cooling=cooling), NoPlan)
        assert nodes_of(plan(world, gang(1, cpu=1), cooling=cooling)) == ["n1"]
        found, pods = plan(world, gang(1, 1)), {"m0": gang(1, 1)[0]}
        assert Planner(world).unusable(found.slots, pods, cooling) == {"m0": COOLING}

    def test_a_claim_and_the_pods_that_are_evicted_for_it_count_once(self):
        world = PlannedWorld()
        world.add("n1", 8, 8, cpu=8)
        world.use("n1", 8, 0, cpu=4)
        victim = "other-0"
        found = plan(world, gang(1, 8, cpu=4))
        slot = Slot("n1", ("n1-0",), 8, "preemptor", found.slots[0].requests)
        world.ledger.keep(Claim("preemptor", (slot,), 1.0, priority=5))
        assert isinstance(plan(world, gang(1, 8, cpu=4)), NoPlan)
        world.evicted["n1"] = {victim}
        for gone in (NOBODY, Gone(world.ledger, world._use.requests_of, {"n1": {victim}})):
            for members, fit in ((gang(1, 8, cpu=4), True), (gang(1, 8, cpu=5), False)):
                found = run_all(Planner(world).plan(ask(members), gone))
                assert isinstance(found, Plan) is fit
        assert isinstance(plan(world, gang(2, 8, cpu=1)), NoPlan)

    def test_only_the_offered_nodes_are_taken(self):
        world = PlannedWorld()
        for name in ("n1", "n2", "n3"):
            world.add(name, 8)
        assert nodes_of(plan(world, gang(1, 1), only=frozenset({"n3", "other"}))) == ["n3"]
        assert isinstance(plan(world, gang(9, 1), only=frozenset({"n3"})), NoPlan)

    def test_a_member_avoids_the_nodes_that_refused_it(self):
        world = PlannedWorld()
        world.add("n1", 8)
        world.add("n2", 8)
        avoid = {"m0": frozenset({"n1"}), "m1": frozenset({"n2"})}
        assert nodes_of(plan(world, gang(2, 1), avoid=avoid)) == ["n2", "n1"]

    def test_members_that_name_their_nodes_get_one_of_them(self):
        world = PlannedWorld()
        for number in range(30):
            world.add(f"n{number}", 8)
        members = [pod(f"m{n}", 8, names=[f"n{n + 5}", f"n{n + 6}"]) for n in range(20)]
        found = plan(world, members)
        assert all(node in (f"n{n + 5}", f"n{n + 6}") for n, node in enumerate(nodes_of(found)))


class TestOrder:
    def test_members_go_where_they_would_one_by_one(self):
        world = PlannedWorld()
        world.add("empty", 16, 16)
        world.add("used", (16, 8), 16)
        assert nodes_of(plan(world, gang(3, 8))) == ["used", "used", "used"]

    def test_members_are_spread_if_that_is_the_policy(self):
        world = PlannedWorld()
        for name in ("n1", "n2", "n3"):
            world.add(name, 16)
        annotations = {ANNOTATION_NODE_POLICY: "spread"}
        assert sorted(nodes_of(plan(world, gang(3, 2, annotations=annotations)))) == [
            "n1",
            "n2",
            "n3",
        ]

    def test_a_member_keeps_the_node_of_its_hint(self):
        world = PlannedWorld()
        for number in range(4):
            world.add(f"n{number}", 8)
        hints = {"m0": "n3", "m2": "n2", "m1": "unknown"}
        found = plan(world, gang(3, 8), hints=hints)
        assert nodes_of(found)[0] == "n3"
        assert nodes_of(found)[2] == "n2"

    def test_hints_never_take_away_a_plan(self):
        world = PlannedWorld()
        world.add("large", 8)
        world.add("small", 4)
        members = [pod("small", 4), pod("large", 8)]
        found = plan(world, members, hints={"small": "large", "large": "small"})
        assert nodes_of(found) == ["small", "large"]
        zones = PlannedWorld()
        zones.add("a1", 4, zone="a")
        zones.add("b1", 8, zone="b")
        hints = {"m0": "a1", "m1": "a1"}
        assert plan(zones, gang(2, 4), zone_key=ZONE, hints=hints).zone == "b"

    def test_of_equal_zones_the_one_of_the_hints_is_taken(self):
        world = PlannedWorld()
        for zone in "abc":
            world.add(f"{zone}1", 4, zone=zone)
        found = plan(world, gang(2, 2), zone_key=ZONE, hints={"m1": "c1"})
        assert found.zone == "c"


class TestOwnHold:
    def test_what_is_held_for_the_members_is_theirs(self):
        world = PlannedWorld()
        world.add("n1", 8, cpu=2)
        hold(world, plan(world, gang(2, 4, cpu=1)))
        assert isinstance(plan(world, gang(2, 4, cpu=1)), Plan)
        others = gang(1, 4, prefix="other", cpu=1)
        assert isinstance(plan(world, others), NoPlan)

    def test_what_is_held_for_other_members_is_not_given_away(self):
        world = PlannedWorld()
        world.add("n1", 8, cpu=2)
        hold(world, plan(world, gang(2, 4, cpu=1)))
        (first, second) = gang(2, 4, cpu=1)
        assert isinstance(plan(world, [first]), Plan)
        assert isinstance(plan(world, [first, pod("new", 4, cpu=1)]), NoPlan)
        assert isinstance(plan(world, [first, second]), Plan)

    def test_a_reserve_of_a_member_counts_once(self):
        world = PlannedWorld()
        world.add("n1", 8)
        found = plan(world, gang(2, 4))
        hold(world, found)
        slot = slot_of(found, "m0")
        world.ledger.reserve(Reserve("m0", "default", "m0", "n1", slot.cards, 4, 1))
        assert isinstance(plan(world, gang(2, 4)[1:]), Plan)
        pods = {each.uid: each for each in gang(2, 4)}
        assert "m1" not in Planner(world).unusable(found.slots[1:], pods)

    def test_what_a_claim_keeps_for_a_pod_does_not_count_against_it(self):
        world = PlannedWorld()
        world.add("n1", 8)
        (slot,) = plan(world, gang(1, 8)).slots
        world.ledger.keep(Claim("nominated/m0", (slot,), 1.0, priority=0))
        assert isinstance(plan(world, gang(1, 8)), Plan)
        assert isinstance(plan(world, gang(1, 8, prefix="other")), NoPlan)

    def test_a_claim_counts_unless_the_gang_has_a_higher_priority(self):
        world = PlannedWorld()
        world.add("n1", 8)
        slots = plan(world, gang(1, 8, prefix="claimed")).slots
        world.ledger.keep(Claim("preemptor", slots, 1.0, priority=5))
        assert isinstance(plan(world, gang(1, 8, priority=5)), NoPlan)
        assert isinstance(plan(world, gang(1, 8, priority=6)), Plan)

    def test_the_claim_of_the_gang_itself_does_not_count(self):
        world = PlannedWorld()
        world.add("n1", 8, cpu=2)
        members = gang(2, 4, cpu=1, priority=5)
        found = plan(world, members)
        world.ledger.keep(Claim("gang", found.slots, 1.0, priority=5))
        assert isinstance(plan(world, gang(2, 4, cpu=1, prefix="x", priority=5)), NoPlan)
        assert plan(world, members) == found
        hold(world, found)
        assert plan(world, members) == found
        assert isinstance(plan(world, members[:1]), Plan)
        assert isinstance(plan(world, [members[0], pod("x", 4, cpu=1, priority=5)]), NoPlan)

    def test_what_is_held_for_the_gang_stays_its_own_if_others_claim_what_runs_beside_it(self):
        world = PlannedWorld()
        world.add("n1", (16, 8), cpu=6)
        world.use("n1", 0, 0, cpu=2)
        members = gang(2, 4, cpu=2)
        found = plan(world, members)
        hold(world, found)
        claimed = Slot("n1", ("n1-0",), 8, "waits", (("cpu", 2000),))
        world.ledger.keep(Claim("waits", (claimed,), 1.0, priority=5))
        assert run_all(Planner(world).plan(ask(members))) == found
        assert Planner(world).unusable(found.slots, {each.uid: each for each in members}) == {}
        assert isinstance(plan(world, gang(1, 4, cpu=2, prefix="other")), NoPlan)
        assert isinstance(plan(world, gang(3, 4, cpu=2)), NoPlan)
        assert isinstance(plan(world, gang(2, 5, cpu=2)), NoPlan)

    def test_pods_that_are_to_be_counted_as_gone_leave_their_room(self):
        world = PlannedWorld()
        world.add("n1", (8, 6), cpu=2)
        world.use("n1", 1, 0, cpu=2)
        asked = ask(gang(1, 8, cpu=1))
        gone = Gone(world.ledger, world._use.requests_of, {"n1": ["other-0", "other-1"]})
        some = Gone(world.ledger, world._use.requests_of, {"n1": ["other-1"]})
        planner = Planner(world)
        assert nodes_of(run_all(planner.plan(asked, gone))) == ["n1"]
        assert isinstance(run_all(planner.plan(asked, some)), NoPlan)
        assert isinstance(run_all(planner.plan(asked)), NoPlan)

    def test_slots_that_do_not_fit_together_are_unusable_from_the_first_that_does_not(self):
        world = PlannedWorld()
        world.add("n1", 8)
        found = plan(world, gang(2, 4))
        world.use("n1", 2, 0)
        pods = {each.uid: each for each in gang(2, 4)}
        assert Planner(world).unusable(found.slots, pods) == {"m1": NO_ROOM}

    def test_a_slot_of_a_pod_that_asks_for_something_else_is_unusable(self):
        world = PlannedWorld()
        world.add("n1", 8)
        found = plan(world, gang(1, 4))
        for other in (pod("m0", 5), pod("m0", 2, cards=2), pod("m0", cpu=1)):
            assert Planner(world).unusable(found.slots, {"m0": other}) == {"m0": OTHER_REQUEST}


def test_a_plan_that_the_cluster_overtakes_is_made_again():
    world = PlannedWorld()
    world.add("n1", 8)
    world.add("n2", (8, 1), 1)
    asked = ask(gang(1, 7))
    steps = Planner(world).plan(asked)
    for _ in range(4):
        next(steps)
    # It is about to choose the fuller node.
    world.use("n2", 7, 0)
    found = run_all(steps)
    assert nodes_of(found) == ["n1"]
    check(world, asked, found)


def test_a_cluster_that_changes_at_every_step_gets_no_wrong_plan():
    world = PlannedWorld()
    for number in range(20):
        world.add(f"n{number}", 8)
    asked, answer, steps = ask(gang(10, 8)), None, Planner(world).plan(ask(gang(10, 8)))
    for number in range(1000):
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value
            break
        if number % 3 == 0 and number < 40:
            world.use(f"n{number % 20}", 8, 0) if number < 20 else world.add(f"n{number % 20}", 8)
    assert isinstance(answer, Plan)
    check(world, asked, answer)


@given(st.data())
def test_two_plans_at_a_time_do_not_spoil_what_the_planner_knows(data):
    world = PlannedWorld()
    for number in range(6):
        world.add(f"n{number}", 8, 8)
    planner = Planner(world)
    run_all(planner.plan(ask(gang(2, 4))))
    running = {
        name: planner.plan(ask(gang(3, units, prefix=name)))
        for name, units in (("a", 4), ("b", 4), ("c", 2))
    }
    while running:
        name = data.draw(st.sampled_from(sorted(running)))
        try:
            next(running[name])
        except StopIteration as end:
            del running[name]
            check(world, ask(gang(3, 2 if name == "c" else 4, prefix=name)), end.value)
            world.ledger.keep(Hold(name, end.value.slots, 1.0))
        if data.draw(st.integers(0, 9)) == 0:
            node = data.draw(st.integers(0, 5))
            world.use(f"n{node}", 0)
    left = sum(each.free // 4 for n in range(6) for each in world.ledger.account(f"n{n}").cards)
    again = gang(left, 4, prefix="again")
    assert isinstance(run_all(planner.plan(ask(again))), Plan)
    assert isinstance(run_all(planner.plan(ask((*again, pod("more", 4))))), NoPlan)
