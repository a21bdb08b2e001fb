"""Which pods may move."""

import pytest
from msgspec.structs import replace

from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM, LABEL_MOVABLE
from gpushare.defragment import movable
from gpushare.defragment.movable import Rules, movables_of
from gpushare.objects.model import OwnerReference, Pod, Resources
from gpushare.objects.scheduling import Present, Volume
from gpushare.preemption.model import Budgets
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.preemption.worlds import RunningWorld


def running(kind: str = "ReplicaSet", label: str = "true", **labels: str) -> RunningWorld:
    """Return a cluster in which one pod of such a controller runs."""
    world = RunningWorld()
    world.add("n1", 8)
    change(world, world.run("p", "n1", 3), kind, {LABEL_MOVABLE: label, **labels})
    return world


def change(world: RunningWorld, pod: Pod, kind: str, labels: dict[str, str]) -> None:
    owners = (OwnerReference(controller=True, kind=kind, name="owner", uid="owner"),)
    meta = replace(pod.metadata, labels=labels, owner_references=owners if kind else None)
    world.running[pod.uid] = replace(pod, metadata=meta)
    world.groups.update(world.running[pod.uid])


def why_not(world: RunningWorld, rules: Rules | None = None) -> str:
    """Return why the pod may not move; empty if it may."""
    found = run_all(movables_of(world, rules or Rules()))
    assert len(found.pods) + found.others.total() == 1
    return next(iter(found.others), "")


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "Job", "LeaderWorkerSet"])
def test_a_pod_of_a_controller_may_move_if_its_label_says_so(kind: str):
    assert why_not(running(kind)) == ""
    assert why_not(running(kind, label="")) == movable.NOT_ASKED


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("", movable.NO_CONTROLLER), ("DaemonSet", movable.OF_NODE), ("Node", movable.OF_NODE)],
)
def test_a_pod_that_nothing_replaces_elsewhere_may_not_move(kind: str, reason: str):
    assert why_not(running(kind)) == reason


def test_pods_of_a_lower_priority_may_move_unless_their_label_forbids_it():
    rules = Rules(below_priority=11)
    assert why_not(running(label=""), rules) == ""
    assert why_not(running(label="false"), rules) == movable.LABELED_NOT
    assert why_not(running(label=""), Rules(below_priority=10)) == movable.NOT_ASKED
    assert why_not(running("Job", label=""), rules) == movable.NOT_ASKED


def test_a_member_of_a_gang_may_not_move():
    assert why_not(running(**{LABEL_GANG: "g", LABEL_GANG_MINIMUM: "1"})) == movable.OF_GANG


def test_a_pod_that_is_being_deleted_may_not_move():
    world = running()
    world.delete("p")
    assert why_not(world) == movable.ENDING


def test_a_pod_with_a_volume_that_only_some_nodes_mount_may_not_move():
    world = running()
    found = world.running["p"]
    spec = replace(found.spec, volumes=(Volume(persistent_volume_claim=Present()),))
    world.running["p"] = replace(found, spec=spec)
    assert why_not(world) == movable.NOT_PLAIN


def test_a_pod_with_a_resource_that_no_node_offers_may_not_move():
    world = running()
    found = world.running["p"]
    amounts = {**found.containers[0].limits, "example.com/license": "1"}
    containers = (replace(found.containers[0], resources=Resources(amounts, amounts)),)
    world.running["p"] = replace(found, spec=replace(found.spec, containers=containers))
    assert why_not(world) == movable.NOT_PLAIN


def test_a_pod_may_move_only_if_its_one_budget_allows_an_eviction():
    world = running()
    one, two = {"p": ("a",)}, {"p": ("a", "b")}
    assert why_not(world, Rules(Budgets(one, {"a": 1}))) == ""
    assert why_not(world, Rules(Budgets(one, {"a": 0}))) == movable.NO_BUDGET
    assert why_not(world, Rules(Budgets(two, {"a": 1, "b": 1}))) == movable.TWO_BUDGETS


def test_a_pod_on_an_unknown_gpu_may_not_move():
    world = RunningWorld()
    world.add("n1", 8)
    change(world, world.run("p", "n1", 3, is_unplaced=True), "ReplicaSet", {LABEL_MOVABLE: "true"})
    assert why_not(world) == movable.NO_CARDS
