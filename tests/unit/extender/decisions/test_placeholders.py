"""Placeholders exist for pods that fit a node's sum and no GPU, as few as new nodes are needed."""

from collections.abc import Collection, Mapping

import msgspec

from extender.decisions.autoscaling.body import INSTANCE_TYPE, PRIORITY_CLASS, body
from extender.decisions.autoscaling.missing_nodes import AFTER_SECONDS, MissingNodes
from extender.decisions.autoscaling.placeholders import MOST, Placeholder
from gpushare.contract import LABEL_CARD_COUNT, LABEL_PLACEHOLDER, RESOURCE_MEMORY
from gpushare.objects.model import Node, Pod
from gpushare.objects.scheduling import LABEL_HOSTNAME, Toleration, Volume
from gpushare.process.time_slices import run_all
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench, bound, changed

BUSY = 9  # of 16 units


def busy_node() -> Bench:
    """Return a node of two GPUs of 16 units, each with 7 free: 14 in all."""
    made = Bench(16, 16)
    made.add(bound("a", BUSY, "GPU-0"), bound("b", BUSY, "GPU-1"))
    return made


def labelled(made: Node, labels: Mapping[str, str]) -> Node:
    meta = msgspec.structs.replace(made.metadata, labels=dict(labels))
    return msgspec.structs.replace(made, metadata=meta)


def rejected(bench: Bench, *pods: Pod, seconds: float = AFTER_SECONDS) -> None:
    """Let kube-scheduler ask about pods on every node, and time pass."""
    bench.add(*pods)
    now = bench.time.monotonic()
    for each in pods:
        bench.cluster.pods.answer(each.uid, 1, ["no room"], now)
    bench.time.now += seconds


def found(bench: Bench, kept: Collection[str] = ()) -> list[Placeholder]:
    return list(run_all(MissingNodes(bench.cluster.state).find(kept)))


def names(bench: Bench, kept: Collection[str] = ()) -> list[str]:
    return [each.pod.metadata.name for each in found(bench, kept)]


def test_a_pod_that_fits_the_sum_and_no_gpu_gets_a_placeholder_of_all_units_of_a_node():
    bench = busy_node()
    rejected(bench, pod("p", 8))
    (one,) = found(bench)
    assert one.pod.metadata.name == "p"
    assert one.asked[RESOURCE_MEMORY] == 32_000


def test_a_pod_that_fits_no_sum_is_left_to_autoscalers():
    bench = busy_node()
    rejected(bench, pod("p", 15))
    assert not names(bench)


def test_pods_that_autoscalers_see_because_others_fill_the_sum_get_none():
    bench = busy_node()
    rejected(bench, pod("p", 8), pod("q", 8))
    assert names(bench) == ["p"]


def test_a_pod_that_has_waited_for_a_moment_only_gets_none():
    bench = busy_node()
    rejected(bench, pod("p", 8), seconds=AFTER_SECONDS / 2)
    assert not names(bench)


def test_a_pod_for_which_a_gpu_has_room_gets_none():
    bench = busy_node()
    rejected(bench, pod("p", 7))
    assert not names(bench)


def test_a_pod_that_fits_on_no_empty_node_gets_none():
    """No new node would help, and autoscalers would add one after another."""
    bench = busy_node()
    bench.cluster.node_changed(node("small", 4, 4))
    rejected(bench, pod("over-three", 12, labels={LABEL_CARD_COUNT: "3"}))
    assert not names(bench)


def test_pods_that_fit_on_one_new_node_together_have_one_placeholder():
    bench = busy_node()
    for name in ("n2", "n3"):
        bench.cluster.node_changed(node(name, 16, 16))
        bench.add(*(bound(f"{name}-{i}", BUSY, f"GPU-{i}", name) for i in range(2)))
    rejected(bench, pod("p", 8), pod("q", 8), pod("r", 8))
    assert names(bench) == ["p"]  # four of them would fit


def test_a_placeholder_that_exists_stays_when_a_more_urgent_pod_comes():
    bench = busy_node()
    bench.cluster.node_changed(node("n2", 16, 16))
    bench.add(*(bound(f"n2-{i}", BUSY, f"GPU-{i}", "n2") for i in range(2)))
    rejected(bench, pod("p", 8), changed(pod("urgent", 8), spec={"priority": 10}))
    assert names(bench) == ["urgent"]
    assert names(bench, kept=["uid-p"]) == ["p"]


def test_there_are_never_more_than_a_bounded_number():
    bench = busy_node()
    count = 2 * MOST + 4  # two fit on each new node
    for number in range(count):
        name = f"n{number}"
        bench.cluster.node_changed(node(name, 16, 16))
        bench.add(*(bound(f"{name}-{i}", BUSY, f"GPU-{i}", name) for i in range(2)))
    rejected(bench, *(pod(f"p{number}", 14) for number in range(count)))
    assert len(names(bench)) == MOST


def test_one_namespace_leaves_placeholders_to_others_that_need_some():
    bench = Bench(16, 8)
    for number in range(2 * MOST):
        name = f"n{number}"
        bench.cluster.node_changed(node(name, 16, 8))  # one of the pods fits on a new node
        bench.add(bound(f"{name}-0", BUSY, "GPU-0", name), bound(f"{name}-1", 1, "GPU-1", name))
    bench.add(bound("a", 16, "GPU-0"), bound("b", 8, "GPU-1"))
    rejected(bench, *(pod(f"p{number}", 14) for number in range(MOST)))
    before = {each.pod.uid for each in found(bench)}
    assert len(before) == MOST
    rejected(bench, changed(pod("other", 14), {"namespace": "other"}))
    after = names(bench, kept=before)
    assert len(after) == MOST
    assert "other" in after


def test_a_pod_that_needs_one_node_by_name_gets_none():
    bench = busy_node()
    bench.cluster.node_changed(labelled(node("n", 16, 16), {LABEL_HOSTNAME: "n"}))
    rejected(bench, changed(pod("p", 8), spec={"node_selector": {LABEL_HOSTNAME: "n"}}))
    assert not names(bench)


def test_the_smallest_node_on_which_the_pod_would_fit_is_asked_for():
    for needy, like in (
        (pod("p", 8), "n"),
        (pod("wide", 15, labels={LABEL_CARD_COUNT: "3"}), "large"),
    ):
        bench = busy_node()
        bench.cluster.node_changed(node("large", 16, 16, 16, 16))
        bench.add(*(bound(f"l{i}", 12, f"GPU-{i}", "large") for i in range(4)))
        bench.cluster.node_changed(node("small", 4))
        rejected(bench, needy)
        assert [each.like.name for each in found(bench)] == [like]


def test_a_pod_that_other_rules_may_keep_off_a_new_node_gets_none():
    bench = busy_node()
    volume = Volume(persistent_volume_claim={})
    rejected(
        bench,
        changed(pod("volume", 8), spec={"volumes": (volume,)}),
        changed(pod("nominated", 8), status={"nominated_node_name": "n"}),
        changed(pod("elsewhere", 8), spec={"node_selector": {"zone": "b"}}),
    )
    assert not names(bench)


def test_a_placeholder_goes_where_its_pod_may_go_and_counts_for_nobody():
    bench = busy_node()
    here = labelled(node("n", 16, 16), {"zone": "a", INSTANCE_TYPE: "large"})
    bench.cluster.node_changed(here)
    taint = Toleration(key="gpu", operator="Exists")
    spec = {"node_selector": {"zone": "a"}, "tolerations": (taint,), "scheduler_name": "mine"}
    rejected(bench, changed(pod("p", 8), spec=spec))
    (one,) = found(bench)
    made = body(one, "gpushare-system")
    assert made["metadata"]["labels"][LABEL_PLACEHOLDER] == "uid-p"
    wanted = made["spec"]
    assert wanted["schedulerName"] == "mine"
    assert wanted["priorityClassName"] == PRIORITY_CLASS
    assert wanted["nodeSelector"] == {"zone": "a", INSTANCE_TYPE: "large"}
    assert wanted["tolerations"][0]["key"] == "gpu"
    (container,) = wanted["containers"]
    assert container["resources"]["limits"] == {RESOURCE_MEMORY: "32"}

    one = pod("placeholder", 32, labels={LABEL_PLACEHOLDER: "uid-p"})
    bench.add(changed(one, {"namespace": "gpushare-system"}))
    state = bench.cluster.state
    assert set(state.placeholders) == {"uid-placeholder"}
    assert "uid-placeholder" not in state.pods.pending
    assert not bench.cluster.compare()
