"""What stands in the way of coming over from the older plugin, and what does not."""

from dataclasses import replace

import msgspec
import pytest

from gpushare.annotations import inventory
from gpushare.objects.model import Node, Pod
from gpusharectl.migrate.command import lines
from gpusharectl.migrate.rules import Obstacle, migration
from tests.builders import annotated, container, legacy_node, node, pod, stock

GIB_NODE = legacy_node("old", 30, 2)
UNASSIGNED = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
CONTAINERS = [container("a", 1), container("b", 2)]


def of_size(mib: str) -> Node:
    """A node whose GPUs have so many MiB by its label."""
    return annotated(GIB_NODE, {}, labels={"nvidia.com/gpu.memory": mib})


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


@pytest.mark.parametrize("is_migrated", [False, True])
@pytest.mark.parametrize("runtime", [None, "nvidia"])
def test_pods_without_a_runtime_class_keep_getting_gpus(runtime, is_migrated):
    held = older()
    held = msgspec.structs.replace(
        held, spec=msgspec.structs.replace(held.spec, runtime_class_name=runtime)
    )
    known = replace(stock(15, 15, unit_mib=1024), runtime_classes=frozenset({runtime or ""}))
    migrated = annotated(
        node("old", 15, 15, unit_mib=1024),
        {"gpushare.aliyun.com/inventory": inventory.encode(known)},
    )
    found = migration([migrated if is_migrated else GIB_NODE], [held])
    shown = "\n".join(map(str, lines(found)))
    assert ("component  default-runtime" in shown) == found.is_default_runtime == (not runtime)


def test_a_migrated_node_is_named_so():
    found = migration([GIB_NODE, node("new", 15, 15, unit_mib=1024)], [older()])
    assert {each.node: each.plugin for each in found.nodes} == {"new": "gpushare", "old": "older"}
    assert "left: old" in found.steps[2]
    assert found.is_free


def test_nodes_of_two_units_are_in_the_way():
    found = migration([GIB_NODE, node("new", 16276)], [])
    assert not found.is_free
    assert "new counts in MiB, old counts in GiB" in found.obstacles[0].why
    assert not found.memory_unit


def test_a_pod_that_is_just_being_started_is_waited_for():
    pending = pod("p", phase="Pending").status
    starting = msgspec.structs.replace(older(annotations=UNASSIGNED), status=pending)
    assert "wait until it runs" in one(starting).cure


@pytest.mark.parametrize(
    ("pods", "on", "why"),
    [
        # A pod whose GPU is unknown, or may be another one.
        ([older(index="card seven")], GIB_NODE, "card seven"),
        ([older(index="2")], GIB_NODE, "'2', which is no GPU here"),
        ([pod("p", 4, node="old", phase="Running")], GIB_NODE, "no decision on the pod"),
        ([older(annotations=UNASSIGNED)], GIB_NODE, "recorded GPU may be wrong"),
        ([older(containers=CONTAINERS)], GIB_NODE, "several of its containers"),
        (
            [older(containers=CONTAINERS, annotations=UNASSIGNED)],
            GIB_NODE,
            "several of its containers",
        ),
        # Amounts that cannot be.
        ([older(annotations={"ALIYUN_COM_GPU_MEM_DEV": "16276"})], GIB_NODE, "in another unit"),
        ([older("a", 9, "1"), older("b", 7, "1")], GIB_NODE, "16 units of GPU 1, which has 15"),
        ([], legacy_node("old", 31, 2), "not 2 equal GPUs"),
        ([], legacy_node("old", 30, 0), "aliyun.com/gpu-count"),
        ([], legacy_node("old", "many", 2), "unusable total"),
        ([], of_size("11264"), "a GPU has 11"),
    ],
)
def test_what_blocks_a_migration_is_named(pods, on, why):
    assert why in one(*pods, on=on).why


def test_a_migrated_gpu_with_too_many_units_needs_no_reserve():
    held = pod("a", 15, node="new", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    assert "--reserved=none" in one(held, on=node("new", 14, unit_mib=1024)).cure


def test_a_label_that_agrees_with_the_totals_blocks_nothing():
    assert migration([of_size("15360")], []).is_free


def test_what_has_ended_and_what_asks_for_nothing_stands_in_nobodys_way():
    ended = msgspec.structs.replace(older(index="x"), status=pod("p", phase="Failed").status)
    found = migration([GIB_NODE], [ended, pod("other", None, node="old")])
    assert found.is_free
    assert found.nodes[0].pods == 0


def test_a_cluster_without_shares_has_nothing_to_migrate():
    shown = str(next(lines(migration([], []))))
    assert "nothing to migrate" in shown
    assert "From HAMi, time-slicing or MPS: https://" in shown
