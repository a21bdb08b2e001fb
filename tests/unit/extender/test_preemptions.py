"""Evictions for a pod or gang, in explain, Events, the list of gangs and the live page."""

from extender.page.cluster_feed import GANGS_SECONDS, ClusterFeed
from gpushare.answers.preemptions import PreemptionFacts
from gpushare.contract import GATE_ADMISSION
from gpushare.live_page.feed import NEVER
from gpushare.objects.scheduling import SchedulingGate
from tests.builders import pod
from tests.unit.extender.scripted import PREFIX, bound, changed
from tests.unit.extender.test_gangs import member

VICTIMS = (("default", "low"), ("secret", "c"))
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"


class Evictions:
    """Implements PreemptionStates."""

    def __init__(self, found):
        self.found, self.count = found, len(found)

    def of(self, uid):
        return self.found.get(uid)


def evict(bench, facts, *uids):
    bench.cluster.state.preemptions = Evictions(dict.fromkeys(uids, facts))


async def explained(client, name):
    response = await client.get(f"{PREFIX}/explain/default/{name}")
    assert response.status == 200
    return await response.json()


async def test_explain_says_what_is_evicted_and_not_what_else_could_be(client, bench):
    bench.add(bound("low", 16), pod("high", 16))
    assert "outlook" in await explained(client, "high")
    evict(bench, PreemptionFacts(VICTIMS, 1, 4.0, begun=True), "uid-high")
    found = await explained(client, "high")
    assert found["says"] == (
        "evicting 2 pods of lower priority for it (default/low, secret/c); 1 of 2 has ended; 4 s "
        "of their grace period left."
    )
    assert found["pending"]["cause"] == "evicting"
    assert found["pending"]["evicting"] == {
        "count": 2, "ended": 1, "begun": True, "secondsLeft": 4,
        "pods": [{"namespace": "default", "name": "low"}, {"namespace": "secret", "name": "c"}],
    }  # fmt: skip
    assert "outlook" not in found


def test_metrics_count_for_how_many_pods_are_evicted_now(bench):
    assert bench.cluster.figures()["gpushare_extender_preemptors"] == 0
    evict(bench, PreemptionFacts(VICTIMS), "uid-high")
    assert bench.cluster.figures()["gpushare_extender_preemptors"] == 1


async def test_gangs_say_what_is_evicted_for_them_without_names(client, bench):
    bench.add(*(member(name, units=12) for name in ("a", "b", "c")))
    evict(bench, PreemptionFacts(VICTIMS), "uid-b", "uid-c")
    response = await client.get(f"{PREFIX}/gangs/default")
    [gang] = (await response.json())["gangs"]
    assert (gang["phase"], gang["text"]) == (
        "WaitingForRoom",
        "About to evict 2 pods of lower priority for it.",
    )


def test_an_event_names_only_pods_of_its_own_namespace_and_no_seconds(bench):
    bench.add(bound("low", 16), bound("low-1", 16, "GPU-1"), pod("high", 16))
    evict(bench, PreemptionFacts(VICTIMS, 0, 4.0, begun=True), "uid-high")
    bench.cluster.pods.answer("uid-high", 1, [NO_ROOM], bench.time.now)
    bench.time.now += 10
    list(bench.cluster.report_pending())
    [(_, reason, message)] = bench.told
    assert reason == "GpushareWaiting"
    assert message == (
        "Pending: evicting 2 pods of lower priority for it (default/low and 1 more)."
    )


def test_the_passing_of_time_writes_no_events(bench):
    bench.add(bound("low", 16), bound("low-1", 16, "GPU-1"), pod("high", 16))
    for second in range(30):
        evict(bench, PreemptionFacts(VICTIMS, 0, 30.0 - second, begun=True), "uid-high")
        bench.cluster.pods.answer("uid-high", 1, [NO_ROOM], bench.time.now)
        list(bench.cluster.report_pending())
        bench.time.now += 1
    assert len(bench.told) == 1


def gated(name):
    gates = (SchedulingGate(GATE_ADMISSION),)
    return changed(pod(name, 16), spec={"scheduling_gates": gates})


def sent(feed, bench):
    """Return what a viewer who has everything gets after the next update."""
    seen = feed.revision
    bench.time.now += GANGS_SECONDS
    list(feed.update())
    return b"".join(feed.events(seen)).decode()


def test_the_live_page_follows_the_evictions_and_not_the_seconds(bench):
    feed = ClusterFeed(bench.cluster.state, lambda: True)
    bench.add(bound("low", 16), gated("high"))
    list(feed.update())
    assert "uid-high" in b"".join(feed.events(NEVER)).decode()
    evict(bench, PreemptionFacts(VICTIMS, 0, 4.0, begun=True), "uid-high")
    assert "evicting 2 pods of lower priority" in sent(feed, bench)
    evict(bench, PreemptionFacts(VICTIMS, 0, 3.0, begun=True), "uid-high")
    assert sent(feed, bench) == ""
    evict(bench, PreemptionFacts(VICTIMS, 1, 3.0, begun=True), "uid-high")
    assert "1 of 2 has ended" in sent(feed, bench)
    evict(bench, None)
    assert "evicting" not in (last := sent(feed, bench))
    assert "uid-high" in last
