"""What people see of the queue: places, reasons, and the quotas of namespaces."""

import pytest

from extender.settings.configuration import QueueSettings
from gpushare.process.time_slices import run_all
from tests.builders import node
from tests.unit.extender.queue.scene import KUEUE, Scene


def quotas(made: Scene, namespace: str = ""):
    return run_all(made.state.queue.quotas(namespace)).quotas


def full(settings: QueueSettings | None = None) -> Scene:
    made = Scene({"n": (100,)}, settings)
    made.namespace("a", "40")
    made.namespace("b", "40")
    made.running("r", 100, "c")
    return made


async def test_with_fair_places_alternate_as_the_namespaces_would_use_more():
    made = full()
    for number in range(3):
        made.pod(f"a{number}", 8, "a", age=100 - number)
    for number in range(2):
        made.pod(f"b{number}", 12, "b", age=50 - number)
    await made.round()
    assert made.order() == ["a0", "b0", "a1", "b1", "a2"]
    assert [each.place for each in made.listed().entries] == [1, 2, 3, 4, 5]


async def test_with_fifo_the_oldest_has_the_first_place():
    made = full(QueueSettings(order="fifo"))
    for name, namespace, age in (("a0", "a", 90), ("b0", "b", 95), ("a1", "a", 99)):
        made.pod(name, 8, namespace, age=age)
    await made.round()
    assert made.order() == ["a1", "b0", "a0"]


async def test_the_more_important_pod_has_the_first_place():
    made = full()
    made.pod("old", 8, "a", age=99)
    made.pod("urgent", 8, "a", priority=7)
    await made.round()
    assert made.order() == ["urgent", "old"]


async def test_places_of_a_namespace_are_those_of_the_whole_queue_and_name_no_pods_of_others():
    made = full()
    made.pod("a0", 8, "a", age=99)
    made.pod("b0", 8, "b")
    await made.round()
    found = made.listed("b")
    assert [(each.name, each.place) for each in found.entries] == [("b0", 2)]
    assert found.length == 2
    assert found.entries[0].waits_for.endswith("when a pod in another namespace ends.")
    assert "c/r" in made.listed().entries[0].waits_for


async def test_gangs_and_pods_are_in_one_list_and_those_without_a_place_come_last():
    made = full()
    made.gang("train", 4, 2, 2, namespace="a", age=99)
    made.gang("short", 4, 1, 2, namespace="a")
    made.pod("p", 4, "b")
    made.pod("theirs", 4, "b", gates=("gpushare.aliyun.com/admission", KUEUE))
    await made.round()
    shown = [(e.name, e.kind, e.pods, e.units, e.place, e.reason) for e in made.listed().entries]
    assert shown == [
        ("train", "Gang", 2, 8, 1, "NoRoom"),
        ("p", "Pod", 1, 4, 2, "NoRoom"),
        ("short", "Gang", 1, 4, 0, "WaitingForMembers"),
        ("theirs", "Pod", 1, 4, 0, "OtherGate"),
    ]


async def test_what_has_room_and_has_not_started_is_listed_without_a_place():
    made = Scene({"n": (100,)})
    made.namespace("a")
    made.pod("p", 8, "a")
    made.gang("g", 4, 2, 2, namespace="a")
    await made.round()
    found = made.listed()
    assert [(each.name, each.reason) for each in found.entries] == [
        ("g", "Starting"),
        ("p", "Starting"),
    ]
    assert found.length == 0


async def test_what_is_not_listed_is_counted():
    made = full()
    for number in range(5):
        made.pod(f"a{number}", 8, "a")
    made.pod("theirs", 4, "a", gates=("gpushare.aliyun.com/admission", KUEUE))
    await made.round()
    found = made.listed(most=2)
    assert (len(found.entries), found.length, found.left_out) == (2, 5, 4)


async def test_the_members_of_a_gang_share_a_place():
    made = full()
    made.gang("g", 4, 2, 2, namespace="a", age=99)
    made.pod("p", 8, "b")
    await made.round()
    assert run_all(made.state.queue.places()) == [["a-g-0", "a-g-1"], ["uid-p"]]


async def test_a_replica_that_does_not_decide_knows_no_places():
    made = full()
    made.pod("p", 8, "a")
    assert made.explained("p").queue is None
    await made.round()
    assert made.explained("p").queue.place == 1
    made.cluster.gangs.forget_plans()
    assert made.explained("p").queue is None


async def test_quotas_show_what_is_used_and_what_waits():
    made = full()
    made.namespace("models", "T4=3,A100=5")
    made.namespace("wrong", "x")
    made.running("s", 6, "a")
    made.pod("p", 8, "a")
    made.gang("g", 4, 2, 2, namespace="b")
    await made.round()
    shown = {
        each.namespace: (each.queued, each.used, each.limit, each.waiting_pods, each.waiting_units)
        for each in quotas(made)
    }
    assert shown == {
        "a": (True, 6, 40, 1, 8),
        "b": (True, 0, 40, 2, 8),
        "c": (False, 100, None, 0, 0),
        "models": (True, 0, None, 0, 0),
        "wrong": (True, 0, None, 0, 0),
    }
    (models,) = quotas(made, "models")
    assert {name: (each.used, each.limit) for name, each in models.models.items()} == {
        "T4": (0, 3),
        "A100": (0, 5),
    }
    (wrong,) = quotas(made, "wrong")
    assert "is not a whole number" in wrong.problem
    assert [each.namespace for each in quotas(made, "nowhere")] == ["nowhere"]


async def test_numbers_for_metrics_are_by_namespace():
    made = full()
    made.namespace("wrong", "x")
    made.pod("p", 8, "a", age=99)
    made.pod("q", 8, "a")
    made.gang("g", 4, 2, 2, namespace="b")
    await made.round()
    found = run_all(made.state.queue.figures())
    assert (found.entries, found.unreadable) == (3, 1)
    assert (dict(found.pods), dict(found.units)) == ({"a": 2, "b": 2}, {"a": 16, "b": 8})
    assert (found.quotas, found.used) == ({"a": 40, "b": 40}, {"a": 0, "b": 0})
    assert found.oldest_seconds == {"a": pytest.approx(99), "b": pytest.approx(60)}


def never(made: Scene) -> None:
    """Add what cannot start as it is."""
    made.pod("large", 640, "a", age=99)
    made.pod("unreadable", "8Gi", "a", age=99)
    made.pod("ungated", "8Gi", "a", age=99, gates=())
    made.pod("others", 8, "a", age=99, scheduler="volcano")
    made.gang("gang", 640, 2, 2, namespace="a", age=99)


async def test_what_can_never_start_has_no_place_and_is_in_no_metric():
    made = full(QueueSettings(reserve_after_seconds=10))
    never(made)
    await made.round()
    made.cluster.time.now += 50
    await made.round()
    found = run_all(made.state.queue.figures())
    assert (found.entries, found.pods, found.first_seconds) == (0, {}, 0.0)
    assert not list(made.state.head_claims)
    entries = {each.name: each for each in made.listed().entries}
    assert entries.keys() == {"large", "unreadable", "ungated", "others", "gang"}
    assert {(each.place, each.reason) for each in entries.values()} == {(0, "Invalid")}
    assert entries["large"].waits_for.startswith("Requests 640 MiB on one GPU, larger than any GPU")
    assert entries["others"].waits_for.startswith("Its scheduler volcano does not ask gpushare")
    assert "A member requests what no node can grant" in entries["gang"].waits_for


async def test_what_can_never_start_holds_up_nobody():
    made = Scene({"n": (100,)}, QueueSettings(backfill=False))
    made.namespace("a")
    made.namespace("b")
    never(made)
    made.pod("p", 8, "b")
    await made.round()
    assert made.state.ledger.slot_of("uid-p") is not None


@pytest.mark.parametrize("reserve_after", [0, 1800])
async def test_what_an_autoscaler_has_to_add_a_node_for_is_first_only_once_it_is_there(
    reserve_after,
):
    def first_seconds():
        return run_all(made.state.queue.figures()).first_seconds

    async def wait():
        await made.round()
        made.cluster.time.now += 50
        await made.round()

    made = Scene({}, QueueSettings(autoscaled=True, reserve_after_seconds=reserve_after))
    made.namespace("a")
    made.pod("large", 640, "a")
    made.gang("gang", 640, 2, 2, namespace="a")
    await wait()
    made.cluster.put_node(node("n", 32))
    await wait()
    assert (first_seconds(), set(made.order())) == (0.0, {"large", "gang"})
    made.cluster.put_node(node("new", 640))
    made.running("full", 640, "a", at="new")
    await wait()
    assert first_seconds() == 50


async def test_a_pod_gets_its_place_once_a_node_has_a_gpu_that_is_large_enough():
    made = full()
    made.pod("large", 640, "a")
    await made.round()
    assert made.order() == []
    made.cluster.put_node(node("large", 640))
    made.running("full", 640, "b", at="large")
    await made.round()
    assert made.order() == ["large"]
    made.cluster.put_node(node("large", 32))
    await made.round()
    assert made.order() == []


async def test_a_pod_gets_its_place_once_its_scheduler_asks():
    made = full()
    made.pod("others", 8, "a", scheduler="volcano")
    await made.round()
    assert made.order() == []
    made.state.callers.note(made.find("others"))
    await made.round()
    assert made.order() == ["others"]


@pytest.mark.parametrize("reserve_after", [0, 10])
async def test_how_long_one_is_the_first_without_room_starts_anew_with_another(reserve_after):
    made = full(QueueSettings(reserve_after_seconds=reserve_after))
    made.pod("p", 8, "a")
    await made.round()
    assert run_all(made.state.queue.figures()).first_seconds == 0
    made.cluster.time.now += 50
    await made.round()
    assert run_all(made.state.queue.figures()).first_seconds == 50
    made.cluster.time.now += 50
    made.pod("urgent", 8, "b", priority=3)
    await made.round()
    assert run_all(made.state.queue.figures()).first_seconds == 0
    assert bool(list(made.state.head_claims)) == bool(reserve_after)


async def test_a_claim_says_for_how_long_and_until_how_many_pods_end():
    made = full(QueueSettings(reserve_after_seconds=10))
    made.pod("p", 8, "a")
    await made.round()
    for _ in range(2):
        made.cluster.time.now += 30
        await made.round()
    [entry] = made.listed().entries
    assert (entry.reason, entry.claim.seconds, entry.claim.pods) == ("ClaimsGPUs", 30, 1)
    made.cluster.delete("r")
    [entry] = made.listed().entries
    assert entry.claim.pods == 0


async def test_a_pod_is_told_that_free_memory_is_kept_for_the_first_of_the_queue():
    made = full(QueueSettings(reserve_after_seconds=10))
    made.pod("p", 8, "a", age=99)
    for _ in range(2):
        await made.round()
        made.cluster.time.now += 20
    made.pod("q", 40, "b")
    await made.round()
    made.cluster.delete("r")
    made.running("s", 60, "c")
    assert made.explained("q").says == (
        "requests 40 MiB on one GPU; the room for it (n, GPU 0) is reserved or claimed for pods "
        "before it. It fits if it requests 32 MiB or less (`aliyun.com/gpu-mem: 32`), or when c/s "
        "ends."
    )
