"""What the live page is told: all once, then what changed, and of a pod the latest reason."""

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.page.feed import CHUNK_BYTES, NEVER, Feed
from gpushare.contract import ANNOTATION_CARDS
from gpushare.objects.model import PodCondition, PodStatus, SchedulingGate
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench

NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"


class Viewer:
    """What somebody sees who takes in every event."""

    def __init__(self, live):
        self.live, self.seen, self.told = live, NEVER, Counter()
        self.nodes, self.pods = {}, {}

    def look(self):
        for _ in self.live.update():
            pass
        now = self.live.revision
        for event in self.live.events(self.seen):
            self.take(event)
        self.seen = now
        return self

    def take(self, event):
        kind, data, *rest = event.decode().split("\n")
        assert rest == ["", ""]
        kind, data = kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        self.told[kind] += 1
        if kind == "begin":
            self.nodes, self.pods = {}, {}
        self.nodes |= {each["name"]: each for each in data.get("nodes", ())}
        self.pods |= {each["uid"]: each for each in data.get("pods", ())}
        for name in data.get("goneNodes", ()):
            self.nodes.pop(name, None)  # it may have come and gone between two looks
        for uid in data.get("gonePods", ()):
            self.pods.pop(uid, None)


@pytest.fixture
def bench():
    return Bench(16, 16)


@pytest.fixture
def leads():
    return [True]


@pytest.fixture
def live(bench, leads):
    return Feed(bench.cluster, lambda: leads[-1])


def bound(name, units=8, card="GPU-0", **more):
    return pod(name, units, node="n", annotations={ANNOTATION_CARDS: card}, **more)


def waiting(name, units=8, message="", gates=(), **more):
    made = pod(name, units, **more)
    conditions = (PodCondition("PodScheduled", "False", "Unschedulable", message),)
    spec = msgspec.structs.replace(
        made.spec, scheduling_gates=tuple(SchedulingGate(gate) for gate in gates)
    )
    status = PodStatus("Pending", conditions=conditions if message else None)
    return msgspec.structs.replace(made, spec=spec, status=status)


def held(viewer, name="n"):
    return [[each["name"] for each in card["pods"]] for card in viewer.nodes[name]["devs"]]


def test_who_comes_is_told_all_and_then_only_what_changed(bench, live):
    bench.cluster.node_changed(node("m", 8))
    bench.add(bound("a"), waiting("w"))
    viewer = Viewer(live).look()
    assert viewer.told == {"begin": 1, "changes": 1, "whole": 1}
    assert (set(viewer.nodes), set(viewer.pods)) == ({"n", "m"}, {"uid-w"})
    assert held(viewer) == [["a"], []]
    viewer.look()
    assert viewer.told["changes"] == 1
    before = viewer.nodes["m"]
    bench.add(bound("b", card="GPU-1"))
    viewer.look()
    assert held(viewer) == [["a"], ["b"]]
    assert (viewer.told["begin"], viewer.told["changes"]) == (1, 2)
    assert viewer.nodes["m"] is before


def test_a_share_that_moves_or_ends_and_a_node_that_goes_are_told(bench, live):
    bench.add(bound("a"))
    viewer = Viewer(live).look()
    bench.cluster.pod_deleted(bound("a"))
    bench.add(bound("b", card="GPU-1"))
    assert held(viewer.look()) == [[], ["b"]]
    bench.cluster.pod_deleted(bound("b"))
    bench.cluster.node_deleted(node("n", 16))
    assert viewer.look().nodes == {}


def test_a_pod_that_waits_is_shown_with_its_reason_until_it_is_bound(bench, live):
    bench.add(waiting("w", 30))
    viewer = Viewer(live).look()
    assert (viewer.pods["uid-w"]["why"], viewer.pods["uid-w"]["by"]) == ("", "")
    bench.cluster.pod_asked(bench.cluster.pod("uid-w"), 2, [NO_ROOM, NO_ROOM])
    shown = viewer.look().pods["uid-w"]
    assert (shown["reasons"], shown["by"], shown["units"]) == ({NO_ROOM: 2}, "gpushare", 30)
    assert NO_ROOM in shown["why"]
    bench.cluster.pod_changed(bound("w", 8))
    viewer.look()
    assert viewer.pods == {}
    assert held(viewer) == [["w"], []]


def test_a_pod_that_is_deleted_while_it_waits_goes(bench, live):
    bench.add(waiting("w"))
    viewer = Viewer(live).look()
    bench.cluster.pod_deleted(waiting("w"))
    assert viewer.look().pods == {}


def test_who_does_not_lead_shows_kube_schedulers_own_words(bench, live, leads):
    words = "0/2 nodes are available: 2 Insufficient cpu."
    bench.add(waiting("w", message=words))
    bench.cluster.pod_asked(bench.cluster.pod("uid-w"), 2, [NO_ROOM])
    viewer = Viewer(live).look()
    assert viewer.pods["uid-w"]["by"] == "gpushare"
    leads.append(False)
    shown = viewer.look().pods["uid-w"]
    assert (shown["why"], shown["by"], shown["reasons"]) == (words, "kube-scheduler", {})
    leads.append(True)
    assert viewer.look().pods["uid-w"]["by"] == "gpushare"


def test_gates_and_requests_that_cannot_be_met_are_said(bench, live):
    bench.add(waiting("g", gates=("a.b/c",)), waiting("r", "8Gi"))
    shown = Viewer(live).look().pods
    assert (shown["uid-g"]["state"], shown["uid-g"]["why"]) == ("gated", "scheduling gates: a.b/c")
    assert shown["uid-r"]["state"] == "refused"
    assert "not of bytes" in shown["uid-r"]["why"]


def test_reserves_ill_and_cordoned_cards_and_unreadable_nodes_are_shown(bench, live):
    made = node("n", 16, 16, unhealthy=[1])
    made.annotations["gpushare.aliyun.com/cordoned-cards"] = "GPU-0"
    viewer = Viewer(live).look()
    bench.cluster.node_changed(made)
    cards = viewer.look().nodes["n"]["devs"]
    assert [(c["health"], c["cordoned"]) for c in cards] == [
        ("healthy", True),
        ("unhealthy", False),
    ]
    made = node("n", 16)
    made.annotations["gpushare.aliyun.com/inventory"] = "{"
    bench.cluster.node_changed(made)
    assert "cannot be read" in viewer.look().nodes["n"]["problem"]


def test_no_event_is_long_however_many_nodes_there_are(bench, live):
    for i in range(400):
        bench.cluster.node_changed(node(f"n{i}", *[16] * 8))
    for _ in live.update():
        pass
    events = list(live.events(NEVER))
    assert len(events) > 10
    assert max(map(len, events)) < CHUNK_BYTES + 4096


def test_each_step_looks_at_one_node_or_one_pod(bench, live):
    for i in range(100):
        bench.cluster.node_changed(node(f"n{i}", 16))
        bench.add(waiting(f"w{i}"))
    assert sum(1 for _ in live.update()) == 101 + 100


@pytest.mark.parametrize("steps", range(5))
def test_what_a_look_that_was_given_up_did_not_come_to_is_seen_by_the_next(bench, live, steps):
    viewer = Viewer(live).look()
    for name in ("n1", "n2"):
        bench.cluster.node_changed(node(name, 16))
    bench.add(bound("a"), waiting("w"))
    given_up = live.update()
    for _ in range(steps):
        next(given_up, None)
    given_up.close()  # as when who looked for all has left
    viewer.look()
    assert (set(viewer.nodes), set(viewer.pods)) == ({"n", "n1", "n2"}, {"uid-w"})
    assert held(viewer) == [["a"], []]


_steps = st.lists(
    st.tuples(
        st.sampled_from(("bind", "wait", "delete", "ask", "node", "gone", "look", "late")),
        st.integers(0, 3),
        st.integers(0, 1),
    ),
    max_size=40,
)


@given(_steps)
def test_whoever_looks_when_and_how_often_sees_what_the_extender_knows(steps):
    bench = Bench(16, 16)
    cluster = bench.cluster
    live = Feed(cluster, lambda: True)
    first, second = Viewer(live), Viewer(live)
    for what, which, place in steps:
        name = f"p{which}"
        if what == "bind":
            cluster.pod_changed(bound(name, 4, f"GPU-{place}"))
        elif what == "wait":
            cluster.pod_changed(waiting(name, 4))
        elif what == "delete":
            cluster.pod_deleted(bound(name))
        elif what == "ask" and cluster.pod(f"uid-{name}"):
            cluster.pod_asked(cluster.pod(f"uid-{name}"), 1, [NO_ROOM][place:])
        elif what == "node":
            cluster.node_changed(node(f"n{which or ''}", 16, *[16] * place))
        elif what == "gone":
            cluster.node_deleted(node(f"n{which or ''}", 16))
        elif what == "look":
            first.look()
        else:
            second.look()
    fresh = Viewer(Feed(cluster, lambda: True)).look()
    for viewer in (first.look(), second.look()):
        assert (viewer.nodes, viewer.pods) == (fresh.nodes, fresh.pods)
