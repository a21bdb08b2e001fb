"""What people read of explain and what-if."""

import datetime as dt

import msgspec
import pytest

from gpushare.answers import explain, what_if
from gpushare.answers.explain import Asked
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_CORDONED_CARDS, ANNOTATION_RUNNING_ON
from gpushare.objects.model import PodCondition, PodStatus
from gpushare.process.time_slices import run_all
from gpusharectl.explain import lines as explained
from gpusharectl.explain.command import running, without_nodes
from gpusharectl.explain.lines import Explained
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.what_if import lines as what_if_lines
from tests.builders import annotated, node, pod

NOW = dt.datetime(2026, 1, 1, 0, 0, 0, tzinfo=dt.UTC)
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"
ENDS = ", terminating: its containers are killed in 20 s at the latest"
SAYS = "0/2 nodes are available: 2 of them are full."


def on(name, units, where, card, *, until=None):
    cards = {ANNOTATION_CARDS: f"GPU-{card}"}
    return annotated(pod(name, units, node=where), cards, deletion_timestamp=until)


def with_room_for_pods(found):
    amounts = {**found.allocatable, "pods": "9"}
    status = msgspec.structs.replace(found.status, allocatable=amounts)
    return msgspec.structs.replace(found, status=status)


@pytest.fixture
def seen():
    """N has a full card, one that somebody is about to leave, a cordoned and an ill one."""
    full = node("n", 16, 16, 16, 16, unhealthy=[3])
    nodes = [annotated(full, {ANNOTATION_CORDONED_CARDS: "GPU-2"}), node("small", 4)]
    pods = [on("stays", 11, "n", 0), on("goes", 16, "n", 1, until="2026-01-01T00:00:20Z")]
    return ListedCluster([with_room_for_pods(each) for each in nodes], pods)


def important(found):
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, priority=5))


def waits(units=6, **more):
    status = PodStatus(conditions=(PodCondition("PodScheduled", "False", "Unschedulable", SAYS),))
    return msgspec.structs.replace(pod("waits", units, **more), status=status)


def lines(seen, asks, *, asked=None, judged=True, **more):
    view = run_all(explain.explain(seen, asks, asked, now=100.0)) if judged else without_nodes(asks)
    found = {"running": running(asks), "outlook": None, "events": [], "not_shown": [], **more}
    whole = Explained(view, from_extender=asked is not None, is_judged=judged, **found)
    return [line.plain for line in explained.draw(whole, NOW)]


def test_each_card_says_what_is_free_what_is_needed_and_who_holds_it(seen):
    shown = lines(seen, waits())
    at = shown.index(f"n  {NO_ROOM}")
    assert shown[at + 1 : at + 7] == [
        "  0   5 of 16 free, needs 6: too little free",
        "     11 used by default/stays, priority 0",
        "  1   0 of 16 free, needs 6: too little free",
        f"     16 used by default/goes, priority 0{ENDS}",
        "  2  16 of 16 free, needs 6: cordoned",
        "  3  16 of 16 free, needs 6: unhealthy",
    ]
    assert "  0  4 of 4 free, needs 6: too small" in shown
    assert "the GPUs of 0 of 2 nodes with shared GPUs have room:" in shown


def test_what_kube_scheduler_says_is_there_once(seen):
    shown = lines(seen, waits(), asked=Asked(30.0, 98.0, 1, {NO_ROOM: 1}))
    assert shown[0].startswith("default/waits is Pending: does not fit on the one node")
    assert shown[0].endswith("did not ask about 1 node with shared GPUs")
    assert sum(SAYS in line for line in shown) == 1
    assert "kube-scheduler last asked 2 s ago; no node has fit for 70 s" in shown


def test_without_an_extender_and_without_rights_the_pods_own_words_are_left(seen):
    shown = lines(seen, waits(), judged=False, events=["GpushareWaiting: x"], not_shown=["why"])
    assert shown == [
        "default/waits is Pending",
        "it requests 6 on one GPU; its priority is 0",
        f"PodScheduled is False (Unschedulable): {SAYS}",
        "GpushareWaiting: x",
        "why",
    ]


def test_a_request_that_nothing_can_grant_says_so_at_once(seen):
    [first, *_] = lines(seen, waits("1.5"))
    assert first.startswith("default/waits fits on no node: container main asks for")


def test_a_bound_pod_is_where_it_was_decided_and_where_it_runs(seen):
    stays = on("stays", 11, "n", 0)
    assert lines(seen, stays) == [
        "default/stays is bound to node n",
        "decided: GPU 0 (GPU-0) of n",
        "the node's plugin has not reported yet that it runs",
    ]
    runs = annotated(stays, {ANNOTATION_RUNNING_ON: '{"main":{"GPU-0":11}}'})
    assert lines(seen, runs)[-1] == "it runs there: the node's plugin reports GPU-0"
    elsewhere = annotated(stays, {ANNOTATION_RUNNING_ON: '{"main":{"GPU-1":11}}'})
    assert "running-on has GPU-1, which was not decided" in lines(seen, elsewhere)[-1]


def answer(seen, asks, count):
    extras = msgspec.convert({"pod": {}}, what_if.Extras)
    return run_all(what_if.answer(seen, what_if.Question(asks, count), extras))


def test_what_if_says_where_how_many_fit_and_who_would_have_to_go(seen):
    wants, higher = pod("w", 4), important(pod("w", 4))
    shown = [line.plain for line in what_if_lines.draw(answer(seen, higher, 3))]
    assert shown[:3] == ["2 of 3 fit", "  small, GPU 0: 1", "  n, GPU 0: 1"]
    at = shown.index("evicting these pods would make room on n, GPU 0:")
    assert shown[at + 1] == "  default/stays  11, priority 0"
    unchecked = shown[shown.index("not checked:") :]
    assert "  pods that are Pending already and would be scheduled first" in unchecked
    shown = [line.plain for line in what_if_lines.draw(answer(seen, wants, 1))]
    assert shown[:2] == ["it fits", "  small, GPU 0"]


def test_names_of_others_pods_that_one_may_not_know_are_left_out(seen):
    view = run_all(explain.explain(seen, important(waits(16)), None, now=0.0))
    view = explain.without_names_of_others(view, "mine")
    whole = Explained(view, True, True, None, view.outlook, [], [])
    text = "\n".join(line.plain for line in explained.draw(whole, NOW))
    assert "11 used by a pod in another namespace" in text
    assert "would make room on n, GPU 0:\n  a pod in another namespace  11, priority 0" in text
    assert "stays" not in text
