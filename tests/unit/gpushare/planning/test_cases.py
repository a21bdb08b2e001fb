"""Gangs of which the answer is known: card by card, in zones, with members of different kinds."""

import pytest

from gpushare.planning.ask import NoPlan, Plan, ZoneRole, ZoneRoom
from gpushare.planning.reasons import NO_ROLE, NO_ZONE_FOR_GANG, NO_ZONES, UNREADABLE_MEMBER
from tests.unit.gpushare.planning.worlds import (
    ZONE,
    PlannedWorld,
    gang,
    nodes_of,
    plan,
    pod,
)


def test_a_gang_of_large_members_gets_a_card_each():
    world = PlannedWorld()
    world.add("n1", 16, 16)
    world.add("n2", 16, 16)
    found = plan(world, gang(4, 12))
    assert isinstance(found, Plan)
    assert len({slot.cards for slot in found.slots}) == 4


@pytest.mark.parametrize(("number", "units", "fits"), [(4, 6, True), (4, 8, False), (3, 8, False)])
def test_free_units_of_several_cards_are_not_added_up(number, units, fits):
    world = PlannedWorld()
    world.add("n1", (16, 10), (16, 10))
    world.add("n2", (16, 10), (16, 10))
    found = plan(world, gang(number, units))
    assert isinstance(found, Plan) == fits
    if not fits:
        assert found.rooms == (ZoneRoom("", 0),)


@pytest.mark.parametrize(
    ("units", "card"), [((10, 6, 6, 10), 16), ((4, 4, 3, 3, 3, 3), 10), ((5, 5, 4, 3, 3), 10)]
)
def test_members_that_differ_fill_cards_exactly(units, card):
    world = PlannedWorld()
    world.add("n1", card, card)
    found = plan(world, [pod(f"m{n}", each) for n, each in enumerate(units)])
    assert isinstance(found, Plan)


def test_a_gang_whose_master_fits_nowhere_gets_nothing():
    world = PlannedWorld()
    world.add("n1", 16)
    found = plan(world, [pod("master", 1, selector={"role": "master"}), pod("worker", 1)])
    assert isinstance(found, NoPlan)
    assert not found.gave_up


def test_enough_other_members_start_without_one_that_fits_nowhere():
    world = PlannedWorld()
    world.add("n1", 2)
    members = [pod("first", 1, selector={"disk": "none"}), *gang(2, 1)]
    found = plan(world, members, least=2)
    assert isinstance(found, Plan)
    assert [slot.pod_uid for slot in found.slots] == ["m0", "m1"]


def test_members_of_one_size_with_different_nodes_make_room_for_one_another():
    world = PlannedWorld()
    world.add("a", 8, labels={"disk": "fast"})
    world.add("b", 8)
    # The first goes to any node, and by rank to the one that is the only one of the second.
    found = plan(world, [pod("any", 8), pod("fast", 8, selector={"disk": "fast"})])
    assert nodes_of(found) == ["b", "a"]


def test_members_of_one_size_with_too_few_nodes_of_their_own_do_not_fit():
    world = PlannedWorld()
    for name in ("a", "b", "c"):
        world.add(name, 8, labels={"disk": "fast"} if name == "a" else {})
    fast = gang(2, 8, prefix="fast", selector={"disk": "fast"})
    found = plan(world, [*fast, pod("any", 8)])
    assert isinstance(found, NoPlan)
    assert not found.gave_up


class TestZones:
    def test_no_zone_has_room_for_a_gang_that_all_zones_together_have_room_for(self):
        world = PlannedWorld()
        world.add("a1", *[1] * 6, zone="a")
        world.add("b1", *[1] * 3, zone="b")
        world.add("b2", *[1] * 2, zone="b")
        found = plan(world, gang(8, 1), zone_key=ZONE)
        rooms = (ZoneRoom("a", 6), ZoneRoom("b", 5))
        assert found == NoPlan(NO_ZONE_FOR_GANG, rooms)

    def test_all_members_are_in_one_zone(self):
        world = PlannedWorld()
        for zone in "ab":
            for number in range(3):
                world.add(f"{zone}{number}", 1, 1, zone=zone)
        found = plan(world, gang(6, 1), zone_key=ZONE)
        assert {node[0] for node in nodes_of(found)} == {found.zone}

    def test_a_zone_with_little_room_is_taken_before_one_with_much(self):
        world = PlannedWorld()
        world.add("a1", *[1] * 8, zone="a")
        world.add("b1", *[1] * 4, zone="b")
        world.add("c1", *[1] * 2, zone="c")
        assert plan(world, gang(3, 1), zone_key=ZONE).zone == "b"

    def test_of_equal_zones_the_first_by_name_is_taken(self):
        world = PlannedWorld()
        for zone in "cab":
            world.add(f"{zone}1", 4, zone=zone)
        assert plan(world, gang(2, 1), zone_key=ZONE).zone == "a"

    def test_nodes_without_the_label_are_in_no_zone(self):
        world = PlannedWorld()
        world.add("plain", 8)
        assert plan(world, gang(2, 1), zone_key=ZONE) == NoPlan(NO_ZONES)
        world.add("a1", 1, zone="a")
        assert isinstance(plan(world, gang(2, 1), zone_key=ZONE), NoPlan)
        assert plan(world, gang(1, 1), zone_key=ZONE).zone == "a"

    def test_a_gang_goes_only_to_zones_whose_role_admits_it(self):
        world = PlannedWorld()
        world.add("a1", *[1] * 16, zone="a")
        world.add("b1", *[(1, 1)] * 16, zone="b")
        roles = (ZoneRole("a", 1, 4), ZoneRole("b", 5, 64))
        large = plan(world, gang(8, 1), zone_key=ZONE, cards=8, roles=roles)
        assert large == NoPlan(NO_ZONE_FOR_GANG, (ZoneRoom("b", 0),))
        small = plan(world, gang(2, 1), zone_key=ZONE, cards=2, roles=roles)
        assert small.zone == "a"
        huge = plan(world, gang(2, 1), zone_key=ZONE, cards=65, roles=roles)
        assert huge == NoPlan(NO_ROLE)

    def test_a_zone_without_a_role_is_for_all_gangs(self):
        world = PlannedWorld()
        world.add("a1", *[1] * 4, zone="a")
        world.add("b1", *[1] * 8, zone="b")
        roles = (ZoneRole("a", 5, 64),)
        assert plan(world, gang(2, 1), zone_key=ZONE, cards=2, roles=roles).zone == "b"

    def test_a_fixed_zone_is_not_left_although_another_one_is_free(self):
        world = PlannedWorld()
        world.add("a1", (4, 4), zone="a")
        world.add("b1", 4, zone="b")
        found = plan(world, gang(1, 1), zone_key=ZONE, zone="a")
        assert found == NoPlan(NO_ZONE_FOR_GANG, (ZoneRoom("a", 0),))
        roles = (ZoneRole("b", 50, 60),)
        assert plan(world, gang(1, 1), zone_key=ZONE, zone="b", roles=roles).zone == "b"

    def test_a_member_without_gpu_memory_is_in_the_zone_of_the_others(self):
        world = PlannedWorld()
        world.add("cpus", cpu=64)
        world.add("cpus-a", cpu=64, zone="a")
        world.add("cpus-b", cpu=64, zone="b")
        world.add("b1", 4, cpu=1, zone="b")
        found = plan(world, [pod("server", cpu=8), *gang(4, 1)], zone_key=ZONE)
        assert nodes_of(found) == ["cpus-b", "b1", "b1", "b1", "b1"]


class TestOtherResources:
    def test_cpu_that_pods_of_others_use_is_not_given_again(self):
        world = PlannedWorld()
        world.add("n1", 8, 8, cpu=4)
        assert isinstance(plan(world, gang(2, 1, cpu=2)), Plan)
        world.use("n1", 0, cpu=1)
        assert isinstance(plan(world, gang(2, 1, cpu=2)), NoPlan)

    def test_a_node_takes_no_more_pods_than_it_may_have(self):
        world = PlannedWorld()
        world.add("n1", 8, pods=3)
        world.use("n1", 0)
        assert isinstance(plan(world, gang(2, 1)), Plan)
        assert isinstance(plan(world, gang(3, 1)), NoPlan)

    def test_gpu_memory_that_kube_scheduler_does_not_see_is_not_given(self):
        # kube-scheduler adds up units of all cards, also what pods use on an unhealthy one.
        world = PlannedWorld()
        world.add("n1", 16, (16, 10), unhealthy=[1])
        assert isinstance(plan(world, gang(1, 6)), Plan)
        assert isinstance(plan(world, gang(1, 8)), NoPlan)

    def test_members_without_gpu_memory_leave_nodes_with_gpus_alone(self):
        world = PlannedWorld()
        world.add("gpus", 8, cpu=64)
        world.add("plain", cpu=4)
        assert nodes_of(plan(world, gang(2, cpu=2))) == ["plain", "plain"]
        assert "gpus" in nodes_of(plan(world, gang(3, cpu=2)))

    def test_a_node_whose_amounts_cannot_be_read_takes_nobody(self):
        world = PlannedWorld()
        world.add("n1", 8, memory="much")
        assert isinstance(plan(world, gang(1, 1)), NoPlan)


class TestSomeMembers:
    def test_all_members_get_slots_if_they_fit(self):
        world = PlannedWorld()
        world.add("n1", 6)
        assert len(plan(world, gang(6, 1), least=2).slots) == 6

    def test_the_most_important_members_get_the_slots_that_there_are(self):
        world = PlannedWorld()
        world.add("n1", 4)
        found = plan(world, gang(6, 1), least=2)
        assert [slot.pod_uid for slot in found.slots] == ["m0", "m1", "m2", "m3"]

    def test_fewer_than_the_least_get_nothing(self):
        world = PlannedWorld()
        world.add("n1", 1)
        assert plan(world, gang(6, 1), least=2).rooms == (ZoneRoom("", 1),)

    def test_the_master_starts_with_the_workers_that_fit_beside_it(self):
        world = PlannedWorld()
        world.add("n1", 8, 8)
        found = plan(world, [pod("master", 5), *gang(4, 3)], least=2)
        assert [slot.pod_uid for slot in found.slots] == ["master", "m0", "m1", "m2"]

    def test_the_zone_is_that_where_most_members_fit(self):
        world = PlannedWorld()
        world.add("a1", 3, zone="a")
        world.add("b1", 5, zone="b")
        found = plan(world, gang(6, 1), least=2, zone_key=ZONE)
        assert (found.zone, len(found.slots)) == ("b", 5)

    def test_a_member_that_nobody_can_serve_is_left_out_if_the_others_are_enough(self):
        world = PlannedWorld()
        world.add("n1", 8)
        members = [
            *gang(2, 1),
            pod("broken", 1, annotations={"gpushare.aliyun.com/node-policy": "x"}),
        ]
        assert [slot.pod_uid for slot in plan(world, members, least=2).slots] == ["m0", "m1"]
        assert plan(world, members) == NoPlan(UNREADABLE_MEMBER)

    def test_no_member_has_to_be_planned(self):
        world = PlannedWorld()
        assert plan(world, gang(2, 1), least=0) == Plan(())
        assert plan(world, ()) == Plan(())

    def test_more_slots_than_members_are_a_mistake(self):
        with pytest.raises(ValueError, match="3 slots for 2 members"):
            plan(PlannedWorld(), gang(2, 1), least=3)
