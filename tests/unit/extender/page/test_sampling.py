"""The samples of the live page's history."""

from extender.page.sampling import take
from gpushare.live_page.history import SAMPLES, History, Sample
from gpushare.process.time_slices import run_all
from tests.builders import node, pod
from tests.unit.extender.scripted import bound


def test_a_sample_has_what_pods_hold_and_how_many_are_pending(bench):
    bench.cluster.node_changed(node("m", 8))
    bench.add(bound("a", 8), bound("b", 4, "GPU-1"), pod("w", 8), pod("v", 1000))
    sample = run_all(take(bench.cluster.state))
    assert (sample.used_mib, sample.total_mib, sample.pending) == (12, 40, 2)


def test_pods_on_unknown_gpus_count_and_never_more_than_there_is(bench):
    bench.add(pod("by-hand", 8, node="n"))
    assert run_all(take(bench.cluster.state)).used_mib == 8
    bench.add(bound("a", 30), bound("b", 30, "GPU-1"))
    assert run_all(take(bench.cluster.state)).used_mib == 32


def test_only_the_last_hour_is_kept():
    history = History()
    for minute in range(2 * SAMPLES):
        history.add(Sample(60 * minute, minute, 100, 0))
    text = history.event().decode()
    assert f"[{60 * SAMPLES},{SAMPLES},100,0]" in text
    assert f"[{60 * (SAMPLES - 1)},{SAMPLES - 1},100,0]" not in text
    assert history.count == 2 * SAMPLES
