"""explain: why a pod waits, by the decision that filter makes, node by node and card by card."""

import asyncio
import json

import pytest

from extender.decisions.pod_records import AGAIN_SECONDS
from extender.page.cluster_feed import ClusterFeed
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_INVENTORY,
    ANNOTATION_NODE_POLICY,
    RESOURCE_COUNT,
)
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.live_page.feed import NEVER
from gpushare.objects.model import Container, PodCondition, Resources
from gpushare.objects.scheduling import SchedulingGate, Taint
from gpushare.placement import reasons
from gpushare.process import time_slices
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from localcluster.wait import patient
from tests.builders import node, pod, run_to_end
from tests.unit.extender.scripted import DELETED, PREFIX, Bench, bound, changed, wire_pod

SAYS = "0/3 nodes are available: 2 Insufficient aliyun.com/gpu-mem."


@pytest.fixture
async def bench():
    """n: cards of 16, 16 and an ill one; small: a card of 4; tainted: an empty card of 16."""
    made = Bench()
    made.cluster.node_changed(node("n", 16, 16, 16, unhealthy=[2]))
    made.cluster.node_changed(node("small", 4))
    taints = (Taint("k", "NoSchedule"),)
    made.cluster.node_changed(changed(node("tainted", 16), spec={"taints": taints}))
    conditions = (PodCondition("PodScheduled", "False", "Unschedulable", SAYS),)
    status = {"nominated_node_name": "n", "conditions": conditions}
    ending, stays = changed(bound("ending", 10), DELETED), bound("stays", 12, "GPU-1")
    made.add(ending, stays, changed(pod("waits", 8), status=status))
    return made


async def explain(client, name, query=""):
    response = await client.get(f"{PREFIX}/explain/default/{name}{query}")
    assert response.status == 200, await response.text()
    return await response.json()


async def filtered(client, name, *nodes):
    """A filter call about a pod that the cluster knows."""
    body = {"Pod": wire_pod(name=name), "NodeNames": list(nodes)}
    response = await client.post(f"{PREFIX}/filter", json=body)
    assert response.status == 200
    return await response.json()


async def test_every_card_says_what_it_has_who_holds_it_and_why_not(client, bench):
    await filtered(client, "waits", "n", "small")
    bench.time.now += 3
    found = await explain(client, "waits")
    assert (found["state"], found["uid"]) == ("waiting", "uid-waits")
    assert found["asks"] == {"units": 8, "cards": 1, "unitsPerCard": 8}
    assert found["scheduled"] == {"status": "False", "reason": "Unschedulable", "message": SAYS}
    assert found["nominatedNode"] == "n"
    assert found["places"] == []
    shown = {each["name"]: each for each in found["nodes"]}
    assert [each["name"] for each in found["nodes"]] == ["n", "small", "tainted"]
    assert shown["n"]["why"] == reasons.NO_ROOM.text
    first, second, ill = shown["n"]["cards"]
    assert (first["free"], first["needed"], first["fits"]) == (6, 8, False)
    assert first["why"] == reasons.NO_ROOM.text
    assert first["pods"] == [
        {
            "namespace": "default",
            "name": "ending",
            "units": 10,
            "priority": 0,
            "terminating": True,
            "until": "2026-01-01T00:00:00Z",
        }
    ]
    assert (second["free"], second["pods"][0]["terminating"]) == (4, False)
    assert (ill["health"], ill["why"]) == ("unhealthy", reasons.UNHEALTHY.text)
    assert shown["small"]["cards"][0]["why"] == reasons.TOO_LARGE.text
    assert found["reasons"] == {reasons.NO_ROOM.text: 1, reasons.TOO_LARGE.text: 1}


async def test_what_kube_scheduler_asked_is_kept_and_what_it_never_offered_is_counted(
    client, bench
):
    await filtered(client, "waits", "n", "small", "a-cpu-node")
    bench.time.now += 3
    found = await explain(client, "waits")
    assert found["asked"] == {
        "secondsAgo": 3.0,
        "waitingSeconds": 3.0,
        "offered": 3,
        "neverOffered": 1,
        "reasons": {
            reasons.NO_ROOM.text: 1,
            reasons.TOO_LARGE.text: 1,
            reasons.NO_CARDS.text: 1,
        },
    }
    assert found["fittingNodes"] == 1
    assert found["forbidden"] == {"taint k:NoSchedule is not tolerated": 1}
    # The node that was not offered has room, and its taint says why it was not.
    [tainted] = [each for each in found["nodes"] if each["name"] == "tainted"]
    assert (tainted["fits"], tainted["why"]) == (True, "")
    assert tainted["forbidden"] == ["taint k:NoSchedule is not tolerated"]


async def test_explain_and_filter_decide_alike(client, bench):
    found = await explain(client, "waits")
    for each in found["nodes"]:
        assert each["fits"] is any(card["fits"] for card in each["cards"])
    sorted_by_filter = await filtered(client, "waits", "n", "small", "tainted")
    fitting = [each["name"] for each in found["nodes"] if each["fits"]]
    assert sorted_by_filter["NodeNames"] == fitting == ["tainted"]
    whys = {each["name"]: each["why"] for each in found["nodes"] if not each["fits"]}
    failed = sorted_by_filter["FailedNodes"] | sorted_by_filter["FailedAndUnresolvableNodes"]
    assert whys == failed


async def test_a_waiting_pod_comes_with_what_would_help_as_what_if_answers(client, bench):
    found = await explain(client, "waits", "?nodes=0")
    response = await client.post(f"{PREFIX}/what-if", json={"pod": wire_pod()})
    answer = await response.json()
    del answer["notChecked"], found["outlook"]["notChecked"]
    assert found["outlook"] == answer
    assert "outlook" not in await explain(client, "stays")


SENTENCE = (
    "requests 8 MiB on one GPU; the most free on one GPU that it may use is 6 MiB (n, GPU 0); 1 "
    "node with room is excluded: taint k:NoSchedule is not tolerated. It fits if it requests 6 "
    "MiB or less (`aliyun.com/gpu-mem: 6`), or when one of 2 pods ends, for example {named}. "
    "kube-scheduler is making room for it on n."
)
SOON = "default/ending, which is being deleted"


async def test_the_reason_is_one_sentence_even_if_kube_scheduler_never_asked(client):
    found = await explain(client, "waits")
    assert found["asked"] is None
    assert found["says"] == SENTENCE.format(named=SOON)
    why = found["pending"]
    assert (why["cause"], why["needsUnits"], why["needsMiB"], why["GPUs"]) == ("room", 8, 8, 1)
    assert why["mostFree"] == {"MiB": 6, "node": "n", "cards": [0], "limited": True}
    assert why["fitsIf"] == {"units": 6, "MiB": 6}
    assert why["barred"] == {"taint k:NoSchedule is not tolerated": 1}
    assert [each["name"] for each in why["ends"]] == ["ending", "stays"]
    assert found["unitMiB"] == 1


async def test_the_event_the_page_and_explain_say_the_same(client, bench):
    await filtered(client, "waits", "n")
    bench.time.now += 3
    run_to_end(bench.cluster.report_pending())
    [(_, _, event)] = bench.told
    feed = ClusterFeed(bench.cluster.state, lambda: True)
    run_to_end(feed.update())
    told = b"".join(feed.events(NEVER)).decode()
    said = (await explain(client, "waits"))["says"]
    assert event == f"Pending: {said}"
    assert json.dumps({"why": said})[1:-1].replace(": ", ":", 1) in told


async def test_another_event_follows_when_the_quota_changes(client, bench):
    namespaces, texts = bench.cluster.state.namespaces, []
    for quota in ("4", "6"):
        namespaces.put(Namespace("default", quota=parse(quota)))
        await filtered(client, "waits", "n")
        bench.time.now += AGAIN_SECONDS + 3
        run_to_end(bench.cluster.report_pending())
        texts.append(bench.told[-1][2])
    assert "and the whole quota of namespace default is 4 MiB" in texts[0]
    assert "and the whole quota of namespace default is 6 MiB" in texts[1]


async def test_an_event_names_no_pod_of_another_namespace(client, bench):
    bench.cluster.node_deleted(node("tainted", 16))
    bench.cluster.pod_deleted(bound("stays", 12))
    bench.cluster.pod_deleted(bound("ending", 10))
    for card in ("GPU-0", "GPU-1"):
        secret = bound(f"secret-{card}", 9, card)
        bench.cluster.pod_changed(changed(secret, {"namespace": "other"}))
    await filtered(client, "waits", "n")
    bench.time.now += 3
    run_to_end(bench.cluster.report_pending())
    assert "for example other/secret-GPU-0" in (await explain(client, "waits"))["says"]
    [(_, _, event)] = bench.told
    assert "secret" not in event
    assert "or when one of 2 pods ends." in event


async def test_a_pod_that_fits_and_is_not_bound_yet_says_that(client, bench):
    bench.cluster.node_changed(node("tainted", 16))
    found = await explain(client, "waits")
    assert found["says"].startswith(
        "its GPU memory fits now (tainted, GPU 0), but kube-scheduler has not placed it there yet; "
        f"it last said: {SAYS}"
    )
    assert found["pending"]["place"]["node"] == "tainted"


async def test_a_bound_pod_says_where_it_is(client):
    found = await explain(client, "stays")
    assert (found["state"], found["says"]) == ("bound", "bound to node n")
    assert found["places"] == [
        {"node": "n", "cards": [1], "uuids": ["GPU-1"], "certain": True, "problem": "", "limit": ""}
    ]
    assert found["nodes"] == []


async def test_a_bound_pod_whose_card_cannot_be_told_says_why(client, bench):
    bench.add(pod("odd", 3, node="n", annotations={ANNOTATION_CARDS: "gone"}))
    found = await explain(client, "odd")
    assert "is unknown" in found["says"]
    assert "not in the node" in found["places"][0]["problem"]
    waiting = await explain(client, "waits")
    [shown] = [each for each in waiting["nodes"] if each["name"] == "n"]
    assert [each["name"] for each in shown["unplaced"]] == ["odd"]


async def test_a_pod_whose_binding_is_under_way_says_which_cards_are_reserved(client, bench):
    bench.add(pod("new", 4))
    await bench.lose(pod("new", 4))
    found = await explain(client, "new")
    assert found["state"] == "binding"
    assert [(each["node"], each["certain"]) for each in found["places"]] == [("n", False)]


async def test_gates_and_an_end_are_named(client, bench):
    gated = changed(pod("gated", 8), spec={"scheduling_gates": (SchedulingGate("queue"),)})
    bench.add(gated)
    found = await explain(client, "gated")
    assert found["state"] == "gated"
    assert "queue" in found["says"]
    bench.add(changed(gated, DELETED))
    assert (await explain(client, "gated"))["state"] == "ending"


@pytest.mark.parametrize("units", ["0", "8Gi", "-1"])
async def test_an_amount_that_cannot_be_granted_is_said_with_its_text(client, bench, units):
    bench.add(pod("wrong", units))
    found = await explain(client, "wrong")
    assert found["state"] == "refused"
    assert "gpu-mem" in found["says"]
    assert found["asks"] is None


async def test_a_policy_that_the_configuration_lacks_is_a_refusal_here_too(client, bench):
    bench.add(pod("shaped", 1, annotations={ANNOTATION_NODE_POLICY: "shape"}))
    assert not bench.cluster.scheduling.filter(bench.cluster.pods.pod("uid-shaped"), ["n"]).fitting
    found = await explain(client, "shaped")
    assert found["state"] == "refused"
    assert "has none: write binpack or spread" in found["says"]


async def test_a_pod_that_requests_only_gpu_count_gets_the_fix(client, bench):
    asks = Resources({RESOURCE_COUNT: "1"}, {RESOURCE_COUNT: "1"})
    bench.add(pod("count", containers=[Container("main", asks)]))
    found = await explain(client, "count")
    assert found["state"] == "refused"
    assert "cannot be requested as a resource" in found["says"]


async def test_an_unknown_pod_and_one_without_gpu_memory_are_404_with_a_text(client, bench):
    bench.add(pod("cpu", None))
    for name in ("nobody", "cpu", "x" * 300):
        response = await client.get(f"{PREFIX}/explain/default/{name}")
        text = await response.text()
        assert response.status == 404
        assert "does not request it" in text
        assert len(text) < 400
    assert (await client.get(f"{PREFIX}/explain/other/waits")).status == 404


@pytest.mark.parametrize("path", ["explain", "explain/default", "explain/default/a/b"])
async def test_a_path_that_names_no_pod_is_404(client, path):
    assert (await client.get(f"{PREFIX}/{path}")).status == 404


@pytest.mark.parametrize("query", ["-1", "x", "1001", "", "٣", "1e3"])
async def test_a_number_of_nodes_that_is_none_is_refused(client, query):
    response = await client.get(f"{PREFIX}/explain/default/waits", params={"nodes": query})
    assert response.status == 400
    assert "from 0 to 1000" in await response.text()


async def test_so_many_nodes_are_shown_as_are_asked_for(client):
    found = await explain(client, "waits", "?nodes=1")
    assert [each["name"] for each in found["nodes"]] == ["n"]
    assert found["nodesLeftOut"] == 2
    found = await explain(client, "waits", "?nodes=0")
    assert (found["nodes"], found["nodesLeftOut"]) == ([], 3)


async def test_a_node_whose_cards_cannot_be_read_is_shown_as_such(client, bench):
    broken = {"annotations": {ANNOTATION_INVENTORY: "{"}}
    bench.cluster.node_changed(changed(node("n", 16), broken))
    found = await explain(client, "waits")
    [shown] = [each for each in found["nodes"] if each["name"] == "n"]
    assert (shown["why"], shown["cards"]) == (reasons.UNREADABLE.text, [])


async def test_of_two_pods_of_a_name_the_one_that_came_last_is_meant(client, bench):
    bench.add(bound("twin", 8, uid="old"))
    bench.cluster.pod_changed(pod("twin", 8, uid="new"))
    assert (await explain(client, "twin"))["uid"] == "new"


async def test_plans_of_others_are_shown_on_the_card(client, bench):
    ledger = bench.cluster.ledger
    ledger.keep(Hold("gang", (Slot("tainted", ("GPU-0",), 6),), 1e9))
    ledger.keep(Claim("other", (Slot("tainted", ("GPU-0",), 4),), 1e9, 5))
    found = await explain(client, "waits")
    [tainted] = [each for each in found["nodes"] if each["name"] == "tainted"]
    [card] = tainted["cards"]
    assert (card["reserved"], card["claimed"], card["free"]) == (6, 4, 6)


async def test_a_pod_is_told_once_why_it_waits_and_again_when_the_reasons_change(client, bench):
    await filtered(client, "waits", "n", "n", "cpu")
    run_to_end(bench.cluster.report_pending())
    assert bench.told == []
    bench.time.now += 3
    for _ in range(3):
        run_to_end(bench.cluster.report_pending())
        await filtered(client, "waits", "n", "cpu")
    [(name, reason, text)] = bench.told
    assert (name, reason) == ("waits", "GpushareWaiting")
    assert text == f"Pending: {SENTENCE.format(named=SOON)}"
    await filtered(client, "waits", "n", "small")
    bench.time.now += 61
    run_to_end(bench.cluster.report_pending())
    assert len(bench.told) == 2


async def test_a_pod_that_kube_scheduler_rejects_without_asking_is_told_once_why_it_waits(
    client, bench
):
    """The nodes' sums are too small for it, and kube-scheduler knows these itself."""
    run_to_end(bench.cluster.report_pending())
    assert bench.told == [], "it may be for a moment"
    for seconds in (3, 61, 61):
        bench.time.now += seconds
        bench.add(bench.cluster.pods.pod("uid-waits"))
        run_to_end(bench.cluster.report_pending())
    assert bench.told == [("waits", "GpushareWaiting", f"Pending: {SENTENCE.format(named=SOON)}")]
    await filtered(client, "waits", "n")
    bench.time.now += 3
    run_to_end(bench.cluster.report_pending())
    assert len(bench.told) == 2, "the reason is another one"


@pytest.mark.parametrize("says", ["0/3 nodes are available: 3 Insufficient cpu.", None])
async def test_a_pod_that_waits_for_something_else_or_got_a_node_is_told_nothing(bench, says):
    run_to_end(bench.cluster.report_pending())
    conditions = (PodCondition("PodScheduled", "False", "Unschedulable", says),) if says else ()
    bench.cluster.pod_changed(
        changed(pod("waits", 8), status={"conditions": conditions}) if says else bound("waits", 4)
    )
    bench.time.now += 3
    run_to_end(bench.cluster.report_pending())
    assert bench.told == []


async def test_a_free_amount_that_changes_all_the_time_writes_no_events(client, bench):
    bench.time.now += 3
    for number in range(20):
        await filtered(client, "waits", "n")
        bench.time.now += 61
        run_to_end(bench.cluster.report_pending())
        bench.add(bound("varies", 1 + number % 3, "GPU-1"))
    assert [name for name, reason, _ in bench.told if reason == "GpushareWaiting"] == ["waits"]


async def test_a_pod_that_is_bound_or_gone_meanwhile_is_told_nothing(client, bench):
    for name in ("a", "b"):
        bench.add(pod(name, 8))
        await filtered(client, name, "n")
    assert bench.cluster.pods.rejected == 2
    bench.cluster.pod_changed(pod("a", 8, node="n"))
    bench.cluster.pod_deleted(pod("b", 8))
    bench.time.now += 9
    run_to_end(bench.cluster.report_pending())
    assert [reason for _, reason, _ in bench.told] == ["GpushareUnplaced"]
    assert bench.cluster.pods.rejected == 0


async def test_a_pod_that_was_asked_about_as_it_went_is_not_kept(client, bench):
    await filtered(client, "gone", "n")
    assert bench.cluster.pods.rejected == 1
    bench.time.now += 3
    run_to_end(bench.cluster.report_pending())
    assert bench.cluster.pods.rejected == 0
    assert bench.told == []


@pytest.mark.parametrize("steps", range(8))
async def test_a_pod_that_is_bound_between_two_steps_stays_known(client, bench, steps):
    cluster, landing = bench.cluster, bound("second", 6)
    for name in ("first", "second"):
        bench.add(pod(name, 8))
        await filtered(client, name, "n")
    bench.time.now += 9
    reporting = cluster.report_pending()
    for _ in range(steps):
        next(reporting, None)
    cluster.pod_changed(landing)
    run_to_end(reporting)
    assert cluster.pods.pod(landing.uid) is landing
    assert cluster.compare() == 0


async def test_a_pod_that_would_cost_too_much_now_gets_its_event_later(client, bench, monkeypatch):
    monkeypatch.setattr("extender.watch.cluster.MOST_COST", 1)
    for name, units in (("first", 8), ("second", 9)):
        bench.add(pod(name, units))
        await filtered(client, name, "n")
    bench.time.now += 9
    run_to_end(bench.cluster.report_pending())
    assert [name for name, _, _ in bench.told] == ["first"]
    run_to_end(bench.cluster.report_pending())
    assert [name for name, _, _ in bench.told] == ["first", "second"]


async def test_a_bound_pod_that_kube_scheduler_asks_about_late_stays_known(client, bench):
    bench.add(bound("late", 6))
    cluster, record = bench.cluster, bench.cluster.pods.get("uid-late")
    cluster.pods.answer("uid-late", 1, ["no GPU has room"], bench.time.now)
    bench.time.now += 9
    run_to_end(cluster.report_pending())
    assert cluster.pods.get("uid-late") is record
    assert cluster.compare() == 0


async def test_what_the_watch_brings_with_the_call_is_heard_before_a_pod_is_refused_again(
    client, bench
):
    """kube-scheduler has seen a pod end, and asks at once: this would be its last question."""
    await filtered(client, "waits", "n")
    loop, gone = asyncio.get_running_loop(), bench.cluster.pods.pod("uid-stays")
    loop.call_later(0.005, bench.cluster.pod_deleted, gone)
    assert (await filtered(client, "waits", "n"))["NodeNames"] == ["n"]


async def test_a_pod_that_comes_for_the_first_time_is_refused_at_once(client, monkeypatch):
    monkeypatch.setattr("extender.watch.grace.SECONDS", 60.0)
    async with asyncio.timeout(patient(10)):
        assert (await filtered(client, "waits", "n"))["NodeNames"] == []


async def test_each_update_of_a_pod_that_ends_is_heard_before_a_refusal(client, bench):
    """kube-scheduler asks at each of them, some 100 ms apart, and the last one frees the card."""
    for _ in range(3):
        assert (await filtered(client, "waits", "n"))["NodeNames"] == []
        bench.time.now += 0.1
    loop, gone = asyncio.get_running_loop(), bench.cluster.pods.pod("uid-stays")
    loop.call_later(0.005, bench.cluster.pod_deleted, gone)
    assert (await filtered(client, "waits", "n"))["NodeNames"] == ["n"]


async def test_units_that_become_free_without_a_pod_event_are_counted(bench):
    cluster = bench.cluster
    cluster.ledger.keep(Hold("gang", (Slot("n", ("GPU-0",), 1),), bench.time.now + 5))
    cluster.ledger.keep(Claim("pod", (Slot("n", ("GPU-0",), 1),), bench.time.now + 9, 1))
    cluster.expire_plans()
    assert sum(cluster.state.freed.values()) == 0
    bench.time.now += 5
    cluster.expire_plans()
    bench.time.now += 5
    cluster.expire_plans()
    assert dict(cluster.state.freed) == {"hold": 1, "claim": 1}


async def test_a_reserve_that_is_let_go_of_is_counted_as_such(bench):
    bench.add(pod("new", 4))
    await bench.lose(pod("new", 4))
    for _ in range(4):
        await bench.settle()
        bench.time.now += 6
    assert dict(bench.cluster.state.freed) == {"reserve": 1}


async def test_however_many_ask_one_node_is_looked_at_between_two_turns_of_others(
    client, bench, monkeypatch
):
    shortest = property(lambda _: 1e-9)
    monkeypatch.setattr(time_slices.Turns, "_seconds", shortest, raising=False)
    for number in range(30):
        bench.cluster.node_changed(node(f"n{number}", 16))
    looked_at = []
    why_not = bench.cluster.state.why_not

    def counted(name, *rest):
        looked_at.append(name)
        return why_not(name, *rest)

    monkeypatch.setattr(bench.cluster.state, "why_not", counted)
    most = 0
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(explain(client, "waits")) for _ in range(16)]
        while not all(each.done() for each in asked):
            before = len(looked_at)
            await asyncio.sleep(0)
            most = max(most, len(looked_at) - before)
    assert len(looked_at) == 16 * (33 + 1)  # and the one that it would get once more
    assert most == 1
