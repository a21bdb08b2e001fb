"""The rooms of all nodes are those of now, and no more of them are kept than allowed."""

import pytest

from gpushare.objects.model import Container, Resources
from gpushare.placement import rooms
from gpushare.placement.rooms import MOST_KINDS, UNUSED_RENEWALS, KeptRooms, rooms_of
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench, bound, changed


@pytest.fixture
def measured():
    """The rooms of 10 nodes."""
    cluster, asks = ListedCluster([node(f"n{number}", 16) for number in range(10)], []), pod("asks")
    return run_all(rooms_of(cluster, asks, cluster.request_of(asks)))


def test_the_kinds_used_least_recently_are_dropped(measured):
    kept = KeptRooms()
    for kind in range(MOST_KINDS):
        kept.put(kind, measured)
    assert kept.get(0)
    kept.put("new", measured)
    assert (kept.get(0), kept.get(1)) == (measured, None)


def test_no_more_rooms_are_kept_than_allowed_except_those_of_one_kind(measured, monkeypatch):
    monkeypatch.setattr(rooms, "MOST_ROOMS", 25)
    kept = KeptRooms()
    for kind in range(4):
        kept.put(kind, measured)
        assert len(kept) <= 25
    monkeypatch.setattr(rooms, "MOST_ROOMS", 5)
    kept.put(4, measured)
    assert (len(kept), kept.get(4)) == (10, measured)


def test_rooms_that_nobody_uses_are_dropped(measured):
    kept = KeptRooms()
    kept.put("used", measured)
    kept.put("unused", measured)
    for _ in range(UNUSED_RENEWALS + 1):
        kept.renew()
        assert kept.get("used")
    assert len(kept) == len(measured)


def test_cpu_that_is_resized_in_place_is_free_at_once():
    bench = Bench(16)
    world, asks = bench.cluster.state, pod("asks", 4)
    bench.cluster.node_changed(changed(node("n", 16), status={"allocatable": {"cpu": "8"}}))

    def uses(cpu):
        amounts = {"aliyun.com/gpu-mem": "4", "cpu": cpu}
        containers = (Container("main", Resources(amounts, amounts)),)
        bench.add(changed(bound("held", 4, "GPU-0"), spec={"containers": containers}))

    uses("6")
    before = run_all(rooms_of(world, asks, world.request_of(asks)))
    assert before["n"].left(world, asks)["cpu"] == 2000
    uses("1")
    now = run_all(rooms_of(world, asks, world.request_of(asks), before))
    assert now["n"].left(world, asks)["cpu"] == 7000
