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
from tests.builders import node, pod

NOW = dt.datetime(2026, 1, 1, 0, 0, 0, tzinfo=dt.UTC)
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"
ENDS = ", terminating: its containers are killed in 20 s at the latest"
SAYS = "0/2 nodes are available: 2 of them are full."


def on(name, units, where, card, *, until=None):
    made = pod(name, units, node=where, annotations={ANNOTATION_CARDS: f"GPU-{card}"})
    meta = msgspec.structs.replace(made.metadata, deletion_timestamp=until)
    return msgspec.structs.replace(made, metadata=meta)


def with_room_for_pods(found):
    amounts = {**found.allocatable, "pods": "9"}
    status = msgspec.structs.replace(found.status, allocatable=amounts)
    return msgspec.structs.replace(found, status=status)


@pytest.fixture
def seen():
    """N has a full card, one that somebody is about to leave, a cordoned and an ill one."""
    full = node("n", 16, 16, 16, 16, unhealthy=[3])
    annotations = {**full.annotations, ANNOTATION_CORDONED_CARDS: "GPU-2"}
    meta = msgspec.structs.replace(full.metadata, annotations=annotations)
    pods = [on("stays", 11, "n", 0), on("goes", 16, "n", 1, until="2026-01-01T00:00:20Z")]
    nodes = [msgspec.structs.replace(full, metadata=meta), node("small", 4)]
    return ListedCluster([with_room_for_pods(each) for each in nodes], pods)


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
    said = {**stays.annotations, ANNOTATION_RUNNING_ON: '{"main":{"GPU-0":11}}'}
    meta = msgspec.structs.replace(stays.metadata, annotations=said)
    runs = msgspec.structs.replace(stays, metadata=meta)
    assert lines(seen, runs)[-1] == "it runs there: the node's plugin reports GPU-0"
    said[ANNOTATION_RUNNING_ON] = '{"main":{"GPU-1":11}}'
    meta = msgspec.structs.replace(stays.metadata, annotations=said)
    elsewhere = msgspec.structs.replace(stays, metadata=meta)
    assert "running-on has GPU-1, which was not decided" in lines(seen, elsewhere)[-1]


def answer(seen, asks, count):
    extras = msgspec.convert({"pod": {}}, what_if.Extras)
    return run_all(what_if.answer(seen, what_if.Question(asks, count), extras))


def test_what_if_says_where_how_many_fit_and_who_would_have_to_go(seen):
    wants = pod("w", 4)
    higher = msgspec.structs.replace(wants, spec=msgspec.structs.replace(wants.spec, priority=5))
    shown = [line.plain for line in what_if_lines.draw(answer(seen, higher, 3))]
    assert shown[:3] == ["2 of 3 fit", "  small, GPU 0: 1", "  n, GPU 0: 1"]
    at = shown.index("evicting these pods would make room on n, GPU 0:")
    assert shown[at + 1] == "  default/stays  11, priority 0"
    unchecked = shown[shown.index("not checked:") :]
    assert "  pods that are Pending already and would be scheduled first" in unchecked
    assert [line.plain for line in what_if_lines.draw(answer(seen, wants, 1))][:2] == [
        "it fits",
        "  small, GPU 0",
    ]


def test_names_of_others_pods_that_one_may_not_know_are_left_out(seen):
    asks = waits(16)
    asks = msgspec.structs.replace(asks, spec=msgspec.structs.replace(asks.spec, priority=5))
    view = explain.without_names_of_others(
        run_all(explain.explain(seen, asks, None, now=0.0)), "mine"
    )
    whole = Explained(
        view,
        from_extender=True,
        is_judged=True,
        running=None,
        outlook=view.outlook,
        events=[],
        not_shown=[],
    )
    text = "\n".join(line.plain for line in explained.draw(whole, NOW))
    assert "11 used by a pod in another namespace" in text
    assert "would make room on n, GPU 0:\n  a pod in another namespace  11, priority 0" in text
    assert "stays" not in text
