"""The live page's feed: everything once, then the changes, and each pod's latest reason."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.page import cluster_feed
from extender.page.cluster_feed import (
    GANGS_SECONDS,
    GATED_SECONDS,
    PLACES_SECONDS,
    ClusterFeed,
)
from gpushare.contract import GATE_ADMISSION, LABEL_GANG, LABEL_GANG_MINIMUM
from gpushare.live_page import feed as live_page
from gpushare.live_page.feed import CHUNK_BYTES, HEARTBEAT, NEVER
from gpushare.objects.model import PodCondition, SchedulingGate
from tests.builders import node, pod
from tests.unit.extender.queue.scene import Scene
from tests.unit.extender.scripted import Bench, bound, changed

NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"


class Viewer:
    """The state that a page has after every event."""

    def __init__(self, feed, only=""):
        self.feed, self.only, self.seen, self.received = feed, only, NEVER, Counter()
        self.told = b""
        self.nodes, self.pods, self.gangs, self.more_gangs = {}, {}, {}, {}
        self.places, self.quotas = [], {}

    def update(self):
        list(self.feed.update())
        revision = self.feed.revision
        for event in self.feed.events(self.seen, self.only):
            self.told += event
            if event != HEARTBEAT:
                self.receive(event)
        self.seen = revision
        return self

    def receive(self, event):
        kind, data, *rest = event.decode().split("\n")
        assert rest == ["", ""]
        kind, data = kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        self.received[kind] += 1
        if kind == "begin":
            self.nodes, self.pods = {}, {}
        self.nodes |= {each["name"]: each for each in data.get("nodes", ())}
        self.pods |= {each["uid"]: each for each in data.get("pods", ())}
        self.gangs |= {each["key"]: each for each in data.get("gangs", ())}
        [self.more_gangs] = data.get("moreGangs", [self.more_gangs])
        [self.places] = data.get("queue", [self.places])
        self.quotas |= {each["namespace"]: each for each in data.get("quotas", ())}
        for name in data.get("goneQuotas", ()):
            self.quotas.pop(name)
        for key in data.get("goneGangs", ()):
            self.gangs.pop(key, None)
        for name in data.get("goneNodes", ()):
            self.nodes.pop(name, None)  # it may have existed only between two updates
        for uid in data.get("gonePods", ()):
            self.pods.pop(uid, None)


@pytest.fixture
def leads():
    return [True]


@pytest.fixture
def feed(bench, leads):
    return ClusterFeed(bench.cluster.state, lambda: leads[-1])


def pending(name, units=8, message="", gates=(), **more):
    conditions = (PodCondition("PodScheduled", "False", "Unschedulable", message),)
    return changed(
        pod(name, units, **more),
        spec={"scheduling_gates": tuple(SchedulingGate(gate) for gate in gates)},
        status={"conditions": conditions if message else None},
    )


def pod_names(viewer, name="n"):
    return [[each["name"] for each in card["pods"]] for card in viewer.nodes[name]["devs"]]


def test_a_new_viewer_receives_everything_and_then_only_changes(bench, feed):
    bench.cluster.node_changed(node("m", 8))
    bench.add(bound("a", 8), pending("w"))
    viewer = Viewer(feed).update()
    assert viewer.received == {"begin": 1, "changes": 1, "whole": 1}
    assert (set(viewer.nodes), set(viewer.pods)) == ({"n", "m"}, {"uid-w"})
    assert pod_names(viewer) == [["a"], []]
    viewer.update()
    assert viewer.received["changes"] == 1
    before = viewer.nodes["m"]
    bench.add(bound("b", 8, "GPU-1"))
    viewer.update()
    assert pod_names(viewer) == [["a"], ["b"]]
    assert (viewer.received["begin"], viewer.received["changes"]) == (1, 2)
    assert viewer.nodes["m"] is before


async def test_places_in_the_queue_follow_it():
    made = Scene({"n": (16,)})
    made.namespace("team")
    made.running("r", 16)
    made.pod("p", 8)
    made.gang("g", 4, 2, 2, age=99)
    await made.round()
    viewer = Viewer(ClusterFeed(made.state, lambda: True)).update()
    assert viewer.places == [["team-g-0", "team-g-1"], ["uid-p"]]
    made.cluster.delete("g-0", "g-1")
    await made.round()
    made.cluster.time.now += PLACES_SECONDS
    assert viewer.update().places == [["uid-p"]]
    changes = viewer.received["changes"]
    made.cluster.time.now += PLACES_SECONDS
    viewer.update()
    assert viewer.received["changes"] == changes
    made.cluster.delete("p")
    await made.round()
    made.cluster.time.now += PLACES_SECONDS
    assert viewer.update().places == []


async def test_only_the_first_places_are_sent(monkeypatch):
    monkeypatch.setattr(live_page, "MOST_PLACED", 3)
    made = Scene({"n": (16,)})
    made.running("r", 16)
    made.namespace("team")
    made.gang("g", 4, 2, 2, age=99)
    made.gang("h", 4, 2, 2, age=98)
    await made.round()
    viewer = Viewer(ClusterFeed(made.state, lambda: True)).update()
    assert viewer.places == [["team-g-0", "team-g-1"], ["team-h-0"]]


def test_moved_and_ended_shares_and_deleted_nodes_are_changes(bench, feed):
    bench.add(bound("a", 8))
    viewer = Viewer(feed).update()
    bench.cluster.pod_deleted(bound("a", 8))
    bench.add(bound("b", 8, "GPU-1"))
    assert pod_names(viewer.update()) == [[], ["b"]]
    bench.cluster.pod_deleted(bound("b", 8))
    bench.cluster.node_deleted(node("n", 16))
    assert viewer.update().nodes == {}


def test_a_pending_pod_is_shown_with_its_reason_until_it_is_bound(bench, feed):
    bench.add(pending("w", 30))
    viewer = Viewer(feed).update()
    assert (viewer.pods["uid-w"]["why"], viewer.pods["uid-w"]["by"]) == ("", "")
    bench.cluster.pods.answer("uid-w", 2, [NO_ROOM, NO_ROOM], bench.time.now)
    shown = viewer.update().pods["uid-w"]
    assert (shown["reasons"], shown["by"], shown["units"]) == ({NO_ROOM: 2}, "gpushare", 30)
    assert shown["why"].startswith("requests 30 MiB on one GPU, larger than any GPU")
    bench.cluster.pod_changed(bound("w", 8))
    viewer.update()
    assert viewer.pods == {}
    assert pod_names(viewer) == [["w"], []]


def test_a_deleted_pending_pod_disappears(bench, feed):
    bench.add(pending("w"))
    viewer = Viewer(feed).update()
    bench.cluster.pod_deleted(pending("w"))
    assert viewer.update().pods == {}


def test_every_replica_shows_the_same_sentence_and_the_leader_the_reasons_too(bench, feed, leads):
    bench.add(pending("w", 20, message="0/2 nodes are available: 2 Insufficient cpu."))
    bench.cluster.pods.answer("uid-w", 2, [NO_ROOM], bench.time.now)
    viewer = Viewer(feed).update()
    why = viewer.pods["uid-w"]["why"]
    assert "larger than any GPU" in why
    leads.append(False)
    shown = viewer.update().pods["uid-w"]
    assert (shown["why"], shown["by"], shown["reasons"]) == (why, "gpushare", {})
    leads.append(True)
    assert viewer.update().pods["uid-w"]["reasons"] == {NO_ROOM: 1}


def test_a_pod_that_kube_scheduler_has_not_tried_has_no_reason_yet(bench, feed):
    bench.add(pending("w"))
    shown = Viewer(feed).update().pods["uid-w"]
    assert (shown["why"], shown["by"]) == ("", "")


def test_many_different_pods_get_their_sentences_one_update_after_the_other(
    bench, feed, monkeypatch
):
    monkeypatch.setattr("extender.page.cluster_feed.MOST_COST", 2)
    monkeypatch.setattr("gpushare.answers.pending.sentences.MEASURED_COST", 0)
    words = "0/1 nodes are available"
    bench.add(*(pending(f"w{units}", units, message=words) for units in range(20, 25)))
    viewer = Viewer(feed).update()
    written = [[each["by"] for each in viewer.pods.values()].count("gpushare")]
    assert {each["why"] for each in viewer.pods.values() if each["by"] != "gpushare"} == {words}
    while written[-1] < 5:
        viewer.update()
        written.append([each["by"] for each in viewer.pods.values()].count("gpushare"))
    assert written == [2, 4, 5]
    bench.cluster.pod_deleted(pending("w20"))
    assert len(viewer.update().pods) == 4


def test_scheduling_gates_and_invalid_requests_are_shown(bench, feed):
    bench.add(pending("g", gates=("a.b/c",)), pending("r", "8Gi"))
    shown = Viewer(feed).update().pods
    assert shown["uid-g"]["state"] == "gated"
    assert shown["uid-g"]["why"].endswith("until its scheduling gates are removed: a.b/c.")
    assert shown["uid-r"]["state"] == "refused"
    assert "not of bytes" in shown["uid-r"]["why"]


def test_unhealthy_and_cordoned_gpus_and_unreadable_nodes_are_shown(bench, feed):
    made = node("n", 16, 16, unhealthy=[1])
    made.annotations["gpushare.aliyun.com/cordoned-cards"] = "GPU-0"
    viewer = Viewer(feed).update()
    bench.cluster.node_changed(made)
    cards = viewer.update().nodes["n"]["devs"]
    assert [(c["health"], c["cordoned"]) for c in cards] == [
        ("healthy", True),
        ("unhealthy", False),
    ]
    made = node("n", 16)
    made.annotations["gpushare.aliyun.com/inventory"] = "{"
    bench.cluster.node_changed(made)
    assert "cannot be read" in viewer.update().nodes["n"]["problem"]


def test_no_event_is_long_with_many_nodes(bench, feed):
    for i in range(400):
        bench.cluster.node_changed(node(f"n{i}", *[16] * 8))
    list(feed.update())
    events = list(feed.events(NEVER))
    assert len(events) > 10
    assert max(map(len, events)) < CHUNK_BYTES + 4096


def test_each_step_takes_one_node_or_one_pod(bench, feed):
    for i in range(100):
        bench.cluster.node_changed(node(f"n{i}", 16))
        bench.add(pending(f"w{i}"))
    assert sum(1 for _ in feed.update()) == 101 + 100


@pytest.mark.parametrize("steps", range(5))
def test_an_update_takes_in_what_an_abandoned_one_left_out(bench, feed, steps):
    viewer = Viewer(feed).update()
    for name in ("n1", "n2"):
        bench.cluster.node_changed(node(name, 16))
    bench.add(bound("a", 8), pending("w"))
    abandoned = feed.update()
    for _ in range(steps):
        next(abandoned, None)
    abandoned.close()  # as when the viewer that updated it disconnects
    viewer.update()
    assert (set(viewer.nodes), set(viewer.pods)) == ({"n", "n1", "n2"}, {"uid-w"})
    assert pod_names(viewer) == [["a"], []]


def without_sentences(pods):
    """The pods without what is as of kube-scheduler's last question."""
    return {uid: {**each, "why": ""} for uid, each in pods.items()}


_steps = st.lists(
    st.tuples(
        st.sampled_from(("bind", "create", "delete", "ask", "node", "gone", "first", "second")),
        st.integers(0, 3),
        st.integers(0, 1),
    ),
    max_size=40,
)


@given(_steps)
def test_viewers_with_any_update_times_see_the_same_state(steps):
    bench = Bench(16, 16)
    cluster = bench.cluster
    feed = ClusterFeed(cluster.state, lambda: True)
    first, second = Viewer(feed), Viewer(feed)
    for what, which, place in steps:
        name = f"p{which}"
        if what == "bind":
            cluster.pod_changed(bound(name, 4, f"GPU-{place}"))
        elif what == "create":
            cluster.pod_changed(pending(name, 4))
        elif what == "delete":
            cluster.pod_deleted(bound(name, 8))
        elif what == "ask" and cluster.pods.pod(f"uid-{name}"):
            cluster.pods.answer(f"uid-{name}", 1, [NO_ROOM][place:], 0.0)
        elif what == "node":
            cluster.node_changed(node(f"n{which or ''}", 16, *[16] * place))
        elif what == "gone":
            cluster.node_deleted(node(f"n{which or ''}", 16))
        elif what == "first":
            first.update()
        else:
            second.update()
    fresh = Viewer(ClusterFeed(cluster.state, lambda: True)).update()
    expected = fresh.nodes, without_sentences(fresh.pods)
    for viewer in (first.update(), second.update()):
        assert (viewer.nodes, without_sentences(viewer.pods)) == expected


def member(name, gang="train", minimum=2, units=8, gates=(GATE_ADMISSION,)):
    labels = {LABEL_GANG: gang, LABEL_GANG_MINIMUM: str(minimum)}
    return pending(name, units, gates=gates, labels=labels)


def test_gangs_come_change_and_go(bench, feed):
    bench.add(member("a"))
    viewer = Viewer(feed).update()
    [(key, gang)] = viewer.gangs.items()
    assert key == "default/labels/train"
    assert (gang["phase"], gang["members"], gang["minimum"]) == ("WaitingForMembers", 1, 2)
    before = viewer.received["changes"]
    bench.time.now += GANGS_SECONDS
    assert viewer.update().received["changes"] == before
    bench.add(member("b"))
    bench.time.now += GANGS_SECONDS
    assert viewer.update().gangs[key]["phase"] == "WaitingForRoom"
    for name in ("a", "b"):
        bench.cluster.pod_deleted(bench.kube.pods[name])
    bench.time.now += GANGS_SECONDS
    assert viewer.update().gangs == {}


def test_the_sentence_of_a_gated_member_follows_its_gang(bench, feed):
    bench.add(member("a"))
    viewer = Viewer(feed).update()
    assert viewer.pods["uid-a"]["state"] == "gated"
    assert "Waiting for 1 of 2 members; 1 exists." in viewer.pods["uid-a"]["why"]
    bench.add(member("b", gates=()))
    bench.time.now += GANGS_SECONDS
    assert "Waiting for a plan for 2 x 8 MiB." in viewer.update().pods["uid-a"]["why"]


def test_the_sentence_of_a_gated_pod_follows_the_cluster(bench, feed):
    bench.add(bound("other", 16), bound("last", 16, "GPU-1"), pending("w", gates=[GATE_ADMISSION]))
    viewer = Viewer(feed).update()
    assert "no GPU has free memory" in viewer.pods["uid-w"]["why"]
    bench.cluster.pod_deleted(bench.kube.pods["other"])
    bench.time.now += GATED_SECONDS
    assert viewer.update().pods["uid-w"]["why"] == (
        "its GPU memory fits now (n, GPU 0), and gpushare removes its scheduling gate soon."
    )


def test_no_more_gangs_are_sent_than_can_be_shown(bench, feed, monkeypatch):
    monkeypatch.setattr(cluster_feed, "MOST_GANGS", 3)
    bench.add(*(member(f"p{each}", f"gang-{each}", units=None) for each in range(5)))
    viewer = Viewer(feed).update()
    assert (len(viewer.gangs), viewer.more_gangs) == (3, {"default": 2})
    for each in range(3):
        bench.cluster.pod_deleted(bench.kube.pods[f"p{each}"])
    bench.time.now += GANGS_SECONDS
    viewer.update()
    assert (len(viewer.gangs), viewer.more_gangs) == (2, {})
    assert live_page.MOST_GANGS == 500
