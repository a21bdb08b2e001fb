"""Who gets room first, who waits for a quota, and who does not hold up others."""

from gpushare.cards.model import Card
from gpushare.contract import LABEL_PLACEHOLDER
from gpushare.quota.reasons import NOT_ADMITTED
from tests.builders import node
from tests.unit.extender.queue.driver import QUEUED, Queue
from tests.unit.extender.scripted import changed, restocked

EIGHT_GPUS = {"a": (8, 8, 8, 8), "b": (8, 8, 8, 8)}


async def test_a_job_that_fills_the_quota_starts_whole_and_the_next_one_follows_its_end():
    queue = Queue(EIGHT_GPUS, order="fifo", backfill=False)
    queue.namespace("team", "16")
    queue.submit_gang("first", 4, 4, "team")
    queue.submit("second", 4, "team")
    await queue.serve()
    assert queue.bound() == {"first-0", "first-1", "first-2", "first-3"}
    assert queue.gated() == {"second"}
    queue.end("first-0", "first-1", "first-2", "first-3")
    await queue.serve()
    assert queue.bound() == {"second"}


async def test_with_backfill_what_the_quota_leaves_goes_to_the_next_that_fits_in_it():
    queue = Queue(EIGHT_GPUS)
    queue.namespace("team", "16")
    queue.submit_gang("running", 3, 4, "team")
    await queue.serve()
    queue.submit("large", 8, "team")
    queue.submit("small", 4, "team")
    await queue.serve()
    assert queue.gated() == {"large"}
    assert "small" in queue.bound()


async def test_without_backfill_nothing_passes_the_first_entry_of_a_namespace_over_its_quota():
    queue = Queue(EIGHT_GPUS, backfill=False)
    queue.namespace("team", "16")
    queue.namespace("other", "16")
    queue.submit_gang("running", 3, 4, "team")
    await queue.serve()
    queue.submit("large", 8, "team")
    queue.submit("small", 4, "team")
    queue.submit("theirs", 4, "other")
    await queue.serve()
    assert queue.gated() == {"large", "small"}
    assert "theirs" in queue.bound()


async def test_without_backfill_the_others_go_on_once_the_first_entry_is_gone():
    for order in ("fifo", "fair"):
        queue = Queue({"a": (8,)}, order=order, backfill=False)
        queue.namespace("team", "8")
        queue.submit("running", 4)
        await queue.serve()
        queue.submit("large", 8)
        queue.submit("small", 4)
        await queue.serve(5)
        assert queue.gated() == {"large", "small"}
        queue.cluster.delete("large")
        await queue.serve(2)
        assert queue.bound() == {"running", "small"}


async def test_without_backfill_the_others_go_on_once_the_first_gang_lacks_members():
    queue = Queue({"a": (8,)}, backfill=False)
    queue.submit("running", 4)
    await queue.serve()
    queue.submit_gang("gang", 2, 4)
    queue.submit("small", 4)
    await queue.serve(5)
    assert queue.bound() == {"running"}
    queue.cluster.delete("gang-0")
    await queue.serve(2)
    assert queue.bound() == {"running", "small"}


async def test_without_backfill_the_quota_of_a_model_holds_up_its_own_namespace_only():
    queue = Queue({"a": (8, 8)}, backfill=False)
    cards = tuple(Card(at, f"GPU-{at}", 8, tag=f"a{at}", model="T4") for at in range(2))
    queue.cluster.put_node(restocked(node("a", 8, 8), cards=cards))
    queue.namespace("team", "T4=8")
    queue.submit("ours", 6, "team")
    queue.submit("others", 6, "default")
    await queue.serve()
    queue.submit("next", 6, "team")
    queue.submit("small", 2, "default")
    await queue.serve(3)
    assert queue.gated() == {"next"}


async def test_without_backfill_nothing_passes_the_first_entry_without_room():
    queue = Queue({"a": (8,)}, backfill=False)
    queue.submit("running", 4)
    await queue.serve()
    queue.submit("large", 8)
    queue.submit("small", 4)
    await queue.serve(5)
    assert queue.gated() == {"large", "small"}
    queue.end("running")
    await queue.serve()
    assert queue.bound() == {"large"}


async def test_a_released_gang_that_does_not_come_holds_nothing_up_without_backfill():
    queue = Queue({"a": (8, 8)}, backfill=False)
    queue.submit_gang("gone", 2, 8)
    queue.ignored = {"gone-0", "gone-1"}
    await queue.serve(5)
    queue.submit("next", 8)
    await queue.serve(5)
    assert queue.gated() == {"next"}
    await queue.serve(25)
    assert queue.bound() == {"next"}


async def test_two_namespaces_with_equal_quotas_share_equally_although_one_came_first():
    queue = Queue(dict.fromkeys("abcd", (8,) * 8))  # 256 units
    for name in ("early", "late"):
        queue.namespace(name, "512")
    for number in range(80):
        queue.submit(f"early-{number}", 4, "early")
    await queue.serve()
    assert queue.used("early") == 256
    for number in range(80):
        queue.submit(f"late-{number}", 4, "late")
    for number in range(40):
        queue.end(f"early-{number}")  # in the order in which they began
        await queue.serve()
    assert abs(queue.used("early") - queue.used("late")) <= 8


async def test_a_namespace_with_twice_the_quota_gets_twice_as_much():
    queue = Queue(dict.fromkeys("ab", (8,) * 8))  # 128 units
    queue.namespace("one", "100")
    queue.namespace("two", "200")
    for number in range(60):
        queue.submit(f"one-{number}", 2, "one")
        queue.submit(f"two-{number}", 2, "two")
    await queue.serve()
    assert queue.used("two") + queue.used("one") == 128
    assert abs(queue.used("two") - 2 * queue.used("one")) <= 4


async def test_the_more_urgent_comes_first_whatever_its_namespace_uses():
    queue = Queue({"a": (8, 8)})
    queue.namespace("busy", "16")
    queue.namespace("idle", "16")
    queue.submit("running", 8, "busy")
    await queue.serve()
    queue.submit("ordinary", 8, "idle")
    queue.submit("urgent", 8, "busy", priority=10)
    await queue.serve()
    assert queue.bound() == {"running", "urgent"}


async def test_by_age_the_oldest_comes_first_whatever_its_namespace_uses():
    queue = Queue({"a": (8, 8)}, order="fifo")
    queue.namespace("busy", "16")
    queue.submit("running", 8, "busy")
    await queue.serve()
    queue.submit("older", 8, "busy")
    queue.submit("younger", 8, "idle")
    await queue.serve()
    assert queue.bound() == {"running", "older"}


async def test_a_pod_that_was_created_without_the_gate_waits_for_its_turn_too():
    queue = Queue({"a": (8, 8)})
    queue.namespace("team", labels=QUEUED)
    queue.submit("running", 8, "team")
    await queue.serve()
    queue.submit("first", 8, "team", priority=5)
    queue.submit("ungated", 8, "team", is_gated=False)
    fitting, why = await queue.cluster.offered("ungated")
    assert (fitting, why) == ([], NOT_ADMITTED.text)
    await queue.serve()
    assert queue.bound() == {"running", "first"}
    queue.end("running")
    await queue.serve(2)
    assert queue.bound() == {"first", "ungated"}


async def test_a_pod_keeps_its_turn_if_its_namespace_leaves_the_queue():
    queue = Queue({"a": (8,)})
    queue.namespace("team", labels=QUEUED)
    queue.submit("running", 8, "team")
    queue.submit("gated", 8, "team")
    await queue.serve()
    queue.namespace("team")
    await queue.serve()
    assert queue.gated() == {"gated"}
    queue.end("running")
    await queue.serve()
    assert queue.bound() == {"gated"}


async def test_nothing_is_admitted_in_a_namespace_that_is_being_deleted():
    queue = Queue({"a": (8,)})
    queue.namespace("team", labels=QUEUED, deleted="2026-01-01T00:00:00Z")
    queue.submit("gated", 4, "team")
    queue.submit("other", 4)
    await queue.serve()
    assert queue.bound() == {"other"}


async def test_members_beyond_the_minimum_of_a_gang_have_no_precedence():
    queue = Queue({"a": (8, 8)})
    queue.submit("running", 8, "two")
    queue.submit("elastic-0", 4, "one", gang="elastic", minimum=1)
    queue.submit("other", 4, "one")
    await queue.serve()
    for number in range(1, 5):
        queue.submit(f"elastic-{number}", 4, "one", gang="elastic", minimum=1)
    queue.submit("first", 4, "two")
    queue.submit("second", 4, "two")
    queue.end("running")
    await queue.serve()
    assert queue.used("one") == queue.used("two") == 8


async def test_a_gang_that_has_lost_a_member_of_its_minimum_is_completed_first():
    queue = Queue({"a": (8, 8)})
    queue.submit_gang("gang", 2, 8, "one")
    await queue.serve()
    queue.submit("other", 8, "two")
    await queue.serve()
    queue.end("gang-1")
    queue.submit("gang-2", 8, "one", gang="gang", minimum=2)
    await queue.serve()
    assert queue.bound() == {"gang-0", "gang-2"}


async def test_a_namespace_that_may_not_use_a_model_is_not_the_last_one_for_it():
    queue = Queue({"a": (8, 8)})
    queue.namespace("one", "16,A100=0")
    queue.namespace("two", "64")
    queue.submit("running", 8, "two")
    await queue.serve()
    queue.submit("older", 8, "two")
    queue.submit("younger", 8, "one")
    await queue.serve()
    assert queue.bound() == {"running", "younger"}


async def test_a_pod_that_turns_into_a_placeholder_for_autoscalers_keeps_no_room():
    queue = Queue({"a": (8,)}, order="fifo")
    queue.submit("first", 8)
    queue.submit("second", 8)
    queue.ignored.add("first")
    await queue.serve()
    made = queue.cluster.kube.pods["first"]
    queue.cluster.add(changed(made, {"labels": {**made.labels, LABEL_PLACEHOLDER: "any"}}))
    await queue.serve(2)
    assert queue.bound() == {"second"}


async def test_a_gang_without_gates_waits_for_its_turn_like_a_pod_without_one():
    queue = Queue({"n": (16,)})
    for namespace in ("team-a", "team-b"):
        queue.namespace(namespace, labels=QUEUED)
    queue.submit("runs", 16, "team-a")
    await queue.serve(1)
    queue.submit("high", 16, "team-a", priority=10)
    for name in ("low-0", "low-1"):
        queue.submit(name, 8, "team-b", gang="low", minimum=2, is_gated=False)
    await queue.serve(1)
    queue.end("runs")
    for name in ("low-0", "low-1"):
        assert (await queue.cluster.offered(name))[0] == []
    await queue.serve(1)
    assert queue.bound() == {"high"}
    queue.end("high")
    await queue.serve(15)
    assert queue.bound() == {"low-0", "low-1"}
