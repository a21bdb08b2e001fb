"""Gangs on a real kube-scheduler: all members or none, with nothing kept for those that wait."""

import json
import time
from collections.abc import Iterator

import pytest

from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.expect import sums_are_right, wait_bound, wait_event
from tests.cluster.gangs import (
    UNITS,
    ZONE,
    bound,
    containers_have_what_was_decided,
    gang_on_kubelets,
    gpu_nodes,
    member,
    members_bound,
    names,
    on_stage,
    wait_members,
    wait_one_whole,
)
from tests.cluster.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.every_version]

ZONES = {"gang-1": "a", "gang-2": "a", "gang-3": "b"}  # with two GPUs each


@pytest.fixture
def pods(gpushare: Gpushare) -> Iterator[Workloads]:
    with gpu_nodes(gpushare, ZONES):
        yield Workloads(gpushare.cluster)


def test_of_two_gangs_created_in_turns_one_is_whole_and_the_other_keeps_nothing(pods: Workloads):
    for number in range(4):
        for gang in ("x", "y"):
            pods.create(member(gang, number, 4, 12))

    whole, other = wait_one_whole(pods, ("x", "y"), 4)
    # These would find no empty GPU if anything were kept for the other gang.
    pods.create(*(on_stage(name, UNITS) for name in ("single-0", "single-1")))
    wait_bound(pods, "single-0", "single-1")
    wait_event(pods, f"{other}-0", "No room for 4 x 12 MiB together")
    pods.delete(*names(whole, 4))
    wait_bound(pods, *names(other, 4))


def test_a_gang_waits_for_its_members_and_says_for_how_many(pods: Workloads):
    pods.create(*(member("few", number, 3, 4) for number in range(2)))
    wait_event(pods, "few-0", "Waiting for 1 of 3 members")
    assert bound(pods) == {}
    pods.create(member("few", 2, 3, 4))
    wait_members(pods, few=3)


def test_members_that_fit_by_sums_and_not_by_gpus_are_not_placed(pods: Workloads):
    pods.create(*(on_stage(f"filler-{number}", 10) for number in range(6)))
    wait_bound(pods, *names("filler", 6))
    pods.create(*(member("sums", number, 3, 8) for number in range(3)))
    pods.create(*(member("fits", number, 3, 6) for number in range(3)))
    wait_members(pods, filler=6, fits=3)


def test_a_gang_that_does_not_fit_blocks_nobody_and_is_nominated_nowhere(
    pods: Workloads, gpushare: Gpushare, history: History
):
    pods.create(*(on_stage(f"low-{number}", UNITS) for number in range(4)))
    wait_bound(pods, *names("low", 4))
    important = {"priorityClassName": "system-cluster-critical"}
    pods.create(*(member("large", number, 7, UNITS, **important) for number in range(7)))
    pods.create(*(member("small", number, 2, UNITS) for number in range(2)))
    wait_members(pods, low=4, small=2)
    for name in names("large", 7):
        assert not any(
            change.pod["status"].get("nominatedNodeName") for change in history.of(name)
        ), name


def test_all_members_are_in_one_zone(pods: Workloads):
    pods.create(*(member("zoned", n, 4, 12, in_one_zone=True) for n in range(4)))
    wait_members(pods, zoned=4)
    assert {ZONES[node] for node in bound(pods).values()} == {"a"}


def test_a_gang_that_no_zone_has_room_for_waits_although_all_zones_together_have(pods: Workloads):
    pods.create(*(member("wide", n, 6, UNITS, in_one_zone=True) for n in range(6)))
    wait_event(pods, "wide-0", "zone a has room for 4")
    assert bound(pods) == {}


def test_members_beyond_the_minimum_follow_when_there_is_room(pods: Workloads, gpushare: Gpushare):
    def try_again() -> None:
        # Older versions try a rejected pod again only when it changes, or in five minutes.
        if not gpushare.cluster.version.retries_rejected_pods:
            note = f"n={time.monotonic()}"
            gpushare.cluster.kubectl("annotate", "--overwrite", "pods", "--all", note)

    pods.create(*(on_stage(f"filler-{number}", UNITS) for number in range(2)))
    wait_bound(pods, *names("filler", 2))
    pods.create(*(member("elastic", number, 2, UNITS) for number in range(6)))

    def few() -> str | None:
        found = members_bound(pods)["elastic"]
        return None if found >= 2 else str(found)

    wait_until("the minimum to be bound", few, seconds=40)
    try_again()
    wait_members(pods, filler=2, elastic=4)
    pods.delete(*names("filler", 2))
    try_again()
    wait_members(pods, elastic=6)


def test_hosts_that_members_may_not_share_are_not_filled_in_part(pods: Workloads):
    ports = [{"containerPort": 80, "hostPort": 8080}]

    def with_port(number: int, minimum: int) -> dict[str, object]:
        made = member("ports", number, minimum, 2)
        made["spec"]["containers"][0]["ports"] = ports
        return made

    pods.create(*(with_port(number, 4) for number in range(4)))
    wait_event(pods, "ports-0", "")
    pods.create(*(member("free", number, 2, 2) for number in range(2)))
    wait_members(pods, free=2)
    pods.delete(*names("ports", 4))
    pods.create(*(with_port(number, 3) for number in range(3)))
    wait_members(pods, free=2, ports=3)
    assert len({node for name, node in bound(pods).items() if name.startswith("ports")}) == 3


@pytest.fixture
def volume(gpushare: Gpushare) -> Iterator[str]:
    """Make a volume that only zone b reaches, and return the name of its claim."""
    size, name = {"storage": "1Mi"}, "only-in-b"
    in_b = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    made = [
        {
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": claim
            | {
                "capacity": size,
                "hostPath": {"path": "/tmp"},  # no kubelet mounts it
                "nodeAffinity": {"required": {"nodeSelectorTerms": in_b}},
            },
        },
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": claim | {"resources": {"requests": size}, "volumeName": name},
        },
    ]
    items = [{"apiVersion": "v1", **each} for each in made]
    described = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    gpushare.cluster.kubectl("apply", "-f", "-", stdin=described)
    yield name
    gpushare.cluster.kubectl("delete", "--wait=false", "-f", "-", stdin=described)


def test_a_gang_goes_where_the_volume_of_a_member_is_or_nowhere(pods: Workloads, volume: str):
    mounted = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]}

    def gang(name: str, count: int) -> list[dict[str, object]]:
        first = member(name, 0, count, UNITS, in_one_zone=True, **mounted)
        others = (member(name, n, count, UNITS, in_one_zone=True) for n in range(1, count))
        return [first, *others]

    pods.create(*gang("large", 3))  # fits in zone a only
    wait_event(pods, "large-0", "")
    pods.create(*gang("small", 2))
    wait_members(pods, seconds=90, small=2)
    assert set(bound(pods).values()) == {"gang-3"}


@pytest.mark.usefixtures("gates")
def test_a_node_that_is_cordoned_is_no_room_for_a_gang(pods: Workloads, gpushare: Gpushare):
    gpushare.cluster.kubectl("cordon", "gang-3")
    pods.create(*(member("all", number, 6, UNITS) for number in range(6)))
    wait_event(pods, "all-0", "No room for 6 x 16 MiB together: 4 fit now")
    assert bound(pods) == {}
    gpushare.cluster.kubectl("uncordon", "gang-3")
    wait_members(pods, all=6)


@pytest.mark.usefixtures("gates")
def test_a_gated_gang_is_released_into_one_zone_once_it_has_room(pods: Workloads):
    pods.create(*(on_stage(f"filler-{number}", 10) for number in range(2)))
    wait_bound(pods, *names("filler", 2))
    for number, units in enumerate((12, 12, 12, 12, None)):  # the last one only has CPU
        pods.create(member("gated", number, 5, units, in_one_zone=True, is_gated=True))
    wait_event(pods, "gated-0", "zone a has room for")
    assert {name.partition("-")[0] for name in bound(pods)} == {"filler"}
    pods.delete(*names("filler", 2))
    wait_members(pods, gated=5)
    assert {ZONES[node] for node in bound(pods).values()} == {"a"}
    for name in names("gated", 5):
        spec = pods.get(name)["spec"]
        assert spec["nodeSelector"][ZONE] == "a"
        assert not spec.get("schedulingGates")


@pytest.mark.usefixtures("gates")
def test_containers_of_a_gang_get_the_gpus_that_were_decided_for_each_member(gpushare: Gpushare):
    """The short form of `python -m tests.trials.gang_containers`."""
    # A kubelet that does not report its pods admits only different ones at the same time.
    step = 0 if gpushare.cluster.version.reports_pods else 1
    free = [5000 + step * number for number in range(4)]
    gated = [7000 + step * number for number in range(4)]
    gangs = [
        *gang_on_kubelets("free", free, cards=2, is_gated=False),
        *gang_on_kubelets("gated", gated, cards=2, is_gated=True),
    ]
    pods = Workloads(gpushare.cluster)
    pods.create(*gangs)
    pods.wait_running(*names("free", 4), *names("gated", 4))
    containers_have_what_was_decided(pods, gangs)
    sums_are_right(gpushare, pods)
