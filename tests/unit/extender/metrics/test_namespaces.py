"""Who uses how much on /metrics: the sums of each namespace, and no more series than allowed."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from extender.metrics.namespaces import OTHERS, NamespaceSums, series
from extender.metrics.nodes import NodeMetrics
from gpushare.cards.model import Share
from gpushare.ledger.ledger import Ledger
from gpushare.objects.scheduling import SchedulingGate
from tests.builders import pod, stock
from tests.unit.extender.scripted import Bench, bound, changed

MIB, GIB = 2**20, 2**30


def rendered(metrics):
    text = asyncio.run(metrics.render()).decode()
    return {
        (sample.name.removeprefix("gpushare_namespace_"), sample.labels["namespace"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "namespace" in sample.labels
    }


def share(uid, namespace, node, units, *cards):
    return Share(uid, namespace, uid, node, units, cards, "" if cards else "no decision")


def test_bytes_are_by_the_unit_of_each_node_and_on_every_gpu_of_a_pod():
    ledger = Ledger()
    ledger.set_inventory("mib", stock(16276, 16276))
    ledger.set_inventory("gib", stock(15, 15, unit_mib=1024))
    ledger.put_share(share("a", "ml", "mib", 8000, "GPU-0"))
    ledger.put_share(share("b", "ml", "gib", 3, "GPU-0", "GPU-1"))
    ledger.put_share(share("c", "ops", "gib", 2))
    ledger.put_share(share("d", "ops", "unknown", 2))
    found = rendered(NodeMetrics(ledger))
    assert found["used_bytes", "ml"] == 8000 * MIB + 6 * GIB
    assert found["pods", "ml"] == 2
    assert found["used_bytes", "ops"] == 2 * GIB, "an unplaced pod once, and none without a unit"
    assert found["pending_pods", "ops"] == 0


def test_pending_pods_count_in_their_namespace_until_they_are_bound():
    bench = Bench(16)
    metrics = NodeMetrics(bench.cluster.ledger, bench.cluster.pods.pending_by_namespace)
    bench.add(pod("a", 9))
    assert rendered(metrics)["pending_pods", "default"] == 1
    bench.cluster.pod_deleted(pod("a", 9))
    assert rendered(metrics) == {}


def test_a_pod_with_a_scheduling_gate_is_pending_until_it_is_bound_or_gone():
    bench = Bench(16)
    metrics = NodeMetrics(bench.cluster.ledger, bench.cluster.pods.pending_by_namespace)
    gated = changed(pod("a", 9), spec={"scheduling_gates": (SchedulingGate("wait"),)})
    for each in (gated, pod("a", 9)):
        bench.add(each)
        assert rendered(metrics)["pending_pods", "default"] == 1
    bench.add(gated, bound("a", 9))
    assert rendered(metrics)["pending_pods", "default"] == 0
    bench.add(changed(gated, {"uid": "uid-b"}))
    bench.cluster.pod_deleted(changed(gated, {"uid": "uid-b"}))
    assert rendered(metrics)["pending_pods", "default"] == 0


NAMES = st.sampled_from([f"team-{number}" for number in range(8)])
USES = st.lists(st.tuples(NAMES, st.integers(1, 99)), max_size=20)


@given(USES, st.dictionaries(NAMES, st.integers(1, 9)), st.integers(1, 9))
def test_the_namespaces_that_use_most_have_their_own_series_and_the_others_one(uses, pending, most):
    sums = NamespaceSums.of([share(str(n), *use[:1], "n", use[1], "GPU-0") for n, use in
                             enumerate(uses)], 1)  # fmt: skip
    used, pods, waiting = series(sums, pending, most)
    assert len(used) <= most + 1
    assert used.keys() == pods.keys() == waiting.keys()
    assert sum(used.values()) == sum(units for _, units in uses) * MIB
    assert sum(pods.values()) == len(uses)
    assert sum(waiting.values()) == sum(pending.values())
    left_out = {*sums.used, *pending} - used.keys()
    assert bool(left_out) == (OTHERS in used)
    named = [value for name, value in used.items() if name != OTHERS]
    assert all(sums.used[name] <= min(named) for name in left_out)


@given(USES, USES)
def test_removing_a_node_leaves_what_was_before(first, second):
    one, two = (
        NamespaceSums.of(
            [share(str(n), name, "n", units) for n, (name, units) in enumerate(uses)], 1
        )
        for uses in (first, second)
    )
    sums = NamespaceSums()
    sums.add(one)
    sums.add(two)
    sums.remove(two)
    assert (sums.used, sums.pods) == (one.used, one.pods)
