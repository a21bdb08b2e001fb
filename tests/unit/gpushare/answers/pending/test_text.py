"""Why a pod is Pending, in one sentence."""

import pytest

from gpushare.answers.pending.of_pod import unseen
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import why_pending
from gpushare.contract import ANNOTATION_CARD_MODELS
from gpushare.kube.events import MAX_MESSAGE
from gpushare.objects.model import PodCondition
from gpushare.objects.scheduling import SchedulingGate, Taint
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import node
from tests.unit.gpushare.answers.cases import A100, CASES, GIB, Case, asks, on, replaced


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.promise)
def test_the_sentence_says_what_keeps_the_pod_and_what_would_help(case: Case) -> None:
    assert sentence(case.found()) == case.says


def test_no_name_makes_an_event_too_long_for_the_api_server() -> None:
    models = ",".join(f"{letter * 250}" for letter in "abc")
    taints = tuple(Taint(f"{'k' * 250}/{number}", "NoSchedule", "v" * 63) for number in range(9))
    far = [
        replaced(node(f"far-{number}", A100), "spec", taints=taints[number:]) for number in range(9)
    ]
    holders = [on(f"{'n' * 63}/{'p' * 250}{card}", 40960, "n" * 253, card) for card in range(3)]
    refused = (PodCondition("PodScheduled", "False", "Unschedulable", "\u00e9" * 5000),)
    gates = tuple(SchedulingGate("g" * 300) for _ in range(64))
    pods = [
        asks(60000, priority=9),
        asks(A100 * 2, gpus=3),
        asks(60000, annotations={ANNOTATION_CARD_MODELS: models}),
        replaced(asks(60000), "status", nominated_node_name="n" * 253),
        replaced(asks(1), "status", conditions=refused),
        replaced(asks(60000), "spec", scheduling_gates=gates),
        asks("9" * 5000),
    ]
    for nodes in ([node("n" * 253, *[A100] * 8), *far], far):
        for asking in pods:
            cluster = ListedCluster(nodes, [*holders, asking])
            said = sentence(run_all(why_pending(cluster, asking)))
            assert len(f"Pending: {said}".encode()) <= MAX_MESSAGE
            assert said.endswith(".")


def test_a_caller_who_may_read_only_the_pod_gets_its_request_and_kube_schedulers_words() -> None:
    words = "0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem."
    eviction = "no new claims to deallocate, preemption: 0/3 nodes are available: 3 Not helpful."
    whole = f"{words} {eviction}"
    refused = (PodCondition("PodScheduled", "False", "Unschedulable", whole),)
    found = unseen(replaced(asks(60000), "status", conditions=refused))
    assert sentence(found) == (
        f"requests 60000 units of GPU memory on one GPU; kube-scheduler last said: {words}"
    )
    assert sentence(unseen(asks(60000))) == (
        "requests 60000 units of GPU memory on one GPU; the nodes are not visible here."
    )
    unlooked = replaced(asks(60000), "spec", scheduler_name="my-scheduler")
    assert sentence(unseen(unlooked)) == (
        "requests 60000 units of GPU memory on one GPU; no scheduler named my-scheduler has "
        "looked at it yet."
    )
    gated = replaced(asks(60000), "spec", scheduling_gates=(SchedulingGate("queue"),))
    assert "removed: queue" in sentence(unseen(gated))
    assert "no node can grant its request" in sentence(unseen(asks("1.5")))


def test_nodes_that_all_count_in_another_unit_are_the_reason() -> None:
    cluster = ListedCluster([node("gke-7", 80, unit_mib=GIB)], [])
    cluster.unit_mib = 1
    assert sentence(run_all(why_pending(cluster, asks(30000)))) == (
        "cannot run on any node with shared GPUs: node counts aliyun.com/gpu-mem in another unit "
        "than the cluster."
    )
