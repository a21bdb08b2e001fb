"""What the ledger has otherwise than a fresh count is told once, with both sides, and kept."""

import logging

import pytest
from msgspec.structs import replace

from extender.watch.audit import EVERY_SECONDS, Audit
from gpushare.cards.model import Share
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.resource_use import ResourceUse
from tests.builders import node, run_to_end
from tests.unit.extender.scripted import Bench, bound, changed


def versioned(name, units, card, version):
    return changed(bound(name, units, card), {"resource_version": version})


@pytest.fixture
def bench():
    made = Bench(16, 16)
    made.add(versioned("a", 8, "GPU-0", "7"), bound("b", 4, "GPU-1"))
    return made


def corrupt(bench, uid="uid-a", cards=("GPU-1",)):
    held = bench.cluster.ledger.share(uid)
    bench.cluster.ledger.put_share(replace(held, cards=cards))


def test_a_difference_is_a_count_an_event_and_a_line_with_both_sides(bench, caplog):
    corrupt(bench)
    with caplog.at_level(logging.ERROR):
        assert bench.cluster.compare() == 1
    [line] = caplog.records
    assert line.ledger == "8 units of each of GPU-1 of n"
    assert line.counted == "8 units of each of GPU-0 of n"
    assert (line.pod, line.uid, line.node) == ("default/a", "uid-a", "n")
    [(name, reason, text)] = bench.told
    assert (name, reason) == ("a", "GpushareLedgerDiffers")
    assert "GPU-0" in text
    assert "GPU-1" in text


def test_a_difference_is_told_once_repaired_by_nobody_and_told_again_when_it_comes_back(bench):
    corrupt(bench)
    for _ in range(3):
        assert bench.cluster.compare() == 1
    assert bench.cluster.ledger.share("uid-a").cards == ("GPU-1",)
    corrupt(bench, cards=("GPU-0",))
    assert bench.cluster.compare() == 1
    corrupt(bench)
    assert bench.cluster.compare() == 2


def test_a_share_without_a_pod_and_a_pod_without_its_share_are_differences(bench):
    bench.cluster.ledger.put_share(Share("ghost", "default", "ghost", "n", 1, ("GPU-0",)))
    bench.cluster.ledger.remove_share("uid-b")
    assert bench.cluster.compare() == 2
    assert {name for name, _, _ in bench.told} == {"n", "b"}


def test_sums_that_are_not_those_of_the_shares_are_a_difference(bench):
    ledger = bench.cluster.ledger
    assert ledger.account("n").cards[0].used == 8
    stale = ledger.account("n")
    ledger.remove_share("uid-b")
    bench.cluster.pods.forget("uid-b")
    ledger._nodes["n"].cached = stale
    assert bench.cluster.compare() == 1
    assert bench.told[0][0] == "n"


def test_a_list_that_tells_a_pod_again_repairs_no_difference_in_silence(bench):
    corrupt(bench)
    run_to_end(
        bench.cluster.replacing_pods([versioned("a", 8, "GPU-0", "7"), bound("b", 4, "GPU-1")])
    )
    assert bench.cluster.ledger.share("uid-a").cards == ("GPU-0",)
    assert bench.cluster.differences == 1
    assert bench.cluster.compare() == 1


def test_a_wrong_sum_of_cpu_is_told_once(bench):
    use = bench.cluster.state.use
    use.put("uid-c", "n", (("cpu", 2000),))
    assert bench.cluster.compare() == 0
    use.used("n")["cpu"] += 1
    assert bench.cluster.compare() == 1
    assert bench.cluster.compare() == 1
    [(name, reason, text)] = bench.told
    assert (name, reason) == ("n", "GpushareLedgerDiffers")
    assert "'cpu': 2001" in text
    assert "'cpu': 2000" in text


class Slow:
    """Pods of which each takes a millisecond to count."""

    def __init__(self, time, count):
        self.time, self.names, self.asked = time, [f"u{i}" for i in range(count)], []

    def uids(self):
        return list(self.names)

    def pod(self, uid):
        self.asked.append(uid)
        self.time.now += 0.001


def test_a_slice_ends_after_its_time_however_many_pods_a_node_has(bench):
    pods = Slow(bench.time, 1000)
    audit = Audit(Ledger(), pods, ResourceUse(), bench.time)
    audit.begin()
    slices = 0
    while not audit.rounds:
        before = len(pods.asked)
        audit.step(0.005)
        assert len(pods.asked) - before <= 6
        slices += 1
    assert sorted(pods.asked) == sorted(pods.names)
    assert slices >= 1000 // 6
    assert 0.005 <= audit.longest_pause <= 0.007


def test_the_next_round_begins_a_while_after_the_last_or_when_all_was_listed_anew(bench):
    pods = Slow(bench.time, 3)
    audit = Audit(Ledger(), pods, ResourceUse(), bench.time)
    audit.step()
    assert not pods.asked, "there is nothing yet"
    bench.time.now += EVERY_SECONDS
    audit.whole()
    assert (audit.rounds, len(pods.asked)) == (1, 3)
    audit.step()
    assert len(pods.asked) == 3
    audit.begin()
    audit.step(1)
    assert (audit.rounds, len(pods.asked)) == (2, 6)


def test_a_card_that_comes_to_hold_more_than_it_has_is_counted_once_each_time(bench, caplog):
    cluster = bench.cluster
    for _ in range(2):
        cluster.pod_changed(bound("late", 12, "GPU-0"))
        cluster.overbooking.check()
        cluster.overbooking.check()
        cluster.pod_deleted(bound("late", 12, "GPU-0"))
        cluster.overbooking.check()
    assert cluster.overbooking.times == 2
    said = [r for r in caplog.records if r.message == "GPU holds more than it has"]
    assert [(r.card, r.has, r.held) for r in said] == [("GPU-0", 16, 20)] * 2
    cluster.node_changed(node("n", 6, 16))
    cluster.overbooking.check()
    assert cluster.overbooking.times == 3, "a card that shrank under its pods"
