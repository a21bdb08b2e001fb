"""What the extender says of itself on /metrics is what its parts say at that moment."""

from collections import Counter
from types import SimpleNamespace

from extender.metrics.collectors import GANG, OWN_REQUEST, LedgerCollector, StateCollector
from extender.metrics.nodes import NodeMetrics
from gpushare.answers.gangs import Phase
from gpushare.groups import reasons as gangs
from gpushare.ledger.ledger import Ledger
from gpushare.placement import reasons
from tests.builders import node, pod, run_to_end
from tests.unit.extender.scripted import Bench
from tests.unit.extender.test_gangs import member


def shown(collector):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_watches_leadership_and_unknown_outcomes_are_shown_as_they_are_now():
    watch = SimpleNamespace(age=1.5, restarts=Counter(silent=2))
    state = {"leads": True}
    nodes = NodeMetrics(Ledger())
    collector = StateCollector({"pods": watch}, lambda: 3, lambda: state["leads"], nodes)
    first = shown(collector)
    assert first["gpushare_extender_cache_age_seconds", "pods"] == 1.5
    assert first["gpushare_extender_watch_restarts_total", "pods", "silent"] == 2
    assert first["gpushare_extender_watch_restarts_total", "pods", "expired"] == 0
    assert first["gpushare_unknown_reserves",] == 3
    assert first["gpushare_extender_leader",] == 1
    state["leads"] = False
    assert shown(collector)["gpushare_extender_leader",] == 0


def test_a_pod_is_unplaced_until_it_is_gone_or_its_card_can_be_told():
    bench = Bench(16)
    collector = LedgerCollector(bench.cluster.figures)
    bench.add(pod("odd", 3, node="n"), pod("lost", 3, node="n"))
    assert shown(collector)["gpushare_unplaced_pods",] == 2
    bench.cluster.pod_deleted(pod("lost", 3, node="n"))
    assert shown(collector)["gpushare_unplaced_pods",] == 1
    bench.cluster.node_changed(node("n", 16, 16))
    assert shown(collector)["gpushare_unplaced_pods",] == 1
    run_to_end(bench.cluster.replacing_pods([]))
    assert shown(collector)["gpushare_unplaced_pods",] == 0


def test_gangs_are_counted_by_phase_and_how_long_one_is_incomplete():
    bench = Bench(16, 16)
    collector = LedgerCollector(bench.cluster.figures)
    first = shown(collector)
    assert {phase: first["gpushare_gangs", phase.value] for phase in Phase} == dict.fromkeys(
        Phase, 0
    )
    bench.add(member("a"), member("b", "other", minimum=1, node="n"), member("c", "half", node="n"))
    bench.time.now += 40
    found = shown(collector)
    assert found["gpushare_gangs", "WaitingForMembers"] == 1
    assert found["gpushare_gangs", "Placed"] == 1
    assert found["gpushare_gangs", "Starting"] == 1
    assert found["gpushare_gang_waiting_members",] == 1
    assert found["gpushare_gang_longest_incomplete_seconds",] == 40


def test_what_a_gang_waits_for_is_not_counted_as_a_fault_of_the_request():
    bench = Bench(16)
    texts = sorted(gangs.TEXTS)
    for number, text in enumerate(texts):
        bench.cluster.pods.answer(f"uid-p{number}", 1, [text], bench.time.now)
    found = shown(LedgerCollector(bench.cluster.figures))
    assert found["gpushare_extender_waiting_pods_by_reason", GANG] == len(texts) > 10
    assert found["gpushare_extender_waiting_pods_by_reason", OWN_REQUEST] == 0


def test_pods_are_counted_under_the_reasons_they_wait_for_whatever_they_ask_for_themselves():
    bench = Bench(16)
    collector = LedgerCollector(bench.cluster.figures)
    bench.add(pod("a", 9))
    for number, text in enumerate((reasons.NO_ROOM.text, "container 'x' asks for -1", "for -2")):
        bench.cluster.pods.answer(f"uid-p{number}", 1, [text], bench.time.now)
    found = shown(collector)
    name = "gpushare_extender_waiting_pods_by_reason"
    assert found[name, reasons.NO_ROOM.text] == 1
    assert found[name, OWN_REQUEST] == 2
    assert found[name, reasons.CORDONED.text] == 0
    assert found["gpushare_extender_pending_pods",] == 1
    assert found["gpushare_extender_pending_least_units",] == 9
