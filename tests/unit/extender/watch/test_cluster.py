"""What the watch says becomes the ledger, whatever the order; what is odd is told, not believed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extender.watch.cluster import ClusterWatch
from gpushare.annotations import pod_annotations
from gpushare.contract import (
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INVENTORY,
    ANNOTATION_RUNNING_ON,
)
from gpushare.ledger.changes import Changes
from gpushare.placement import reasons
from tests.builders import legacy_node, node, pod, run_to_end
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import DELETED, bound, changed, restocked


def cluster():
    told = []
    made = ClusterWatch(1, lambda _, reason, text: told.append((reason, text)), FakeClock())
    return made, told


def used(made, name="n"):
    return [entry.used for entry in made.ledger.account(name).cards]


def test_a_terminating_pod_holds_its_card_until_it_is_gone():
    made, _ = cluster()
    made.node_changed(node("n", 16, 16))
    live = bound("a", 16)
    made.pod_changed(live)
    made.pod_changed(changed(live, DELETED))
    assert used(made) == [16, 0]
    made.pod_deleted(live)
    assert used(made) == [0, 0]


PRESET = {
    ANNOTATION_CARDS: "GPU-1",
    ANNOTATION_INDEX: "1",
    ANNOTATION_ASSUME_TIME: "1",
    ANNOTATION_RUNNING_ON: '{"main":{"GPU-1":8}}',
}


def test_what_a_user_presets_is_not_believed_when_another_scheduler_binds_the_pod():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    made.pod_changed(pod("a", 8, annotations=PRESET))
    landed = pod("a", 8, node="n", annotations=PRESET)
    for _ in range(2):
        made.pod_changed(landed)
        assert used(made) == [0, 0]
        assert [e.unplaced for e in made.ledger.account("n").cards] == [8, 8]
    assert [reason for reason, _ in told] == ["GpushareDecisionChanged", "GpushareUnplaced"]
    assert made.compare() == 0


def test_an_index_that_a_user_presets_is_not_believed_on_a_node_of_ours():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    unbound = pod("p", 8, annotations={ANNOTATION_INDEX: "1"})
    made.pod_changed(unbound)
    made.pod_changed(changed(unbound, spec={"node_name": "n"}))
    assert made.ledger.share(unbound.uid).is_unplaced
    assert "GpushareDecisionChanged" in [reason for reason, _ in told]


def test_an_index_from_before_the_binding_is_the_older_extenders_on_a_node_of_the_older_plugin():
    made, _ = cluster()
    made.node_changed(legacy_node("n", 32, 2))
    unbound = pod("p", 8, annotations={ANNOTATION_INDEX: "1", ANNOTATION_ASSUME_TIME: "7"})
    made.pod_changed(unbound)
    made.pod_changed(changed(unbound, spec={"node_name": "n"}))
    assert used(made) == [0, 8]


def test_a_list_that_shows_a_bound_pod_unbound_is_believed():
    made, _ = cluster()
    for name in ("n", "m"):
        made.node_changed(node(name, 16))
    unbound, was = pod("p", 16), bound("p", 16, "GPU-0")
    made.pod_changed(was)
    made.pod_changed(unbound)  # an event that is older
    assert used(made) == [16]
    run_to_end(made.replacing_pods([unbound]))  # etcd was restored from before the binding
    assert used(made) == [0]
    assert not made.pods.pod(was.uid).node
    run_to_end(made.replacing_pods([was]))
    run_to_end(made.replacing_pods([bound("p", 16, node="m")]))
    assert (used(made), used(made, "m")) == ([0], [16])


def test_pods_on_nodes_that_do_not_exist_leave_nothing_behind():
    made, _ = cluster()
    known = pod("p", 1, uid="known")  # its kind of request is remembered
    made.pod_changed(known)
    made.pod_deleted(known)
    before = kept(made)
    for number in range(100):
        gone = pod("p", 1, uid=f"u{number}", node=f"no-such-node-{number}")
        made.pod_changed(gone)
        made.pod_deleted(gone)
    assert kept(made) == before


def test_a_pod_is_found_by_its_name_until_it_is_gone():
    made, _ = cluster()
    first, second = pod("p", 1, uid="1"), pod("p", 1, uid="2")
    made.pod_changed(first)
    made.pod_changed(second)
    made.pod_deleted(first)
    assert made.pods.named("default", "p").uid == "2"
    made.pod_deleted(second)
    assert made.pods.named("default", "p") is None


def test_what_a_user_presets_is_nothing_beside_what_our_binding_writes():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    made.pod_changed(pod("a", 8, annotations=PRESET))
    ours = {**PRESET, ANNOTATION_ASSUME_TIME: "2", ANNOTATION_RUNNING_ON: ""}
    made.pod_changed(pod("a", 8, node="n", annotations=ours))
    assert used(made) == [0, 8]
    assert not told


def test_pods_of_the_older_extender_are_counted_card_by_card():
    made, told = cluster()
    made.pod_changed(pod("a", 8138, node="n", annotations={ANNOTATION_INDEX: "1"}))
    made.pod_changed(pod("b", 4069, node="n", annotations={ANNOTATION_INDEX: "seven"}))
    assert not told  # the node is not known yet, so nothing can be said of its pods
    made.node_changed(legacy_node("n", "32552", "2"))
    account = made.ledger.account("n")
    assert [(e.used, e.unplaced, e.free) for e in account.cards] == [
        (0, 4069, 12207),
        (8138, 4069, 4069),
    ]
    assert [reason for reason, _ in told] == ["GpushareUnplaced"]
    assert "seven" in told[0][1]


def test_a_pod_keeps_its_card_when_the_node_moves_to_our_plugin():
    made, _ = cluster()
    made.node_changed(legacy_node("n", "32", "2"))
    made.pod_changed(pod("a", 8, node="n", annotations={ANNOTATION_INDEX: "1"}))
    made.node_changed(node("n", 16, 16))
    assert made.ledger.share("uid-a").cards == ("GPU-1",)
    assert made.compare() == 0


def test_an_inventory_that_cannot_be_read_takes_no_new_pod_and_forgets_no_old_one():
    made, told = cluster()
    made.node_changed(node("n", 16))
    made.pod_changed(bound("a", 8, "GPU-0"))
    made.node_changed(changed(node("n", 16), {"annotations": {ANNOTATION_INVENTORY: "{"}}))
    wanted = pod_annotations.request_of(pod(units=1))
    assert made.state.why_not("n", wanted, pod("x")) is reasons.UNREADABLE
    assert [reason for reason, _ in told] == ["GpushareInventoryUnreadable"]
    made.node_changed(node("n", 16))
    assert used(made) == [8]
    assert made.state.why_not("n", wanted, pod("x")) is None


def test_a_cordon_that_cannot_be_read_closes_the_node_and_moves_no_pod():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    made.pod_changed(bound("a", 8, "GPU-0"))
    wanted = pod_annotations.request_of(pod(units=1))
    for text, reason in (("GPU-5", reasons.UNREADABLE_CORDON), ("GPU-1", None), ("", None)):
        changed = node("n", 16, 16)
        changed.annotations[ANNOTATION_CORDONED_CARDS] = text
        made.node_changed(changed)
        assert made.state.why_not("n", wanted, pod("x")) is reason
        assert used(made) == [8, 0]
        assert made.compare() == 0
    assert [reason for reason, _ in told] == ["GpushareCordonUnreadable"]
    made.node_deleted(node("n", 1))
    assert made.state.why_not("n", wanted, pod("x")) is reasons.NO_CARDS


def test_a_node_whose_plugin_leaves_takes_no_pod_until_the_next_one_serves():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    made.pod_changed(bound("a", 8, "GPU-0"))
    wanted = pod_annotations.request_of(pod(units=1))
    for is_leaving, reason in ((True, reasons.LEAVING), (False, None)):
        made.node_changed(restocked(node("n", 16, 16), is_leaving=is_leaving))
        assert made.state.why_not("n", wanted, pod("x")) is reason
        assert used(made) == [8, 0]
        assert made.state.unreadable == {}
    assert told == []


def test_a_changed_decision_is_reported_once_and_not_believed():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    made.pod_changed(bound("a", 8, "GPU-0"))
    for card in ("GPU-1", "GPU-1", "rubbish"):
        made.pod_changed(bound("a", 8, card))
        assert used(made) == [8, 0]
    assert [reason for reason, _ in told] == ["GpushareDecisionChanged"]


def test_a_running_on_that_contradicts_the_decision_is_reported_and_moves_nothing():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    made.pod_changed(bound("a", 8, "GPU-0"))
    forged = {ANNOTATION_CARDS: "GPU-0", ANNOTATION_RUNNING_ON: '{"main":{"GPU-1":1}}'}
    made.pod_changed(pod("a", 8, node="n", annotations=forged))
    assert used(made) == [8, 0]
    assert [reason for reason, _ in told] == ["GpushareDecisionChanged"]


def test_an_unplaced_pod_is_told_once_whichever_was_listed_first():
    for pods_first in (True, False):
        made, told = cluster()
        if pods_first:
            run_to_end(made.replacing_pods([pod("odd", 3, node="n")]))
        run_to_end(made.replacing_nodes([node("n", 16)]))
        run_to_end(made.replacing_pods([pod("odd", 3, node="n")]))
        made.node_changed(node("n", 16, 16))
        assert [reason for reason, _ in told] == ["GpushareUnplaced"]


def test_a_pod_that_asks_nothing_of_us_is_not_kept():
    made, _ = cluster()
    made.pod_changed(pod("a", None, node="n"))
    assert made.pods.pod("uid-a") is None


def test_a_list_that_is_taken_in_pod_by_pod_is_right_at_every_step():
    made, _ = cluster()
    made.node_changed(node("n", 16))
    made.pod_changed(bound("gone", 8, "GPU-0"))
    made.pod_changed(bound("stays", 4, "GPU-0"))
    sums = []
    for _ in made.replacing_pods([bound("stays", 4, "GPU-0"), bound("new", 3, "GPU-0")]):
        sums += used(made)
        assert made.compare() == 0
    assert sums == [12, 12, 4, 4, 7]


class World:
    """What the API server has, beside the cluster that hears of it."""

    def __init__(self):
        self.cluster, _ = cluster()
        self.pods, self.nodes = {}, {}

    def new(self, number):
        name = f"p{number}"
        self.pods.setdefault(name, pod(name, number))
        self.cluster.pod_changed(self.pods[name])

    def bound(self, number):
        name = f"p{number}"
        self.pods[name] = bound(name, number, f"GPU-{number % 3}")
        self.cluster.pod_changed(self.pods[name])

    def stale(self, number):
        """Say again what was true before the pod was bound."""
        if self.pods.get(f"p{number}", pod("x")).node:
            self.cluster.pod_changed(pod(f"p{number}", number))

    def ended(self, number):
        self.pods.pop(f"p{number}", None)
        self.cluster.pod_changed(bound(f"p{number}", number, "GPU-0", phase="Failed"))

    def deleted(self, number):
        self.pods.pop(f"p{number}", None)
        self.cluster.pod_deleted(pod(f"p{number}", number))

    def node_came(self, number):
        self.nodes["n"] = node("n", 16, 16) if number % 2 else legacy_node("n", 32, 2)
        self.cluster.node_changed(self.nodes["n"])

    def node_went(self, _):
        self.nodes.clear()
        self.cluster.node_deleted(node("n", 1))

    def listed(self, _):
        run_to_end(self.cluster.replacing_pods(list(self.pods.values())))
        run_to_end(self.cluster.replacing_nodes(list(self.nodes.values())))


EVENTS = st.sampled_from([each for name, each in vars(World).items() if name[0] != "_"])


@given(st.lists(st.tuples(EVENTS, st.integers(0, 5)), max_size=40), st.integers(1, 2))
def test_the_ledger_equals_its_recomputation_after_any_events(events, times):
    world = World()
    for event, number in events:
        for _ in range(times):
            event(world, number)
    assert world.cluster.compare() == 0
    fresh, _ = cluster()
    run_to_end(fresh.replacing_nodes(list(world.nodes.values())))
    run_to_end(fresh.replacing_pods(list(world.pods.values())))
    assert world.cluster.ledger.account("n") == fresh.ledger.account("n")
    assert {s.pod_uid: s for s in world.cluster.ledger.shares()} == {
        s.pod_uid: s for s in fresh.ledger.shares()
    }


def test_a_list_is_looked_at_for_what_has_another_version_than_what_is_known():
    made, told = cluster()
    made.node_changed(node("n", 16, 16))
    first, second, moved = bound("a", 8), bound("b", 4, "GPU-1"), bound("b", 4, "GPU-0")
    listed = [changed(first, {"resource_version": "5"}), changed(second, {"resource_version": "6"})]
    run_to_end(made.replacing_pods(listed))
    run_to_end(made.replacing_pods(listed))
    assert used(made) == [8, 4]
    run_to_end(made.replacing_pods([listed[0], changed(moved, {"resource_version": "7"})]))
    assert used(made) == [8, 4]  # a decision does not change
    assert [reason for reason, _ in told] == ["GpushareDecisionChanged"]
    run_to_end(made.replacing_pods(listed[:1]))
    assert used(made) == [8, 0]


def test_nodes_and_pods_that_come_and_go_leave_nothing_behind():
    made, _ = cluster()
    sizes = []
    for number in range(3):
        for each in range(20):
            name = f"n{number}-{each}"
            made.node_changed(node(name, 8))
            made.scheduling.filter(pod("asks", 1), [name])
            pods = [bound(f"{name}-{i}", 8, node=name) for i in range(2)]
            for one in (*pods, pod(f"{name}-odd", 8, node=name)):
                made.pod_changed(one)
            made.overbooking.check()
            made.node_deleted(node(name, 8))
            for one in [made.pods.pod(uid) for uid in made.pods.uids()]:
                if one is not None:
                    made.pod_deleted(one)
            made.overbooking.check()
            made.scheduling.filter(pod("asks", 1), [name])
        sizes.append(kept(made))
    assert sizes[0] == sizes[1] == sizes[2]


def kept(made, depth=4):
    """How many things each table of an object, or of one within it, has; Changes has a bound."""
    found = {}
    fields = getattr(made, "__dict__", {}) if depth else {}
    for name, value in fields.items():
        if isinstance(value, dict | set | list) and not isinstance(value, Counter):
            found[name] = len(value)
        elif type(value).__module__[:8] in {"extender", "gpushare"} and type(value) is not Changes:
            found |= {f"{name}.{key}": size for key, size in kept(value, depth - 1).items()}
    return found
