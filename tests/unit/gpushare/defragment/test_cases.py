"""Plans of moves in clusters that were made for them."""

from gpushare.defragment import check, planner
from gpushare.defragment.model import MovePlan
from gpushare.defragment.movable import all_movable
from gpushare.objects.scheduling import Taint
from gpushare.placement.reasons import LEAVING
from gpushare.planning.ask import Ask
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.planning.worlds import gang, pod
from tests.unit.gpushare.preemption.worlds import RunningWorld


def free_cards(world: RunningWorld, number: int = 1) -> MovePlan:
    found = run_all(planner.free_cards(world, number, run_all(all_movable(world))))
    assert run_all(check.why_not(world, found, 0)) == ""
    return found


def make_room(world: RunningWorld, *members: object, **more: object) -> MovePlan:
    ask = Ask("wanted", members, len(members), **more)  # type: ignore[arg-type]
    found = run_all(planner.make_room(world, ask, run_all(all_movable(world))))
    assert run_all(check.why_not(world, found, 0)) == ""
    return found


def moves(found: MovePlan) -> list[tuple[str, str]]:
    """Return each moved pod with its new GPU, in order."""
    return [(each.movable.uid, ",".join(each.to.cards)) for each in found.moves]


def test_one_pod_moves_to_the_fullest_card_so_that_another_card_is_free():
    world = RunningWorld()
    world.add("n1", 8, 8)
    world.add("n2", 8)
    world.run("small", "n1", 3, 0)
    world.run("fuller", "n1", 5, 1)
    world.run("emptier", "n2", 4, 0)
    found = free_cards(world)
    assert moves(found) == [("small", "n1-1")]
    assert [key.uuid for key in found.freed] == ["n1-0"]


def test_a_pod_takes_the_place_of_another_one_that_moves_first():
    world = RunningWorld()
    world.add("n1", 8)
    world.add("n2", 8)
    world.add("n3", 8)
    world.run("large", "n1", 5, 0)
    world.run("small", "n2", 3, 0)
    world.run("stays", "n2", 3, 0)
    world.run("rest", "n3", 5, 0)
    world.run("more", "n3", 0, cpu=1)
    movables = [each for each in run_all(all_movable(world)) if each.uid not in {"stays", "rest"}]
    found = run_all(planner.free_cards(world, 1, movables))
    assert moves(found) == [("small", "n3-0"), ("large", "n2-0")]


def test_a_pod_does_not_move_where_cores_are_missing():
    world = RunningWorld()
    world.add("n1", 8, cpu=4)
    world.add("n2", 8, cpu=4)
    world.run("one", "n1", 3, cpu=3)
    world.run("two", "n2", 3, cpu=2)
    assert not free_cards(world).is_enough


def test_several_cards_are_freed_and_if_not_all_can_be_then_those_that_can():
    world = RunningWorld()
    for number in range(6):
        world.add(f"n{number}", 8)
        world.run(f"p{number}", f"n{number}", 3)
    enough, too_many = free_cards(world, 3), free_cards(world, 5)
    assert enough.is_enough
    assert len(enough.moves) == len(enough.freed) == 3
    assert not too_many.is_enough
    assert len(too_many.moves) == len(too_many.freed) == 3


def test_a_card_that_takes_no_pods_is_not_worth_freeing():
    world = RunningWorld()
    world.add("cordoned", 8, cordoned=[0])
    world.add("unschedulable", 8, unschedulable=True)
    world.add("gone", 8, taints=[Taint("node.kubernetes.io/unreachable", "NoExecute")])
    world.add("closed", 8)
    world.closed["closed"] = LEAVING
    world.add("full", 8)
    for name in ("cordoned", "unschedulable", "gone", "closed"):
        world.run(name, name, 3)
    world.run("there", "full", 8)
    assert not free_cards(world).moves


def test_a_pod_of_several_cards_frees_them_together():
    world = RunningWorld()
    world.add("n1", 8, 8)
    world.add("n2", 8, 8)
    world.run("both", "n1", 3, 0, 1)
    world.run("one", "n2", 5, 0)
    world.run("two", "n2", 5, 1)
    found = make_room(world, pod("wanted", 8, cards=2))
    assert moves(found) == [("both", "n2-0,n2-1")]
    assert found.wanted[0].place == ("n1", ("n1-0", "n1-1"))


def test_a_pod_of_several_cards_may_look_for_its_place_first():
    world = RunningWorld()
    world.add("n1", 8, 8)
    world.add("n2", 8, 8)
    world.run("both", "n1", 1, 0, 1)
    world.run("full", "n1", 6, 0)
    world.run("small", "n1", 3, 1)
    world.run("one", "n2", 3, 0)
    world.run("two", "n2", 2, 0, 1)
    found = free_cards(world)
    assert moves(found) == [("both", "n2-0,n2-1"), ("small", "n2-1")]


def test_a_pod_that_fits_needs_no_moves():
    world = RunningWorld()
    world.add("n1", 8)
    found = make_room(world, pod("wanted", 8))
    assert found.is_enough
    assert not found.moves


def test_room_is_made_for_all_members_of_a_gang():
    world = RunningWorld()
    world.add("n1", 8, 8)
    world.add("n2", 8, 8)
    for node, units in (("n1", 4), ("n2", 3)):
        for index in (0, 1):
            world.run(f"{node}-{index}", node, units, index)
    found = make_room(world, *gang(2, 8))
    assert found.is_enough
    assert len(found.moves) == 2
    assert len({card for each in found.wanted for card in each.place.cards}) == 2


def test_members_of_a_gang_get_room_in_one_zone():
    world = RunningWorld()
    for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "b"), ("n4", "b")):
        world.add(name, 8, zone=zone)
    world.run("small", "n2", 1)
    world.run("middle", "n3", 2)
    world.run("filler", "n4", 5)
    found = make_room(world, *gang(2, 7), zone_key="zone")
    assert {each.place.node for each in found.wanted} < {"n2", "n3", "n4"}
    assert moves(found) == [("middle", "n4-0")]


def test_a_pod_that_left_because_of_its_cores_does_not_return_to_the_node():
    world = RunningWorld()
    world.add("n1", 8, 8, cpu=4)
    world.add("n2", 8, cpu=4)
    world.run("cores", "n1", 2, 0, cpu=3)
    found = make_room(world, pod("wanted", 8, cpu=3, names=["n1"]))
    assert moves(found) == [("cores", "n2-0")]
    assert {key.uuid for key in found.moves[0].closed} == {"n1-0", "n1-1"}


def test_pods_move_within_partitions_of_a_large_cluster():
    world = RunningWorld()
    for number in range(planner.MOST_NODES + 2):
        world.add(f"n{number:03}", 8)
        world.run(f"p{number}", f"n{number:03}", 5 if number % 3 else 3)
    found = free_cards(world, 20)
    assert found.is_enough
    assert len(found.moves) == 20


def test_the_rest_of_a_plan_fails_once_its_room_is_used():
    world = RunningWorld()
    world.add("n1", 8)
    world.add("n2", 8)
    world.run("one", "n1", 3)
    world.run("two", "n2", 3)
    found = free_cards(world)
    world.run("other", found.moves[0].to.node, 4)
    why = run_all(check.why_not(world, found, 0))
    assert "no GPU has room for another pod like default/one" in why


def test_the_result_of_a_plan_fails_if_a_pod_returns_to_a_card_that_was_freed():
    world = RunningWorld()
    world.add("n1", 8)
    world.add("n2", 8)
    world.run("one", "n1", 3)
    world.run("two", "n2", 3)
    found = free_cards(world)
    assert "is not free" in run_all(check.why_not(world, found, 1))
