"""Victims of single states, each named after what is promised."""

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.scheduling import Taint
from gpushare.planning.ask import Ask, NoPlan
from gpushare.preemption.ending import MOST_GRACE_SECONDS
from gpushare.preemption.model import Preemption
from tests.unit.gpushare.planning.worlds import gang, nodes_of, pod
from tests.unit.gpushare.preemption.worlds import (
    HIGH,
    LOW,
    MEDIUM,
    RunningWorld,
    budgets,
    find,
    victims,
)


@pytest.fixture
def world() -> RunningWorld:
    return RunningWorld()


def single(units: int = 0, *, priority: int = HIGH, **more) -> Ask:
    return Ask("new", (pod("new", units, priority=priority, **more),), 1)


def whole(number: int, units: int, *, least: int | None = None, **more) -> Ask:
    members = gang(number, units, priority=HIGH, cards=more.pop("cards", 1))
    return Ask("gang", members, number if least is None else least, **more)


def test_p1_nobody_is_evicted_if_the_pod_fits(world):
    world.add("n", 16)
    world.run("low", "n", 8)
    found = find(world, single(8))
    assert isinstance(found, Preemption)
    assert found.is_free
    assert not found.victims


def test_p2_nobody_is_evicted_for_a_gang_that_lacks_nobody(world):
    world.add("n", 16)
    world.run("low", "n", 16)
    assert victims(find(world, Ask("gang", (), 0))) == set()


def test_p3_only_preemptible_pods_are_evicted(world):
    world.add("n", 6)
    world.run("a", "n", 1)
    world.run("b", "n", 1)
    world.run("never", "n", 1, preemptible=False)
    assert victims(find(world, single(5), preemptible_only=True)) == {"a", "b"}
    assert victims(find(world, single(6), preemptible_only=True)) is None
    assert victims(find(world, single(6))) == {"a", "b", "never"}


def test_p5_a_shortage_on_single_cards_costs_one_pod(world):
    world.add("n", 16, 16)
    world.run("a", "n", 10, 0)
    world.run("b", "n", 10, 1)
    assert len(victims(find(world, single(10)))) == 1


def test_p6_p7_the_pod_on_the_half_used_card_goes_and_not_the_one_on_a_whole_card(world):
    world.add("n", 100, 100)
    world.run("job0", "n", 100, 0)
    world.run("job1", "n", 50, 1)
    found = find(world, single(60))
    assert victims(found) == {"job1"}
    assert found.plan.slots[0].cards == ("n-1",)
    assert victims(find(world, single(100))) == {"job1"}


def test_p9_a_pod_on_two_cards_goes_for_a_gang_of_two(world):
    world.add("n", 16, 16)
    world.run("train", "n", 16, 0, 1)
    assert victims(find(world, whole(2, 16))) == {"train"}


def test_p10_for_the_missing_member_of_a_gang_one_pod_goes(world):
    world.add("n", 16, 16, 16)
    world.run("train0", "n", 16, 0)
    world.run("train1", "n", 16, 1)
    world.run("mine", "n", 16, 2, priority=HIGH, gang="build", minimum=2)
    assert len(victims(find(world, whole(1, 16)))) == 1


def test_p11_a_gang_without_surplus_goes_as_a_whole(world):
    world.add("n", 16)
    world.add("m", 16)
    world.run("train0", "n", 16, gang="train", minimum=2)
    world.run("train1", "m", 16, gang="train", minimum=2)
    assert victims(find(world, single(16))) == {"train0", "train1"}


def test_p15_half_of_what_a_gang_needs_is_not_evicted(world):
    world.add("n", 16)
    world.add("m", 16)
    world.run("low", "n", 16)
    world.run("high", "m", 16, priority=HIGH)
    assert victims(find(world, whole(2, 16))) is None
    assert victims(find(world, single(16))) == {"low"}


def test_p17_the_fewest_pods_of_one_card_go(world):
    world.add("n", 16, 16)
    world.run("a1", "n", 8, 0)
    world.run("a2", "n", 8, 0)
    world.run("b", "n", 16, 1)
    found = find(world, single(16))
    assert victims(found) == {"b"}
    assert found.plan.slots[0].cards == ("n-1",)


def test_p17_two_pods_go_rather_than_three(world):
    world.add("n", 16, 16)
    for name, units, card in [
        ("a1", 12, 0), ("a2", 4, 0), ("b1", 5, 1), ("b2", 5, 1), ("b3", 6, 1)
    ]:  # fmt: skip
        world.run(name, "n", units, card)
    assert victims(find(world, single(16))) == {"a1", "a2"}


def test_the_last_victim_is_the_smallest_that_suffices(world):
    world.add("n", 100)
    world.run("large", "n", 60)
    world.run("small", "n", 40)
    assert victims(find(world, single(40))) == {"small"}
    assert victims(find(world, single(50))) == {"large"}
    assert victims(find(world, single(61))) == {"large", "small"}


def test_a_pod_on_two_cards_is_one_victim_and_makes_another_one_unnecessary(world):
    world.add("n", 8, 16)
    world.run("both", "n", 8, 0, 1)
    world.run("b", "n", 8, 1)
    assert victims(find(world, single(8, cards=2))) == {"both"}
    assert victims(find(world, single(9, cards=2))) is None


def test_p18_the_pod_that_its_budget_protects_stays(world):
    world.add("n", 16, 16)
    world.run("a", "n", 16, 0, priority=LOW)
    world.run("b", "n", 16, 1, priority=LOW + 1)
    rules = budgets({"pdb": 0}, {"a": ["pdb"]})
    assert victims(find(world, single(16), rules)) == {"b"}


def test_p21_nobody_else_goes_while_victims_end(world):
    world.add("n", 16, 16)
    world.run("a", "n", 16, 0)
    world.run("b", "n", 16, 1)
    world.delete("a")
    found = find(world, single(16))
    assert victims(found) == set()
    assert not found.is_free
    world.delete("a", in_time=False)
    assert victims(find(world, single(16))) == {"b"}
    world.delete("b", in_time=False)
    assert victims(find(world, single(16))) is None


def test_of_three_pods_with_a_budget_of_one_one_may_go(world):
    world.add("n", 16, 16, 16)
    for number in range(3):
        world.run(f"p{number}", "n", 16, number)
    rules = budgets({"pdb": 1}, {f"p{number}": ["pdb"] for number in range(3)})
    assert len(victims(find(world, whole(1, 16), rules))) == 1
    assert victims(find(world, whole(2, 16), rules)) is None


def test_a_pod_without_a_budget_goes_if_budgets_do_not_permit_all_of_the_lowest(world):
    world.add("n", 16, 16, 16)
    for number in range(3):
        world.run(f"p{number}", "n", 16, number, priority=LOW + 10 * number)
    rules = budgets({"pdb": 1}, {"p0": ["pdb"], "p1": ["pdb"]})
    assert len(victims(find(world, whole(1, 16), rules)) & {"p0", "p1"}) == 1
    found = victims(find(world, whole(2, 16), rules))
    assert "p2" in found
    assert len(found) == 2


def test_a_pod_with_two_budgets_never_goes(world):
    world.add("n", 16)
    world.run("a", "n", 16)
    rules = budgets({"one": 5, "two": 5}, {"a": ["one", "two"]})
    assert victims(find(world, single(16), rules)) is None


def test_a_budget_that_permits_only_some_of_a_gang_keeps_all_of_it(world):
    world.add("n", 16, 16)
    world.run("g0", "n", 16, 0, gang="g", minimum=2)
    world.run("g1", "n", 16, 1, gang="g", minimum=2)
    rules = budgets({"pdb": 1}, {"g0": ["pdb"], "g1": ["pdb"]})
    assert victims(find(world, single(16), rules)) is None
    assert victims(find(world, single(16), budgets({"pdb": 2}, rules.budgets.of))) == {"g0", "g1"}


def test_the_surplus_of_a_gang_goes_alone(world):
    world.add("n", 16, 16, 16)
    for number in range(3):
        world.run(f"g{number}", "n", 16, number, gang="g", minimum=2)
    assert len(victims(find(world, single(16)))) == 1
    assert len(victims(find(world, whole(2, 16)))) == 3
    world.ended["g"] = 1
    assert len(victims(find(world, whole(2, 16)))) == 2


def test_a_gang_has_no_surplus_while_others_may_evict_a_member(world):
    world.add("n", 16, 16, 16)
    for number in range(3):
        world.run(f"g{number}", "n", 16, number, gang="g", minimum=2)
    undecided = frozenset({world.running["g0"].uid})
    assert victims(find(world, single(16))) is not None
    assert victims(find(world, single(16), undecided=undecided)) is None


def test_a_gang_of_which_a_member_is_being_bound_does_not_go(world):
    world.add("n", 16, 16)
    for number in range(2):
        world.run(f"g{number}", "n", 16, number, gang="g", minimum=2)
    assert victims(find(world, single(16))) is not None
    made = pod("g2", 16, priority=LOW)
    labels = dict(world.running["g0"].labels)
    world.groups.update(replace(made, metadata=replace(made.metadata, labels=labels)))
    world.ledger.keep(Hold("g", (Slot("m", (), 0, "g2"),), 1.0))
    assert victims(find(world, single(16))) is None


def test_nobody_else_goes_once_a_gang_goes_as_a_whole(world):
    world.add("n", 16, 16, 16, 16)
    for number in range(3):
        world.run(f"g{number}", "n", 16, number, gang="g", minimum=2, priority=MEDIUM)
    world.run("low", "n", 16, 3)
    assert victims(find(world, whole(3, 16))) == {"g0", "g1", "g2"}


def test_a_gang_loses_its_surplus_and_not_two_others_for_which_all_of_it_would_go(world):
    """The smallest is put back first, and then two larger ones would have to go."""
    world.add("n", 16, zone="a")
    world.add("m", 16, 16, zone="a", cpu=2)
    world.run("g0", "n", 10, gang="g", minimum=2)
    world.run("g1", "m", 12, 0, cpu=1, gang="g", minimum=2)
    world.run("g2", "m", 12, 1, cpu=1, gang="g", minimum=2)
    ask = single(10, cpu=2)
    assert victims(find(world, changed(ask, zone_key="zone"))) == {"g0"}


def test_a_gang_with_a_member_that_may_not_go_loses_only_its_surplus(world):
    world.add("n", 16, 16, 16)
    for number in range(3):
        world.run(f"g{number}", "n", 16, number, gang="g", minimum=2)
    spared = frozenset({"g0"})
    assert victims(find(world, single(16), spared=spared)) <= {"g1", "g2"}
    assert victims(find(world, whole(2, 16), spared=spared)) is None


def test_the_level_of_a_gang_is_that_of_its_highest_member(world):
    world.add("n", 16, 16)
    world.run("g0", "n", 16, 0, gang="g", minimum=2, priority=LOW)
    world.run("g1", "n", 1, 1, gang="g", minimum=2, priority=HIGH)
    assert victims(find(world, single(16))) is None
    world.add("m", 16)
    world.run("medium", "m", 16, priority=MEDIUM)
    assert victims(find(world, single(16))) == {"medium"}


def test_members_of_the_own_gang_never_go(world):
    world.add("n", 16)
    mine = world.run("g0", "n", 16, gang="g", minimum=1)
    waiting = pod("g1", 16, priority=HIGH)
    waiting = replace(waiting, metadata=replace(waiting.metadata, labels=mine.labels))
    world.groups.update(waiting)
    assert victims(find(world, Ask("g", (waiting,), 1))) is None


def test_members_without_gpu_memory_go_with_their_gang_for_its_cpu(world):
    world.add("n", 16, cpu=4)
    world.add("m", 16)
    world.run("worker", "m", 1, gang="g", minimum=2)
    world.run("server", "n", cpu=4, gang="g", minimum=2)
    ask = single(16, cpu=2, names=["n"])
    assert victims(find(world, ask)) == {"worker", "server"}


def test_others_without_gpu_memory_never_go(world):
    world.add("n", 16, cpu=4)
    world.run("web", "n", cpu=4)
    assert victims(find(world, single(8, cpu=2))) is None


def test_cpu_counts_as_cards_do(world):
    world.add("n", 16, 16, cpu=4)
    world.run("a", "n", 16, 0, cpu=1)
    world.run("b", "n", 16, 1, cpu=3)
    assert victims(find(world, single(16, cpu=2))) == {"b"}
    assert victims(find(world, single(16, cpu=4))) == {"a", "b"}


def test_a_pod_whose_cards_are_unknown_never_goes_alone(world):
    world.add("n", 16)
    world.run("odd", "n", 8, is_unplaced=True)
    assert victims(find(world, single(16))) is None


def test_a_pod_whose_cards_are_unknown_goes_with_its_gang(world):
    world.add("n", 16)
    world.run("odd", "n", 8, is_unplaced=True, gang="g", minimum=2)
    world.run("even", "n", 8, gang="g", minimum=2)
    assert victims(find(world, single(16))) == {"odd", "even"}


def test_the_lowest_priority_goes_even_if_these_are_more_pods(world):
    world.add("n", 16, 16)
    world.run("a1", "n", 8, 0, priority=LOW)
    world.run("a2", "n", 8, 0, priority=LOW)
    world.run("b", "n", 16, 1, priority=MEDIUM)
    assert victims(find(world, single(16))) == {"a1", "a2"}
    assert victims(find(world, single(16, priority=LOW))) is None


def test_a_pod_that_never_preempts_gets_only_what_is_free_or_ends(world):
    world.add("n", 16)
    world.run("a", "n", 16)
    member = pod("new", 16, priority=HIGH)
    member = replace(member, spec=replace(member.spec, preemption_policy="Never"))
    ask = Ask("new", (member,), 1)
    assert victims(find(world, ask)) is None
    world.delete("a")
    assert victims(find(world, ask)) == set()


def test_nobody_goes_on_nodes_that_the_pod_may_not_use(world):
    world.add("n", 16, taints=[Taint("k", "NoSchedule")])
    world.add("m", 16, unhealthy=[0])
    world.run("a", "n", 16)
    world.run("b", "m", 16)
    assert victims(find(world, single(16))) is None
    world.add("o", 16)
    world.run("c", "o", 16)
    assert victims(find(world, single(16))) == {"c"}
    ask = single(16)
    assert victims(find(world, changed(ask, cooling=frozenset({"o"})))) is None
    assert victims(find(world, changed(ask, avoid={"new": frozenset({"o"})}))) is None
    assert victims(find(world, changed(ask, only=frozenset({"n"})))) is None


def test_of_zones_the_one_with_the_least_harm_is_chosen(world):
    for zone, priority in [("a", MEDIUM), ("b", LOW)]:
        for number in range(2):
            world.add(f"{zone}{number}", 16, zone=zone)
            world.run(f"p{zone}{number}", f"{zone}{number}", 16, priority=priority)
    found = find(world, whole(2, 16, zone_key="zone"))
    assert victims(found) == {"pb0", "pb1"}
    assert found.plan.zone == "b"
    found = find(world, whole(2, 16, zone_key="zone", zone="a"))
    assert victims(found) == {"pa0", "pa1"}


def test_a_gang_goes_only_as_a_whole_if_it_is_not_known_how_many_members_it_needs(world):
    world.add("n", 16, 16)
    world.run("g0", "n", 16, 0, gang="g", minimum=0)
    world.run("g1", "n", 16, 1, gang="g", minimum=0)
    assert victims(find(world, single(16))) == {"g0", "g1"}


def test_nobody_goes_for_surplus_members(world):
    world.add("n", 16, 16, 16)
    for number in range(3):
        world.run(f"p{number}", "n", 16, number)
    found = find(world, whole(3, 16, least=2))
    assert len(victims(found)) == 2
    assert len(found.plan.slots) == 2
    with world.gone(["p0"]):
        found = find(world, whole(3, 16, least=1))
        assert victims(found) == set()
        assert len(found.plan.slots) == 1


def test_members_of_several_shapes_cost_what_they_need_together(world):
    world.add("n", 16, 16)
    world.run("a1", "n", 8, 0)
    world.run("a2", "n", 8, 0)
    world.run("b", "n", 16, 1, priority=MEDIUM)
    members = (pod("m0", 4, priority=HIGH), pod("m1", 8, priority=HIGH))
    found = find(world, Ask("gang", members, 2))
    assert victims(found) == {"a1", "a2"}
    assert find(world, Ask("gang", (*members, pod("m2", 5, priority=HIGH)), 3)).plan
    large = (pod("m0", 16, priority=HIGH), pod("m1", 12, priority=HIGH), pod("m2", 5, priority=99))
    assert isinstance(find(world, Ask("gang", large, 3)), NoPlan)


def test_claims_of_lower_priority_do_not_count_and_the_own_claim_does_not_either(world):
    world.add("n", 16)
    world.run("a", "n", 16)
    slot = Slot("n", ("n-0",), 16, "new")
    world.ledger.keep(Claim("new", (slot,), 9.0, HIGH))
    assert victims(find(world, single(16))) == {"a"}
    world.ledger.drop(Claim, "new")
    other = Slot("n", ("n-0",), 16, "x")
    world.ledger.keep(Claim("other", (other,), 9.0, HIGH))
    assert victims(find(world, single(16))) is None
    world.ledger.keep(Claim("other", (other,), 9.0, HIGH - 1))
    assert victims(find(world, single(16))) == {"a"}
    world.ledger.drop(Claim, "other")
    world.ledger.keep(Hold("other", (other,), 9.0))
    assert victims(find(world, single(16))) is None


def test_hinted_pods_go_before_others_of_their_priority_only(world):
    world.add("n", 16, 16, 16)
    world.run("a", "n", 16, 0)
    world.run("b", "n", 16, 1, priority=MEDIUM)
    world.run("c", "n", 16, 2)
    for ask in (single(16), whole(1, 16), whole(2, 8)):
        assert victims(find(world, ask, hinted=frozenset({"a"}))) == {"a"}
        assert victims(find(world, ask, hinted=frozenset({"c"}))) == {"c"}
        assert victims(find(world, ask, hinted=frozenset({"b"}))) in ({"a"}, {"c"})


def test_those_that_exist_longest_stay(world):
    world.add("n", 16)
    world.add("m", 16)
    world.run("young", "n", 16, since="2026-02-01T00:00:00Z")
    world.run("old", "m", 16, since="2026-01-01T00:00:00Z")
    found = find(world, whole(2, 8))
    assert victims(found) == {"young"}
    assert nodes_of(found.plan) == ["n", "n"]


@pytest.mark.parametrize("is_gang", [False, True])
def test_pods_that_may_take_too_long_to_end_are_victims_only_if_no_equal_ones_help(world, is_gang):
    ask = whole(1, 16) if is_gang else single(16)
    world.add("n", 16)
    world.add("m", 16)
    world.run("slow", "n", 16, grace=MOST_GRACE_SECONDS + 1, since="2030")
    world.run("a", "m", 8, grace=MOST_GRACE_SECONDS)
    world.run("b", "m", 8)
    assert victims(find(world, ask)) == {"a", "b"}
    world.stop("b")
    world.run("b", "m", 8, priority=MEDIUM)
    assert victims(find(world, ask)) == {"slow"}


def test_of_equal_pods_the_one_with_the_shorter_grace_period_is_the_victim(world):
    world.add("n", 16, 16)
    world.run("minutes", "n", 16, 0, grace=120, since="2030")
    world.run("seconds", "n", 16, 1, since="2020")
    assert victims(find(world, single(16))) == {"seconds"}
