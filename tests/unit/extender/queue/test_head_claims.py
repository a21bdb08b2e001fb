"""No stream of small pods keeps a large gang or pod waiting for ever."""

import pytest

from extender.decisions.gangs.gangs import HELD_SECONDS
from extender.gangs.rights import EVERY_SECONDS
from extender.queue.head_claims import TRIED_AFTER_SECONDS
from gpushare.errors import ApiError
from gpushare.objects.model import Container, Resources, Taint
from gpushare.objects.scheduling import Toleration
from tests.builders import node
from tests.unit.extender.queue.driver import Queue
from tests.unit.extender.scripted import changed

TEN_GPUS = dict.fromkeys("abcde", (8, 8))
RUN_SECONDS = 20


class Stream:
    """Pods of one GPU that each run for RUN_SECONDS; one ends every two seconds."""

    def __init__(self, queue: Queue, namespace: str = "default") -> None:
        self.queue, self.namespace, self.count = queue, namespace, 0
        self.ends_at: dict[str, float] = {}

    async def run(self, seconds: int, until: str = "") -> float:
        """Serve for a while, or until a pod is bound; return how long that took."""
        clock, queue = self.queue.cluster.time, self.queue
        start = clock.monotonic()
        for second in range(seconds):
            waiting = sum(name.startswith("s-") for name in queue.gated())
            if second % 2 == 0 and waiting < 5:
                self.count += 1
                queue.submit(f"s-{self.count}", 8, self.namespace)
            await queue.serve(1)
            now = clock.monotonic()
            for name in queue.bound() - {until}:
                if name.startswith("s-"):
                    self.ends_at.setdefault(name, now + RUN_SECONDS)
            for name in [name for name, at in self.ends_at.items() if at <= now]:
                del self.ends_at[name]
                queue.end(name)
            if until and until in queue.bound():
                break
        return clock.monotonic() - start


async def test_a_gang_is_placed_soon_after_it_has_been_first_for_long_enough():
    queue = Queue(TEN_GPUS, order="fifo", reserve_after_seconds=60)
    stream = Stream(queue)
    await stream.run(30)
    queue.submit_gang("gang", 6, 8)
    assert await stream.run(300, "gang-0") <= 60 + RUN_SECONDS + 5
    assert len(queue.bound(f"gang-{n}" for n in range(6))) == 6
    assert not list(queue.state.head_claims)


async def test_a_gang_of_a_namespace_that_uses_most_is_not_passed_for_ever_either():
    queue = Queue(TEN_GPUS, reserve_after_seconds=60)
    queue.namespace("busy", "60")
    queue.namespace("idle", "1000")
    stream = Stream(queue, "idle")
    queue.submit("running", 8, "busy")
    await stream.run(30)
    assert queue.state.quotas.share("busy") > queue.state.quotas.share("idle")
    queue.submit_gang("gang", 6, 8, "busy")
    assert await stream.run(300, "gang-0") <= 60 + RUN_SECONDS + 5


async def test_without_the_setting_the_gang_is_passed_for_ever():
    queue = Queue(TEN_GPUS, order="fifo", reserve_after_seconds=0)
    stream = Stream(queue)
    await stream.run(30)
    queue.submit_gang("gang", 6, 8)
    await stream.run(300, "gang-0")
    assert not queue.bound(["gang-0"])


async def with_a_claim() -> Queue:
    """Return a queue in which the GPUs of pods one and two are claimed for a gang."""
    queue = Queue({"a": (8, 8)}, order="fifo", reserve_after_seconds=10)
    queue.submit("one", 8)
    queue.submit("two", 8)
    await queue.serve()
    queue.submit_gang("gang", 2, 8)
    await queue.serve(15)
    return queue


async def test_only_more_urgent_pods_get_what_is_claimed_for_the_first_entry():
    queue = await with_a_claim()
    queue.end("one")
    queue.submit("equal", 8)
    queue.submit("ungated", 8, is_gated=False)
    await queue.serve(3)
    assert queue.bound() == {"two"}
    assert queue.state.head_claims.idle_units() == 8
    queue.submit("urgent", 8, priority=1)
    await queue.serve(3)
    assert queue.bound() == {"two", "urgent"}
    queue.end("two", "urgent")
    await queue.serve(3)
    assert queue.bound() == {"gang-0", "gang-1"}
    assert queue.state.head_claims.idle_units() == 0


async def test_a_claim_ends_with_the_gang_for_which_it_was_made():
    queue = Queue({"a": (8, 8)}, order="fifo", reserve_after_seconds=10)
    queue.submit("one", 8)
    await queue.serve()
    queue.submit_gang("gang", 2, 8)
    await queue.serve(15)
    assert len(list(queue.state.head_claims)) == 1
    queue.end("gang-0", "gang-1")
    queue.submit("next", 8)
    await queue.serve(1)
    assert queue.bound() == {"one", "next"}
    assert queue.cluster.held == 0


async def test_a_claim_moves_if_a_gpu_of_it_can_be_used_no_longer():
    queue = Queue({"a": (8,), "b": (8,)}, order="fifo", reserve_after_seconds=10)
    for name in ("one", "two"):
        queue.submit(name, 4)
    await queue.serve()
    queue.submit("three", 4)
    queue.submit("four", 4)
    await queue.serve()
    queue.submit("large", 8)
    await queue.serve(15)
    (claim,) = queue.state.head_claims
    (slot,) = claim.slots
    queue.cluster.delete_node(slot.node)
    await queue.serve(3)
    (claim,) = queue.state.head_claims
    assert claim.slots[0].node != slot.node


async def test_a_gang_that_is_larger_than_the_cluster_keeps_the_next_one_from_no_claim():
    queue = Queue(TEN_GPUS, order="fifo", reserve_after_seconds=60)
    stream = Stream(queue)
    await stream.run(30)
    for number in range(3):
        queue.submit_gang(f"huge-{number}", 30, 8, "other")
    queue.submit_gang("gang", 6, 8)
    took = await stream.run(300, "gang-0")
    assert took <= TRIED_AFTER_SECONDS + 60 + RUN_SECONDS + 5
    assert len(queue.bound(f"gang-{n}" for n in range(6))) == 6


async def test_what_would_not_fit_at_first_gets_a_claim_once_the_cluster_is_larger():
    queue = Queue({"a": (8,)}, order="fifo", reserve_after_seconds=20)
    queue.submit("one", 8)
    await queue.serve()
    queue.submit_gang("gang", 2, 8)
    await queue.serve(60)
    assert not list(queue.state.head_claims)
    queue.submit("two", 8)
    queue.add_node("b", (8,))
    await queue.serve(200)
    assert queue.bound() == {"one", "two"}
    assert len(list(queue.state.head_claims)) == 1


async def test_nothing_is_kept_idle_while_the_extender_may_not_remove_gates():
    queue = await with_a_claim()
    assert len(list(queue.state.head_claims)) == 1
    queue.api.allowed = False
    queue.end("one")
    queue.submit("ungated", 8, "other", is_gated=False)
    await queue.serve(EVERY_SECONDS)
    assert queue.bound() == {"two", "ungated"}


async def test_a_claim_moves_from_pods_that_never_end_to_where_others_come_and_go():
    queue = Queue({"a": (8, 8), "b": (8, 8)}, order="fifo", reserve_after_seconds=30)
    for number in range(2):
        queue.submit(f"service-{number}", 8)
    await queue.serve()
    stream = Stream(queue)
    await stream.run(30)
    queue.submit_gang("gang", 2, 8)
    took = await stream.run(300, "gang-0")
    assert took <= 30 + (RUN_SECONDS + 30) + RUN_SECONDS + 5
    expected = {"gang-0", "gang-1", "service-0", "service-1"}
    assert queue.bound(expected) == expected


async def test_a_claim_stays_as_long_as_pods_that_use_it_end():
    queue = Queue({"a": (8, 8, 8), "b": (8, 8, 8)}, order="fifo", reserve_after_seconds=20)
    for number in range(6):
        queue.submit(f"long-{number}", 8)
    await queue.serve()
    queue.submit_gang("gang", 3, 8)
    await queue.serve(22)
    (claim,) = queue.state.head_claims
    nodes = {slot.node for slot in claim.slots}
    for uid in sorted(claim.waits_for):
        await queue.serve(15)
        (claim,) = queue.state.head_claims
        assert {slot.node for slot in claim.slots} == nodes
        queue.end(uid)
    await queue.serve(3)
    assert len(queue.bound(f"gang-{n}" for n in range(3))) == 3


def with_cpu(queue: Queue, name: str, cpu: str) -> None:
    made = queue.cluster.kube.pods[name]
    limits = {**made.spec.containers[0].resources.limits, "cpu": cpu}
    container = Container("main", Resources(limits, limits))
    queue.cluster.add(changed(made, spec={"containers": (container,)}))


def take_cpu(queue: Queue, at: str) -> None:
    queue.state.use.put("uid-web", at, (("cpu", 6000), ("pods", 1000)))


def put_taint(queue: Queue, at: str) -> None:
    taints = (Taint("maintenance", "NoSchedule"),)
    queue.cluster.put_node(changed(queue.cluster.nodes[at], spec={"taints": taints}))


def put_other_label(queue: Queue, at: str) -> None:
    queue.cluster.put_node(changed(queue.cluster.nodes[at], {"labels": {"pool": "other"}}))


@pytest.mark.parametrize("change", [take_cpu, put_taint, put_other_label])
async def test_what_its_owner_cannot_use_any_more_is_claimed_for_it_no_longer(change):
    queue = Queue({}, order="fifo", reserve_after_seconds=30)
    for name in ("n", "m"):
        amounts = {**node(name, 8).allocatable, "cpu": "8"}
        status = {"capacity": amounts, "allocatable": amounts}
        queue.cluster.put_node(changed(node(name, 8), {"labels": {"pool": "ours"}}, status=status))
    for name in ("one", "two"):
        queue.submit(name, 8)
    await queue.serve(1)
    queue.submit("first", 8, node_selector={"pool": "ours"})
    with_cpu(queue, "first", "6")
    await queue.serve(2)
    queue.submit("other", 8, tolerations=(Toleration("maintenance", "Exists"),))
    await queue.serve(60)
    (claim,) = queue.state.head_claims
    at = claim.slots[0].node
    change(queue, at)
    await queue.serve(5)
    queue.end(*(name for name, where in queue.cluster.bound().items() if where == at))
    await queue.serve(10)
    assert queue.cluster.bound()["other"] == at
    queue.end(*queue.bound({"one", "two"}))
    await queue.serve(10)
    assert queue.bound() == {"first", "other"}


@pytest.mark.parametrize("order", ["fair", "fifo"])
@pytest.mark.parametrize("backfill", [True, False])
async def test_of_equal_requests_that_for_which_a_gpu_is_claimed_gets_it(order, backfill):
    queue = Queue({"n": (16,)}, order=order, backfill=backfill, reserve_after_seconds=30)
    queue.submit("runs", 16, "other")
    await queue.serve(1)
    queue.submit("a", 16, "team-a")
    await queue.serve(2)
    queue.submit("b", 16, "team-b")
    await queue.serve(60)
    queue.end("runs")
    await queue.serve(3)
    assert queue.bound() == {"a"}
    queue.end("a")
    await queue.serve(3)
    assert queue.bound() == {"b"}


async def test_what_can_never_start_holds_up_nobody_without_backfill():
    queue = Queue({"n": (8, 8)}, order="fifo", backfill=False)
    queue.namespace("small", "8")
    queue.submit("over-quota", 16, "small", node_selector={"none": ""})
    queue.submit("nowhere", 8, node_selector={"none": ""})
    queue.submit_gang("huge", 3, 8)
    queue.submit("fits", 8)
    await queue.serve(30)
    assert queue.bound() == {"fits"}


async def test_what_can_start_nowhere_any_more_holds_up_nobody_without_backfill():
    queue = Queue({"n": (16,), "m": (8,)}, order="fifo", backfill=False)
    queue.submit("runs", 16)
    await queue.serve(1)
    queue.submit("first", 16)
    queue.submit("other", 8)
    await queue.serve(60)
    assert queue.bound() == {"runs"}
    put_taint(queue, "n")
    await queue.serve(90)
    assert queue.bound() == {"runs", "other"}


async def test_a_pod_that_cannot_be_released_keeps_no_gpu_for_longer_than_it_rests():
    queue = Queue({"n": (8,)}, order="fifo")
    release = queue.api.release_pod

    async def release_pod(pod, patch):
        if pod.metadata.name == "stuck":
            raise ApiError("failed calling webhook", code=500)
        await release(pod, patch)

    queue.api.release_pod = release_pod
    queue.submit("stuck", 8)
    queue.submit("next", 8)
    await queue.serve(HELD_SECONDS + 2)
    assert queue.bound() == {"next"}


async def test_a_gang_that_does_not_come_to_its_room_claims_less_and_less():
    """Its pods never come: a volume keeps them from all nodes, for example."""
    queue = Queue({"n": (8, 8, 8, 8)}, order="fifo", reserve_after_seconds=30)
    queue.ignored.update(f"gang-{number}" for number in range(4))
    idle = seconds = 0
    ends: dict[str, float] = {}
    for number in range(600):
        if number == 5:
            queue.submit_gang("gang", 4, 8)
        for more in range(4 - sum(name.startswith("s-") for name in queue.gated())):
            queue.submit(f"s-{number}-{more}", 8)
        await queue.serve(10, every=5.0)
        now, bound = queue.cluster.time.monotonic(), queue.bound()
        for name in bound:
            if ends.setdefault(name, now + RUN_SECONDS) <= now:
                queue.end(name)
        if number >= 300:
            idle += 4 - len(bound)
            seconds += 4
    assert idle / seconds < 0.15


async def test_nothing_is_kept_for_pods_of_a_scheduler_that_does_not_ask():
    queue = Queue({"n": (8, 8)}, order="fifo", reserve_after_seconds=10)
    queue.submit("foreign", 8, scheduler_name="somebody-else")
    for number in range(2):
        queue.submit(f"ours-{number}", 8)
    await queue.serve(60)
    assert queue.bound() == {"ours-0", "ours-1"}
    assert queue.gated() == {"foreign"}
    assert queue.cluster.held == 0
