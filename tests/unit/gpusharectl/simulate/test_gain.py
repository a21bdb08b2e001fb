"""What sharing by memory would gain is told with numbers that can be checked by hand."""

import json

import pytest

from tests.unit.gpusharectl.simulate.dumps import (
    dump,
    hami_gpu,
    hami_node,
    hami_pod,
    labels,
    node,
    pod,
)
from tests.unit.gpusharectl.simulate.test_command import simulate

T4 = 15109  # 14 whole GiB: one notebook of 8
A100 = 81920  # ten notebooks


def told(*objects, options=()):
    return simulate("-", *options, stdin=dump(*objects).decode())


def numbers(*objects, options=()):
    shown = simulate("-", "-o", "json", *options, stdin=dump(*objects).decode())
    return json.loads(shown)["gain"]


def whole(gpus=4, used=3, **more):
    return [
        node("n", gpus, labels=labels(gpus, A100), **more),
        *(pod(f"p{number}", "n", gpu=1) for number in range(used)),
    ]


def test_idle_gpus_take_more_notebooks_if_they_are_shared():
    shown = told(*whole())
    assert (
        "3 pods use 3 of 4 GPUs whole. Today 1 more notebook of 8 GiB would fit, "
        "and 10 if GPUs were shared by memory." in shown
    )
    assert "For example, if each of the 3 pods requested 16 GiB of each GPU" in shown
    assert "state it with --assume-memory GIB" in shown
    assert "n  240 GiB of 320 GiB used" in told(*whole(), options=("--step", "1"))
    assert "GPU 0" not in shown


def test_gpus_that_are_all_used_gain_nothing_unless_their_pods_need_less():
    assert "4 pods use 4 of 4 GPUs whole: no notebook of 8 GiB fits." in told(*whole(used=4))
    shown = told(*whole(used=4), options=("--assume-memory", "40"))
    assert (
        "If each of the 4 pods requested 40 GiB of each GPU, they would use 2 GPUs instead of 4. "
        "Then 2 GPUs could be given back or 20 notebooks of 8 GiB would fit." in shown
    )


def test_an_amount_larger_than_the_gpus_leaves_them_whole():
    shown = told(*whole(used=4), options=("--assume-memory", "81"))
    assert "No whole GPU has 81 GiB, the largest has 80 GiB: all 4 pods keep theirs whole" in shown
    assert ": both pods keep theirs" in told(*whole(used=2), options=("--assume-memory", "81"))
    t4 = node("t4", 1, labels=labels(1, T4, "Tesla-T4"))
    shown = told(*whole(used=4), t4, pod("small", "t4", gpu=1), options=("--assume-memory", "40"))
    assert (
        "If each of the 5 pods requested 40 GiB of each GPU (1 on smaller GPUs keeps its GPUs "
        "whole), they would use 3 GPUs instead of 5." in shown
    )
    shown = told(t4, *whole(used=0), pod("small", "t4", gpu=1), options=("--assume-memory", "40"))
    assert "No pod is on GPUs with 40 GiB: it keeps its GPUs whole." in shown


def test_without_a_stated_amount_the_example_is_less_than_a_gpu_has():
    t4 = node("t4", 1, labels=labels(1, T4, "Tesla-T4"))
    shown = told(t4, pod("small", "t4", gpu=1))
    assert "For example, if the pod requested 8 GiB of each GPU" in shown
    assert "notebooks of 20 GiB would fit" in told(*whole(), options=("--notebook", "20"))


def test_gpus_that_could_be_given_back_are_counted_by_whole_nodes_too():
    nodes = [node(name, 2, labels=labels(2, A100)) for name in ("a", "b", "c")]
    pods = [pod(f"p{number}", name, gpu=1) for number, name in enumerate("abc")]
    shown = told(*nodes, *pods, options=("--assume-memory", "20"))
    assert "would use 1 GPU instead of 3. Then 5 GPUs could be given back, 4 of them as 2" in shown


def test_only_one_namespace_shares():
    other = pod("other", "n", gpu=1)
    other["metadata"]["namespace"] = "serving"
    made = [*whole(used=2), other, pod("waits", gpu=1)]
    shown = told(*made, options=("-n", "ml", "--assume-memory", "16"))
    assert "In namespace ml, 2 pods use 2 of 4 GPUs whole, and 1 pod is Pending" in shown
    assert "they would use 1 GPU instead of 2, and the Pending pod would start" in shown
    shown = told(*made, options=("--namespace", "serving", "--assume-memory", "16"))
    assert "In namespace serving, 1 pod uses 1 of 4 GPUs whole. Today" in shown
    shown = simulate("-", "-n", "servin", code=2, stdin=dump(*made).decode())
    assert "the files have no pods in namespace servin: did you mean serving?" in shown


def test_a_pod_that_cannot_be_placed_keeps_its_gpus_whole():
    unhealthy = node("n", 1, labels=labels(1, A100), allocatable={"nvidia.com/gpu": "0"})
    other = node("other", 1, labels=labels(1, A100, "NVIDIA-H100"))
    made = (unhealthy, other, pod("a", "n", gpu=1), pod("b", "other", gpu=1))
    shown = told(*made, options=("--assume-memory", "8"))
    assert "(1 without room elsewhere keeps its GPUs whole), they would still use 2 GPUs" in shown
    assert "no GPU could be given back, and 9 notebooks of 8 GiB would fit" in shown


def test_a_pod_stays_on_its_cordoned_node():
    made = whole(gpus=2, used=2, unschedulable=True)
    assumed = numbers(*made, options=("--assume-memory", "8"))["assumed"]
    assert (assumed["gpus"], assumed["notPlaced"], assumed["fit"]) == (1, 0, 0)


def test_pods_with_whole_gpus_move_only_to_nodes_with_whole_gpus():
    sliced = node("a", 4, labels=labels(1, A100, replicas=4, sharing="time-slicing"))
    hami = hami_node("b", hami_gpu("GPU-a", A100, type="NVIDIA-A100-SXM4-80GB"))
    whole_one = node("n", 1, labels=labels(1, A100), capacity={"cpu": "4"})
    made = (sliced, hami, whole_one, pod("p", "n", gpu=1), pod("waits", gpu=1, cpu=8))
    assumed = numbers(*made, options=("--assume-memory", "8"))["assumed"]
    assert (assumed["gpus"], assumed["started"], assumed["fit"]) == (1, 0, 9)


def test_a_pod_with_two_gpus_keeps_two_different_ones():
    made = [node("n", 4, labels=labels(4, A100)), pod("a", "n", gpu=2), pod("b", "n", gpu=2)]
    assumed = numbers(*made, options=("--assume-memory", "10"))["assumed"]
    assert (assumed["gpusToday"], assumed["gpus"], assumed["fit"]) == (4, 2, 20 + 2 * 7)


def test_pods_stay_where_their_selectors_and_cpu_allow():
    first = node("a", 1, labels={**labels(1, A100), "pool": "a"})
    second = node("b", 1, labels={**labels(1, A100), "pool": "b"}, capacity={"cpu": "4"})
    chooses = pod("chooses", "b", gpu=1, cpu=3)
    chooses["spec"]["nodeSelector"] = {"pool": "b"}
    free = pod("free", "a", gpu=1, cpu=2)
    assumed = numbers(first, second, chooses, free, options=("--assume-memory", "8"))["assumed"]
    assert (assumed["gpus"], assumed["notPlaced"]) == (2, 0)


def test_pods_stay_on_the_model_that_they_run_on():
    made = [
        node("h100", 1, labels=labels(1, A100, "NVIDIA-H100")),
        node("t4", 1, labels=labels(1, A100, "Tesla-T4")),
        pod("a", "h100", gpu=1),
        pod("b", "t4", gpu=1),
    ]
    assumed = numbers(*made, options=("--assume-memory", "8"))["assumed"]
    assert (assumed["gpus"], assumed["notPlaced"]) == (2, 0)


def test_pending_pods_that_wait_for_whole_gpus_would_start():
    waiting = [pod(f"waits-{number}", gpu=1) for number in range(3)]
    shown = told(*whole(used=4), *waiting, options=("--assume-memory", "30"))
    assert (
        "4 pods use 4 of 4 GPUs whole, and 3 pods are Pending for whole GPUs: no notebook" in shown
    )
    assert "they would use 2 GPUs instead of 4, and all 3 Pending pods would start. Then" in shown
    assumed = numbers(*whole(used=4), *waiting, options=("--assume-memory", "60"))["assumed"]
    assert (assumed["pending"], assumed["started"]) == (3, 0)
    shown = told(*whole(used=4), *waiting[:2], options=("--assume-memory", "30"))
    assert "and both Pending pods would start. Then" in shown
    shown = told(*whole(used=4), waiting[0], options=("--assume-memory", "60"))
    assert "and the Pending pod would not start. Then" in shown


def test_time_slicing_starts_pods_without_counting_memory():
    made = [node("n", 10, labels=labels(2, T4, replicas=5, sharing="time-slicing"))]
    shown = told(*made, *(pod(f"p{number}", "n", gpu=1) for number in range(4)))
    assert (
        "4 pods use 4 of 10 replicas of 2 GPUs (time-slicing). Today 6 more notebooks of 8 GiB "
        "could start, but there is memory for 2: gpushare would start only those." in shown
    )


def test_mps_limits_a_replica_to_its_part():
    def part(replicas):
        made = node("n", 2 * replicas, labels=labels(2, A100, replicas=replicas, sharing="mps"))
        [found] = numbers(made, pod("a", "n", gpu=1))["parts"]
        return found["fitToday"], found["fit"]

    assert part(10) == (19, 10 + 9)  # replicas of 8 GiB
    assert part(11) == (0, 10 + 9)  # replicas of less


def test_nothing_is_gained_over_hami_by_sharing_memory():
    shown = told(
        hami_node("h", hami_gpu("GPU-a", A100)), hami_pod("a", "h", "GPU-a,NVIDIA,8192,0:;")
    )
    assert (
        "1 pod uses HAMi's shares of 1 GPU: 9 more notebooks of 8 GiB would fit, also with HAMi"
        in shown
    )


def test_hami_limits_the_number_of_pods_on_a_gpu():
    shown = told(
        hami_node("h", hami_gpu("GPU-a", A100, count=3)),
        hami_pod("a", "h", "GPU-a,NVIDIA,8192,0:;"),
    )
    assert (
        "9 more notebooks of 8 GiB would fit, but only 2 by HAMi's number of pods on each GPU."
        in shown
    )


def test_gated_pods_do_not_start():
    gated = pod("gated", gpu=1)
    gated["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    assumed = numbers(*whole(), gated, options=("--assume-memory", "8"))["assumed"]
    assert (assumed["pending"], assumed["started"]) == (0, 0)


def test_one_pod_and_no_pod_are_told_in_right_sentences():
    one = told(*whole(used=1), options=("--assume-memory", "8"))
    assert "If the pod requested 8 GiB of each GPU, it would still use 1 GPU." in one
    none = told(*whole(used=0), pod("waits", gpu=1), options=("--assume-memory", "16"))
    assert (
        "No pod uses a whole GPU, and the Pending pod would start if they requested 16 GiB of "
        "each GPU. Then 3 GPUs could be given back or 38 notebooks of 8 GiB would fit." in none
    )


def test_nodes_that_take_no_pods_count_for_nothing():
    [part] = numbers(*whole(unschedulable=True))["parts"]
    assert (part["fitToday"], part["fit"]) == (0, 0)
    [part] = numbers(*whole(capacity={"pods": "5"}))["parts"]
    assert (part["fitToday"], part["fit"]) == (1, 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "is not Ready"),
        (
            {
                "spec": {
                    "taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]
                }
            },
            "has taint node.kubernetes.io/disk-pressure",
        ),
    ],
)
def test_nodes_that_kubernetes_keeps_pods_off_have_no_room_and_are_named(change, why):
    made = whole()
    for part, value in change.items():
        made[0][part] |= value
    [part] = numbers(*made)["parts"]
    assert (part["used"], part["fitToday"], part["fit"]) == (3, 0, 0)
    shown = told(*made)
    assert f"Note: n: {why}: no room is counted there for more pods" in shown
    assert "not by CPU or taints" in shown


def test_memory_of_a_removed_plugin_does_not_hide_whole_gpus():
    made = whole(capacity={"aliyun.com/gpu-mem": "0"})
    assert "3 pods use 3 of 4 GPUs whole" in told(*made)


def test_other_gpus_of_a_node_that_shares_by_memory_are_named():
    aliyun = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2", "amd.com/gpu": "8"}
    assert "Note: a: not simulated: amd.com/gpu" in told(node("a", capacity=aliyun))


def test_a_cluster_without_gpus_is_told():
    shown = told(node("n"))
    assert "No GPUs were found that can be simulated." in shown
    assert "gpus: 4 x 80" in shown
    unknown = told(node("n", capacity={"nvidia.com/gpu": "4"}))
    assert unknown.count("gpus: 4 x 80") == 1, "the note about the node says what to add"
    assert "No GPUs were found that can be simulated." not in told(*whole())


def test_clusters_that_share_by_memory_have_nothing_to_gain():
    aliyun = node("a", capacity={"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"})
    assert numbers(aliyun) is None
    shown = told(aliyun, options=("--assume-memory", "16"))
    assert "GPUs whole" not in shown
    assert "No node offers whole GPUs, without which --assume-memory" in shown
    assert "no effect" not in told(*whole(), options=("--assume-memory", "16"))


def test_of_a_cluster_that_shares_some_gpus_the_rest_is_told_first():
    aliyun = node("a", capacity={"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"})
    shown = told(*whole(), aliyun)
    assert "3 pods use 3 of 4 GPUs whole. Today 1 more" in shown.splitlines()[0]
    assert "0 pods use 0 of 2 GPUs shared by memory: 2 more notebooks of 8 GiB would fit." in shown


def test_new_pods_of_another_file_are_counted_first(tmp_path):
    new = tmp_path / "new.yaml"
    limits = "{aliyun.com/gpu-mem: 40}"
    new.write_text(
        f"kind: Pod\nmetadata: {{name: new}}\n"
        f"spec: {{containers: [{{name: c, resources: {{limits: {limits}}}}}]}}\n"
    )
    shown = simulate("-", str(new), stdin=dump(*whole()).decode())
    assert "+ new to n, GPU 3 (40 GiB)" in shown
    assert "Note: n: does not share its GPUs by memory yet; pods that request memory" in shown
    assert "3 pods use 3 of 4 GPUs whole. Today 0 more notebooks" in shown
    assert "would fit, and 5 if GPUs" in shown


def test_lists_of_nodes_and_of_pods_may_be_two_files_in_any_order(tmp_path):
    nodes, pods = tmp_path / "nodes.json", tmp_path / "pods.json"
    made = whole()
    nodes.write_bytes(dump(*made[:1]))
    pods.write_bytes(dump(*made[1:]))
    assert simulate(str(nodes), str(pods)) == simulate(str(pods), str(nodes)) == told(*made)
