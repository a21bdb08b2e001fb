"""What people read of explain and what-if."""

import datetime as dt

import msgspec
import pytest

from gpushare.answers import explain, what_if
from gpushare.answers.explain import Asked
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_CORDONED_CARDS, ANNOTATION_RUNNING_ON
from gpushare.objects.model import PodCondition, PodStatus
from gpushare.objects.scheduling import SchedulingGate
from gpushare.process.time_slices import run_all
from gpusharectl.explain import lines as explained
from gpusharectl.explain.command import add_sentence, running, without_nodes
from gpusharectl.explain.lines import HIDDEN, Explained
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.pod_events import Event, Involved
from gpusharectl.what_if import lines as what_if_lines
from tests.builders import annotated, enforcing, node, pod

NOW = dt.datetime(2026, 1, 1, 0, 0, 0, tzinfo=dt.UTC)
NO_ROOM = "no single GPU has enough free aliyun.com/gpu-mem"
ENDS = ", terminating: its containers are killed in 20 s at the latest"
SAYS = "0/2 nodes are available: 2 Insufficient aliyun.com/gpu-mem."


def on(name, units, where, card, *, until=None):
    cards = {ANNOTATION_CARDS: f"GPU-{card}"}
    return annotated(pod(name, units, node=where), cards, deletion_timestamp=until)


@pytest.fixture
def seen():
    """N has a full card, one that somebody is about to leave, a cordoned and an ill one."""
    full = node("n", 16, 16, 16, 16, unhealthy=[3])
    nodes = [annotated(full, {ANNOTATION_CORDONED_CARDS: "GPU-2"}), node("small", 4)]
    pods = [on("stays", 11, "n", 0), on("goes", 16, "n", 1, until="2026-01-01T00:00:20Z")]
    return ListedCluster(nodes, pods)


def important(found):
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, priority=5))


def waits(units=6, **more):
    status = PodStatus(conditions=(PodCondition("PodScheduled", "False", "Unschedulable", SAYS),))
    return msgspec.structs.replace(pod("waits", units, **more), status=status)


def lines(seen, asks, *, asked=None, judged=True, verbose=False, **more):
    view = run_all(explain.explain(seen, asks, asked, now=100.0)) if judged else without_nodes(asks)
    found = {"running": running(asks), "outlook": None, "events": [], "not_shown": []}
    found |= {"from_extender": asked is not None, **more}
    whole = Explained(view, is_judged=judged, **found)
    return [line.plain for line in explained.draw(whole, NOW, verbose=verbose)]


SENTENCE = (
    "default/waits is Pending: requests 6 MiB on one GPU; the most free on one GPU that it may "
    "use is 5 MiB (n, GPU 0). It fits if it requests 5 MiB or less (`aliyun.com/gpu-mem: 5`), or "
    "when one of 2 pods ends, for example default/goes, which is being deleted."
)


def test_the_answer_is_one_sentence(seen):
    assert lines(seen, waits()) == [SENTENCE, "for each node and GPU, add --verbose"]


def test_kube_schedulers_message_is_there_only_if_it_adds_something(seen):
    def shown(message):
        conditions = (PodCondition("PodScheduled", "False", "Unschedulable", message),)
        status = PodStatus(conditions=conditions)
        return lines(seen, msgspec.structs.replace(waits(), status=status))

    known = (
        f"0/5 nodes are available: 1 {NO_ROOM}, 1 Insufficient aliyun.com/gpu-mem, "
        "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
        "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 1 node(s) didn't match "
        "Pod's node affinity/selector. no new claims to deallocate, preemption: "
        "0/5 nodes are available: 5 Preemption is not helpful for scheduling."
    )
    assert len(shown(known)) == 2
    for reason in ("node(s) didn't match pod anti-affinity rules", "node(s) had no volume"):
        message = f"0/3 nodes are available: 2 {NO_ROOM}, 1 {reason}."
        only_memory = SENTENCE.replace("It fits", "Its GPU memory fits")
        said = f"{only_memory} kube-scheduler last said: 1 {reason}."
        assert shown(message) == [said, "for each node and GPU, add --verbose"]


def test_an_extender_that_was_not_asked_is_named_only_if_a_scheduler_has_judged_the_pod(seen):
    text = "kube-scheduler has not asked this extender about it"
    spec = msgspec.structs.replace(waits(4).spec, scheduling_gates=(SchedulingGate("queue"),))
    gated = msgspec.structs.replace(waits(4), spec=spec)
    for asks, said in ((waits(4), True), (pod("waits", 4), False), (gated, False)):
        assert (text in lines(seen, asks, from_extender=True)) is said


def test_gpushares_other_events_are_shown_and_its_sentence_is_not_repeated(seen):
    events = ["GpushareWaiting: Pending: older", "GpushareUnplaced: counted everywhere"]
    assert lines(seen, waits(), events=events)[1:-1] == ["GpushareUnplaced: counted everywhere"]
    assert events[0] in lines(seen, waits(), events=events, verbose=True)


def test_each_card_says_what_is_free_what_is_needed_and_who_holds_it(seen):
    shown = lines(seen, waits(), verbose=True)
    assert shown[0] == SENTENCE
    at = shown.index(f"n  {NO_ROOM}")
    assert shown[at + 1 : at + 7] == [
        "  0  5 MiB of 16 MiB free, 6 MiB requested: too little free",
        "     11 MiB used by default/stays, priority 0",
        "  1  0 GiB of 16 MiB free, 6 MiB requested: too little free",
        f"     16 MiB used by default/goes, priority 0{ENDS}",
        "  2  16 MiB of 16 MiB free, 6 MiB requested: cordoned",
        "  3  16 MiB of 16 MiB free, 6 MiB requested: unhealthy",
    ]
    assert "  0  4 MiB of 4 MiB free, 6 MiB requested: too small" in shown
    assert "nodes with room on their GPUs: 0 of 2 nodes" in shown
    assert "it requests 6 MiB on one GPU (`aliyun.com/gpu-mem: 6`); its priority is 0" in shown


def test_amounts_are_gib(seen):
    large = ListedCluster([node("n", 80, unit_mib=1024)], [on("stays", 40, "n", 0)])
    shown = lines(large, waits(60), verbose=True)
    assert "  0  40 GiB of 80 GiB free, 60 GiB requested: too little free" in shown
    assert "     40 GiB used by default/stays, priority 0" in shown


def test_what_kube_scheduler_says_is_there_once(seen):
    shown = lines(seen, waits(), asked=Asked(30.0, 98.0, 1, {NO_ROOM: 1}), verbose=True)
    assert sum(SAYS in line for line in shown) == 1
    assert "kube-scheduler last asked 2 s ago; no node has fit for 70 s" in shown


def test_without_rights_the_sentence_is_that_of_the_pods_last_event(seen):
    shown = lines(seen, waits(), judged=False, not_shown=["why"])
    words = f"kube-scheduler last said: {SAYS}"
    assert shown == [
        f"default/waits is Pending: requests 6 units of GPU memory on one GPU; {words}",
        "why",
    ]
    view = without_nodes(waits())
    whole = Explained(view, False, False, None, None, [], ["why"])
    events = [
        Event(
            "GpushareWaiting",
            f"Pending: {each}.",
            Involved(waits().uid),
            f"2025-12-31T23:5{8 + n}:00Z",
        )
        for n, each in enumerate(("first", "requests 6 GiB"))
    ]
    add_sentence(whole, waits(), events)
    [first, *_] = explained.draw(whole, NOW, verbose=False)
    assert first.plain == "default/waits is Pending: requests 6 GiB. (60s ago)"


def test_a_user_of_one_namespace_reads_one_sentence_about_missing_rights(seen):
    missing = {"judged": False, "not_shown": ["nodes are not shown: why"], "lacks_rights": True}
    assert lines(seen, waits(), **missing)[1:] == [HIDDEN]
    assert lines(seen, waits(), verbose=True, **missing)[-1] == "nodes are not shown: why"


def test_a_request_that_nothing_can_grant_says_so_at_once(seen):
    [first, *_] = lines(seen, waits("1.5"))
    assert first.startswith(
        "default/waits is Pending: no node can grant its request: container main requests"
    )


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


def test_a_bound_pod_says_what_keeps_it_to_its_share():
    old = ("framework", "driver 580.95 cannot limit memory")
    nodes = [enforcing(node("new", 16), "driver"), enforcing(node("old", 16), *old)]
    known = ListedCluster(nodes, [on("a", 8, "new", 0), on("b", 8, "old", 0)])
    assert lines(known, on("a", 8, "new", 0))[2] == (
        "of containers that start on new now, memory is limited by the driver"
    )
    assert lines(known, on("b", 8, "old", 0))[2] == (
        "of containers that start on old now, memory is limited by frameworks: driver 580.95 "
        "cannot limit memory"
    )


def answer(seen, asks, count, *, evict=False):
    extras = msgspec.convert({"pod": {}}, what_if.Extras)
    question = what_if.Question(asks, count, evict)
    return run_all(what_if.answer_with_evictions(seen, question, extras))


def test_what_if_says_where_how_many_fit_and_who_would_have_to_go(seen):
    wants, higher = pod("w", 4), important(pod("w", 4))
    shown = [line.plain for line in what_if_lines.draw(answer(seen, higher, 3))]
    assert shown[:3] == ["2 of 3 fit", "  small, GPU 0: 1", "  n, GPU 0: 1"]
    at = shown.index("these pods are being deleted, which makes room on n, GPU 1:")
    assert shown[at + 1] == "  default/goes  16 MiB, priority 0, terminating"
    unchecked = shown[shown.index("not checked:") :]
    assert "  pods that are Pending already and would be scheduled first" in unchecked
    shown = [line.plain for line in what_if_lines.draw(answer(seen, wants, 1))]
    assert shown[:2] == ["it fits", "  small, GPU 0"]
    full = ListedCluster([node("n", 16)], [on("stays", 11, "n", 0)])
    shown = [line.plain for line in what_if_lines.draw(answer(full, higher, 2))]
    at = shown.index("evicting these pods would make room on n, GPU 0:")
    assert shown[at + 1] == "  default/stays  11 MiB, priority 0"


def test_what_if_says_who_would_be_evicted_for_all_pods_and_where_they_would_go(seen):
    def shown(count):
        found = answer(seen, important(pod("w", 4)), count, evict=True)
        return [line.plain for line in what_if_lines.draw(found, evict=True)]

    def placed(lines):
        places = lines[lines.index("places after that:") + 1 : lines.index("not checked:")]
        return sum(int(line.rpartition(": ")[2]) for line in places)

    ends = shown(6)
    assert "there is room when pods have ended that are being deleted" in ends
    assert placed(ends) == 6
    evicts = shown(9)
    at = evicts.index("evicting 1 pod of lower priority would make room:")
    assert evicts[at + 1] == "  n  default/stays  11 MiB, priority 0"
    assert placed(evicts) == 9
    assert "evicting pods of lower priority would not make room" in shown(10)


def test_names_of_others_pods_that_one_may_not_know_are_left_out(seen):
    view = run_all(explain.explain(seen, important(waits(16)), None, now=0.0))
    view = explain.without_names_of_others(view, "mine")
    whole = Explained(view, True, True, None, view.outlook, [], [])
    text = "\n".join(line.plain for line in explained.draw(whole, NOW, verbose=True))
    assert "11 MiB used by a pod in another namespace" in text
    assert "makes room on n, GPU 1:\n  a pod in another namespace  16 MiB, priority 0" in text
    assert "stays" not in text
    assert "goes" not in text
