"""What stands in the way of coming over from the older plugin, and what does not."""

import msgspec
import pytest

from gpushare.objects.model import Node, Pod
from gpusharectl.migrate.command import lines
from gpusharectl.migrate.rules import Obstacle, migration
from tests.builders import annotated, container, legacy_node, node, pod

GIB_NODE = legacy_node("old", 30, 2)


def older(name: str = "p", units: int = 4, index: str = "0", **more) -> Pod:
    """A pod that the older extender has bound, and that the older plugin has started."""
    written = {
        "ALIYUN_COM_GPU_MEM_IDX": index,
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        **more.pop("annotations", {}),
    }
    return pod(name, units, node="old", phase="Running", annotations=written, **more)


def one(*pods: Pod, on: Node = GIB_NODE) -> Obstacle:
    """The one thing that stands in the way; it is shown, and whatever is shown says what to do."""
    found = migration([on], pods)
    [obstacle] = [*found.obstacles, *found.nodes[0].obstacles]
    assert not found.is_free
    shown = "\n".join(map(str, lines(found)))
    assert obstacle.why in shown
    assert obstacle.cure in shown
    return obstacle


@pytest.mark.parametrize(("total", "unit"), [(30, "GiB"), ("32552", "MiB"), ("32k", "MiB")])
def test_the_unit_and_the_totals_of_the_older_plugin_are_told_from_what_it_offers(total, unit):
    found = migration([legacy_node("old", total, 2)], [])
    assert found.is_free
    assert (found.memory_unit, found.reserved) == (unit, "none")
    shown = "\n".join(map(str, lines(found)))
    assert f"--memory-unit={unit} --reserved=none" in shown
    assert f"memoryUnit: {unit}" in shown


def test_pods_as_the_older_plugin_starts_them_stand_in_nobodys_way():
    found = migration([GIB_NODE], [older("a", 8), older("b", 7), older("c", 15, "1")])
    assert found.is_free
    [standing] = found.nodes
    assert (standing.cards, standing.units_per_card, standing.pods) == (2, 15, 3)


def test_a_migrated_node_is_named_so():
    found = migration([GIB_NODE, node("new", 15, 15, unit_mib=1024)], [older()])
    assert [(each.node, each.plugin) for each in found.nodes] == [
        ("new", "gpushare"),
        ("old", "older"),
    ]
    assert "left: old" in found.steps[2]
    assert found.is_free


def test_nodes_of_two_units_are_in_the_way():
    found = migration([GIB_NODE, node("new", 16276)], [])
    assert not found.is_free
    assert "new counts in MiB, old counts in GiB" in found.obstacles[0].why
    assert not found.memory_unit


def test_a_pod_whose_card_cannot_be_told_is_in_the_way():
    assert "card seven" in one(older(index="card seven")).why
    assert "'2', which is no card here" in one(older(index="2")).why
    assert "no decision on the pod" in one(pod("p", 4, node="old", phase="Running")).why


def test_a_pod_that_runs_without_a_word_of_the_older_plugin_may_be_on_another_card():
    text = one(older(annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"})).why
    assert "recorded GPU may be wrong" in text


def test_a_pod_that_is_just_being_started_is_waited_for():
    starting = msgspec.structs.replace(
        older(annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}),
        status=pod("p", phase="Pending").status,
    )
    assert "wait until it runs" in one(starting).cure


def test_an_amount_in_another_unit_is_in_the_way():
    text = one(older(annotations={"ALIYUN_COM_GPU_MEM_DEV": "16276"})).why
    assert "in another unit" in text


def test_a_pod_of_several_containers_never_got_a_card():
    apps = [container("a", 1), container("b", 2)]
    assert "several of its containers" in one(older(containers=apps)).why


def test_a_card_that_holds_more_than_it_has_is_in_the_way():
    assert "16 units of GPU 1, which has 15" in one(older("a", 9, "1"), older("b", 7, "1")).why
    held = pod("a", 15, node="new", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    assert "--reserved=none" in one(held, on=node("new", 14, unit_mib=1024)).cure


def test_totals_that_cannot_be_the_older_plugins_are_in_the_way():
    assert "not 2 equal GPUs" in one(on=legacy_node("old", 31, 2)).why
    assert "aliyun.com/gpu-count" in one(on=legacy_node("old", 30, 0)).why
    assert "unusable total" in one(on=legacy_node("old", "many", 2)).why


def test_cards_of_other_sizes_than_the_older_plugin_says_are_in_the_way():
    label = {"nvidia.com/gpu.memory": "11264"}
    assert "a GPU has 11" in one(on=annotated(GIB_NODE, {}, labels=label)).why
    label = {"nvidia.com/gpu.memory": "15360"}
    assert migration([annotated(GIB_NODE, {}, labels=label)], []).is_free


def test_what_has_ended_and_what_asks_for_nothing_stands_in_nobodys_way():
    ended = msgspec.structs.replace(older(index="x"), status=pod("p", phase="Failed").status)
    found = migration([GIB_NODE], [ended, pod("other", None, node="old")])
    assert found.is_free
    assert found.nodes[0].pods == 0


def test_a_cluster_without_shares_has_nothing_to_migrate():
    assert "nothing to migrate" in next(iter(map(str, lines(migration([], [])))))
