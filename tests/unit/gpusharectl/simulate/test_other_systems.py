"""Dumps of clusters without gpushare: their GPUs are read, their pods counted, the rest named."""

import json
import sys
from collections import Counter

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import SettingsError
from gpushare.placement.rank import Policies
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.gain.assumed import answer
from gpusharectl.simulate.gain.needs import Needs
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
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

MIB = 81559  # of an H100, as NVIDIA's labels say: 79 whole GiB
LABEL = "nvidia.com/gpu."


class Simulated:
    """The last step of a dump, and what was said of it."""

    def __init__(self, *objects, before=(), files=(), unit=None):
        files = (*before, dump(*objects), *files)
        texts = [(f"{n}.yaml", text) for n, text in enumerate(files)]
        documents = (doc for name, text in texts for doc in read(name, text))
        self.run = Run(build(documents, unit), Policies())
        self.step = list(self.run.steps())[-1]
        found = answer(self.run.cluster, self.run.scenario.pending, Needs())
        self.gain = found and found.gain

    @property
    def used(self):
        """What each GPU has in use, by node."""
        return {
            each.name: [sum(share.units for share in card.pods) for card in each.cards]
            for each in self.step.nodes
        }

    @property
    def said(self):
        return "\n".join((*self.run.head.ignored, *self.run.unknown))


def test_whole_gpus_are_read_from_feature_discovery_and_are_full():
    found = Simulated(
        node("gpu-1", 4, labels=labels(4, MIB)),
        node("cpu-1"),
        pod("train", "gpu-1", gpu=2),
        pod("notebook", "gpu-1", gpu=1),
        pod("web", "cpu-1"),
    )
    assert found.used == {"gpu-1": [79, 79, 79, 0]}
    [gpu_node] = found.step.nodes
    assert [card.model for card in gpu_node.cards] == ["NVIDIA-A100-SXM4-80GB"] * 4
    assert found.said == ""


def test_a_share_goes_to_the_gpu_that_whole_gpu_pods_leave():
    new = (
        b"kind: Pod\nmetadata: {name: new}\n"
        b"spec: {containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}\n"
    )
    found = Simulated(
        node("gpu-1", 2, labels=labels(2, MIB)), pod("train", "gpu-1", gpu=1), files=[new]
    )
    assert found.used == {"gpu-1": [79, 8]}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
@pytest.mark.parametrize("sharing", ["time-slicing", "mps"])
def test_a_replica_is_its_part_of_a_gpu(resource, sharing):
    found = Simulated(
        node("n", 20, labels=labels(2, 15109, "T4-SHARED", 10, sharing), resource=resource),
        *(pod(f"p{number}", "n", **{resource: 1}) for number in range(10)),
    )
    assert found.used == {"n": [7, 7]}  # half of 14
    assert {card.model for card in found.step.nodes[0].cards} == {"T4"}
    [part] = found.gain.parts
    assert (part.gpus, part.replicas, part.used, part.pods) == (2, 20, 10, 10)
    full = Simulated(
        node("n", 20, labels=labels(2, 15109, "T4-SHARED", 10, sharing), resource=resource),
        *(pod(f"p{number}", "n", **{resource: 4}) for number in range(5)),
    )
    assert full.used == {"n": [14, 14]}


def test_the_replicas_of_a_deleted_pod_are_free_again():
    first, *others = (pod(f"p{number}", "n", gpu=5) for number in range(2))
    first["delete"] = 60
    found = Simulated(
        node("n", 10, labels=labels(1, 10 * 1024, replicas=10, sharing="mps")), first, *others
    )
    assert found.used == {"n": [5]}
    assert found.gain.parts[0].used == 5


def test_gke_says_how_often_a_gpu_is_shared():
    gke = {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
        "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
    }
    found = Simulated(node("gke-1", 8, labels=gke), pod("a", "gke-1", gpu=1))
    assert [card.units for card in found.step.nodes[0].cards] == [22, 22]
    assert found.gain.parts[0].sharing == "time-slicing"
    assert "gke-1: GPUs are assumed to be L4" in found.said


@pytest.mark.parametrize(
    ("machine", "units"),
    [("g4dn.12xlarge", 14), ("p4d.24xlarge", 39), ("Standard_NC96ads_A100_v4", 79)],
)
def test_a_machine_type_tells_the_memory_of_its_gpus(machine, units):
    found = Simulated(node("n", 4, labels={"node.kubernetes.io/instance-type": machine}))
    assert [card.units for card in found.step.nodes[0].cards] == [units] * 4
    assert "assumed" in found.said


@pytest.mark.parametrize(
    ("machine", "offered", "gpus", "replicas"),
    [
        ("g5.12xlarge", 40, 4, 10),
        ("g4dn.xlarge", 4, 1, 4),
        ("Standard_NC64as_T4_v3", 4, 4, 1),
        ("Standard_NC64as_T4_v3", 6, 6, 1),
    ],
)
def test_a_machine_offers_more_gpus_than_it_has_by_time_slicing(machine, offered, gpus, replicas):
    found = Simulated(node("n", offered, labels={"node.kubernetes.io/instance-type": machine}))
    [part] = found.gain.parts
    assert (part.gpus, part.replicas) == (gpus, gpus * replicas)
    assert ("by machine type: time-slicing is assumed" in found.said) == (replicas > 1)


def test_labels_without_replicas_do_not_make_gpus_of_them():
    plain = {f"{LABEL}count": "2", f"{LABEL}memory": "15360"}
    found = Simulated(node("n", 20, labels=plain), pod("a", "n", gpu=1))
    assert found.used == {"n": [2, 0]}
    told = "n: 20 nvidia.com/gpu, but 2 GPUs by label nvidia.com/gpu.count"
    assert f"{told}: time-slicing is assumed" in found.said


def test_gpus_of_unknown_memory_are_named_and_a_file_adds_them():
    objects = (node("odd-1", 4), pod("a", "odd-1", gpu=1))
    found = Simulated(*objects)
    assert found.step.nodes == ()
    assert "odd-1: nvidia.com/gpu without a label nvidia.com/gpu.memory" in found.said
    assert "ml/a: not counted: the GPUs of the node are unknown" in found.said
    [line] = [each for each in found.run.unknown if "odd-1:" in each]
    added = line.rpartition("add a file with ")[2]
    for known in (
        Simulated(*objects, files=[added.encode()]),
        Simulated(*objects, before=[added.encode()]),
    ):
        assert known.used == {"odd-1": [80, 0, 0, 0]}
        assert known.said == ""


def test_hami_says_which_gpu_a_pod_has_and_how_much():
    found = Simulated(
        hami_node("h", hami_gpu("GPU-a", 15360), hami_gpu("GPU-b", 15360, 1)),
        hami_pod("one", "h", "GPU-a,NVIDIA,3000,0:;"),
        hami_pod("two", "h", "GPU-a,NVIDIA,2048,30:GPU-b,NVIDIA,5120,30:;GPU-b,NVIDIA,1024,0:;"),
        hami_pod("alone", "h", "GPU-b,NVIDIA,1024,100:;"),
    )
    assert found.used == {"h": [3 + 2, 6 + 15]}
    assert found.step.nodes[0].cards[0].uuid == "GPU-a"
    assert found.step.nodes[0].cards[1].free == 0
    [part] = found.gain.parts
    assert (part.sharing, part.pods, part.fit_today) == ("HAMi", 3, part.fit)


def test_an_init_container_of_hamis_has_ended_when_the_others_run():
    made = hami_pod("a", "h", "GPU-a,NVIDIA,4096,0:;GPU-a,NVIDIA,2048,0:;")
    made["spec"]["initContainers"] = [{"name": "load"}]
    found = Simulated(hami_node("h", hami_gpu("GPU-a", 15360)), made)
    assert found.used == {"h": [4]}


def test_a_container_without_gpus_counts_in_the_order_of_hamis_containers():
    made = hami_pod("a", "h", "GPU-a,NVIDIA,4096,0:;;")
    made["spec"]["initContainers"] = [{"name": "load"}]
    made["spec"]["containers"].append({"name": "other"})
    both = hami_pod("b", "h", "GPU-b,NVIDIA,4096,0:;GPU-b,NVIDIA,2048,0:;;")
    both["spec"] = made["spec"]
    gpus = hami_gpu("GPU-a", 15360), hami_gpu("GPU-b", 15360, 1)
    assert Simulated(hami_node("h", *gpus), made, both).used == {"h": [4, 4]}


def test_a_pod_of_hami_on_a_mig_device_uses_no_other_gpu():
    mig = hami_gpu("GPU-b", 40960, 1, mode="mig")
    on_mig = hami_pod("a", "h", "GPU-b[0-1],NVIDIA,4864,0:;")
    found = Simulated(hami_node("h", hami_gpu("GPU-a", 15360), mig), on_mig)
    assert found.used == {"h": [0]}
    assert "ml/a: not counted: has only MIG devices of HAMi's" in found.said


def test_a_node_without_gpus_of_hami_is_named():
    assert "h: HAMi has registered no GPU" in Simulated(hami_node("h")).said


def test_gpus_that_hami_has_removed_are_read_from_labels():
    made = hami_node("h", hami_gpu("GPU-a", 15360), labels=labels(10, MIB))
    made["metadata"]["annotations"]["hami.io/node-handshake"] = "Deleted_2026.01.02 03:04:05"
    found = Simulated(made, pod("a", "h", gpu=1))
    assert found.used == {"h": [79] + [0] * 9}
    assert found.gain.parts[0].sharing == "whole GPUs"


def test_hamis_older_annotation_is_read_too():
    model = "NVIDIA-Tesla V100-PCIE-32GB"
    text = f"GPU-a,10,32768,100,{model},0,true:GPU-b,10,32768,100,{model},0,false,1,hami-core:"
    found = Simulated(node("h", 20, annotations={"hami.io/node-nvidia-register": text}))
    [h] = found.step.nodes
    assert [(card.units, card.health) for card in h.cards] == [(32, "healthy"), (32, "unhealthy")]


def test_memory_that_hami_only_promises_is_not_counted():
    found = Simulated(hami_node("h", hami_gpu("GPU-a", 30720), labels=labels(1, 15360)))
    assert [card.units for card in found.step.nodes[0].cards] == [15]
    assert "h: HAMi offers more memory than the GPUs have" in found.said


@pytest.mark.parametrize(
    "allocated",
    ["GPU-a,NVIDIA,lots,0:;", "GPU-a", "", ";;", "GPU-x,NVIDIA,100,0:;", "GPU-a,NVIDIA,-1,0:;"],
)
def test_what_a_pod_of_hami_has_is_never_read_as_nothing(allocated):
    found = Simulated(
        hami_node("h", hami_gpu("GPU-a", 15360), hami_gpu("GPU-b", 15360, 1)),
        hami_pod("bad", "h", allocated),
    )
    assert [card.free for card in found.step.nodes[0].cards] == [0, 0]
    assert "ml/bad: counted on every GPU of the node, whole: annotation" in found.said
    assert repr(allocated) in found.said or "GPU-x" in found.said


@pytest.mark.parametrize("limits", [{"gpu": 1, "nvidia.com/gpumem": 100}, {"nvidia.com/gpumem": 9}])
def test_a_pod_of_hami_on_a_node_without_hami_is_named(limits):
    found = Simulated(node("n", 2, labels=labels(2, MIB)), pod("a", "n", **limits))
    assert found.used == {"n": [79 * ("gpu" in limits), 0]}
    assert "ml/a: counted by nvidia.com/gpu: the node has no GPUs of HAMi's" in found.said


@pytest.mark.parametrize(
    "text", ["not json", "[{}]", '[{"id": "a", "devmem": 0}]', "[" * 5000, "[1]", "a,b:", '[{"id":']
)
def test_a_node_annotation_of_hami_that_cannot_be_read_is_named(text):
    found = Simulated(
        node("h", 10, annotations={"hami.io/node-nvidia-register": text}), pod("a", "h", gpu=1)
    )
    assert found.step.nodes == ()
    assert "h: GPUs cannot be read: annotation hami.io/node-nvidia-register" in found.said
    assert "ml/a: not counted" in found.said


@pytest.mark.parametrize(
    ("key", "value"),
    [("memory", "80Gi"), ("memory", "-1"), ("replicas", "many"), ("replicas", "100000")],
)
def test_a_label_that_cannot_be_read_is_named_with_its_value(key, value):
    found = Simulated(node("n", 4, labels=labels(4, MIB) | {f"{LABEL}{key}": value}))
    assert found.step.nodes == ()
    assert "n: GPUs cannot be read" in found.said
    assert value in found.said


def test_mig_and_other_vendors_are_named():
    found = Simulated(
        node("mixed", 0, capacity={"nvidia.com/mig-1g.5gb": "7"}, labels=labels(1, 40960)),
        node("single", 7, labels=labels(7, 4864, "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")),
        node("amd", 0, capacity={"amd.com/gpu": "8"}),
        node("virtual", 0, capacity={"nvidia.com/TU104GL_Tesla_T4": "1"}, labels=labels(1, 15360)),
        pod("m", "mixed", **{"nvidia.com/mig-1g.5gb": 1}),
        pod("v", "virtual", **{"nvidia.com/TU104GL_Tesla_T4": 1}),
        pod("s", "single", gpu=1),
    )
    assert found.step.nodes == ()
    for name in ("mixed", "single", "amd", "virtual", "ml/m", "ml/s", "ml/v"):
        assert name in found.said
    assert "by its labels" not in found.said
    assert found.gain is None


def test_gpus_that_no_plugin_offers_are_named():
    found = Simulated(node("n", 0, labels=labels(8, MIB)))
    assert found.step.nodes == ()
    assert "n: GPUs by its labels, but no nvidia.com/gpu" in found.said


def test_labels_that_contradict_the_resource_are_named():
    found = Simulated(node("n", 6, labels=labels(4, MIB)))
    assert len(found.step.nodes[0].cards) == 6
    assert "n: nvidia.com/gpu says 6 GPUs, label nvidia.com/gpu.count 4: 6 assumed" in found.said


def test_unhealthy_gpus_take_no_new_pods():
    found = Simulated(
        node("n", 4, labels=labels(4, MIB), allocatable={"nvidia.com/gpu": "3"}),
        pod("a", "n", gpu=1),
    )
    assert [card.health for card in found.step.nodes[0].cards] == ["healthy"] * 3 + ["unhealthy"]
    assert "n: 1 of 4 GPUs unhealthy: assumed to be the last" in found.said
    assert found.gain.parts[0].fit_today == 2


def test_pods_that_request_more_than_their_node_has_are_named():
    whole = Simulated(
        node("n", 2, labels=labels(2, MIB)), pod("a", "n", gpu=1), pod("b", "n", gpu=2)
    )
    assert whole.used == {"n": [79, 79]}
    assert "ml/b: requests more GPUs than the node has left" in whole.said
    sliced = Simulated(
        node("n", 2, labels=labels(1, MIB, replicas=2, sharing="mps")), pod("a", "n", gpu=3)
    )
    assert sliced.used == {"n": [79]}
    assert "ml/a: requests more replicas than the node has left" in sliced.said


def test_pending_pods_that_do_not_request_memory_are_named_with_what_they_meant():
    found = Simulated(
        node("n", 2, labels=labels(2, MIB)),
        pod("typo", **{"aliyun.com/gpu-memory": 8}),
        pod("hami", **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}),
        pod("web", cpu=1),
    )
    typo = "aliyun.com/gpu-memory: did you mean aliyun.com/gpu-mem?"
    assert f"ml/typo: Pending and does not request aliyun.com/gpu-mem. {typo}" in found.said
    assert "here request 3 GiB as aliyun.com/gpu-mem" in found.said
    assert "ml/web" in found.said


def test_whole_gpus_of_a_node_that_also_shares_them_are_counted_and_named():
    aliyun = node("a", 0, capacity={"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"})
    aliyun["status"]["capacity"]["nvidia.com/gpu"] = "2"
    placed = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "4"}
    found = Simulated(
        aliyun,
        pod("whole", "a", gpu=1),
        pod("share", "a", placed, **{"aliyun.com/gpu-mem": 4}),
    )
    assert found.used == {"a": [4, 15]}
    assert "ml/whole: has a whole GPU of a node that shares the same GPUs by memory" in found.said
    assert found.gain is None


def test_a_cluster_that_counts_in_mib_is_not_read_in_gib():
    aliyun = node("a", capacity={"aliyun.com/gpu-mem": "30218", "aliyun.com/gpu-count": "2"})
    found = Simulated(aliyun)
    assert found.run.head.unit_mib == 1
    assert "a: aliyun.com/gpu-mem is assumed to be in MiB" in found.said
    stated = Simulated(aliyun, unit=256)
    assert stated.run.head.unit_mib == 256
    assert stated.said == ""


def test_a_dump_may_have_nodes_and_pods_of_every_kind():
    found = Simulated(
        node("whole", 2, labels=labels(2, MIB)),
        node("sliced", 8, labels=labels(2, MIB, replicas=4, sharing="time-slicing")),
        hami_node("hami", hami_gpu("GPU-a", 15360)),
        node("aliyun", capacity={"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}),
        pod("a", "whole", gpu=1),
        pod("b", "sliced", gpu=1),
        hami_pod("c", "hami", "GPU-a,NVIDIA,1024,0:;"),
    )
    assert found.used == {"whole": [79, 0], "sliced": [20, 0], "hami": [1], "aliyun": [0, 0]}
    assert [part.sharing for part in found.gain.parts] == [
        "whole GPUs",
        "time-slicing",
        "HAMi",
        "memory",
    ]


def test_what_is_said_of_many_objects_is_short():
    odd = [node(f"odd-{n}", 4) for n in range(200)]
    bad = [
        node(f"bad-{n}", 4, labels=labels(4, MIB) | {f"{LABEL}memory": f"x{n}"}) for n in range(200)
    ]
    found = Simulated(*odd, *bad)
    [line] = [each for each in found.run.unknown if each.startswith("odd-0")]
    assert line.startswith("odd-0, odd-1, odd-2 and 197 more: ")
    assert len(found.run.unknown) < 60
    assert "and 151 more, each for a reason of its own" in found.said


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=20),
)
def test_no_gpu_has_more_than_its_memory_and_no_pod_is_lost(nodes, pods):
    objects = [
        node(f"n{n}", gpus * replicas, labels=labels(gpus, 16384, replicas=replicas, sharing="mps"))
        for n, (gpus, replicas) in enumerate(nodes)
    ]
    wanted = Counter()
    for number, (on, count, ends) in enumerate(pods):
        made = pod(f"p{number}", f"n{on % len(nodes)}", gpu=count)
        if ends:
            made["delete"] = 5
        else:
            wanted[f"n{on % len(nodes)}"] += count
        objects.append(made)
    found = Simulated(*objects)
    for each, (gpus, replicas) in zip(found.step.nodes, nodes, strict=True):
        for card in each.cards:
            assert sum(share.units for share in card.pods) <= card.units
        if "requests more" not in found.said:
            full = -(-16 * wanted[each.name] // replicas)
            assert abs(each.used - full) <= gpus


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump])
def test_a_dump_may_have_any_text_in_a_status(form):
    made = pod("a", "gpu-1", gpu=1)
    made["status"]["message"] = "\x1b[31m\x00"
    listed = {"kind": "List", "items": [node("gpu-1", 4, labels=labels(4, MIB)), made]}
    found = build(read("dump", form(listed).encode()))
    assert [event.pod.key for event in found.pods] == ["ml/a"]
    alone = build(read("pod", form(made).encode()))
    assert [event.pod.key for event in alone.pods] == ["ml/a"]
    del made["metadata"]["uid"]
    with pytest.raises(SettingsError, match="has characters that cannot be shown"):
        build(read("written by hand", form(made).encode()))


def test_what_is_wrong_in_a_dump_is_told_with_its_line():
    content = json.dumps(json.loads(dump(node("n", 4), pod("a", gpu=[]))), indent=1).encode()
    content = content.replace(b'"nvidia.com/gpu": "[]"', b'"nvidia.com/gpu": []')
    line = content[: content.index(b'"nvidia.com/gpu": []')].count(b"\n")  # of the limits
    with pytest.raises(SettingsError) as told:
        build(read("dump.json", content))
    assert str(told.value).startswith(f"dump.json:{line}: spec.containers[0].resources.")


@pytest.mark.parametrize("text", ["\x7f", "\U0001f600", "x" * 2**20])
def test_what_is_wrong_in_json_that_has_no_lines_is_told_with_the_objects_name(text):
    made = pod("a", gpu=[])
    made["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": []}
    made["metadata"]["annotations"] = {"note": text}
    content = json.dumps({"kind": "List", "items": [node("n"), made]}).encode()
    with pytest.raises(SettingsError) as told:
        build(read("dump.json", content.replace(b"\\u007f", b"\x7f")))
    assert str(told.value).startswith("dump.json: items[1] (Pod a): spec.containers[0].resources.")


def large(nodes, pods):
    made = [node(f"n{n}", 8, labels=labels(8, MIB)) for n in range(nodes)]
    return *made, *(pod(f"p{n}", f"n{n * nodes // pods}", gpu=1) for n in range(pods))


def test_a_dump_of_thousands_of_nodes_is_read_whole():
    found = Simulated(*large(2000, 10_000))
    assert found.step.used == 79 * 10_000
    [part] = found.gain.parts
    assert (part.pods, part.used, part.fit_today) == (10_000, 10_000, 6000)


def test_the_work_grows_no_faster_than_a_dump():
    def work(*objects):
        """The number of function calls."""
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            simulate("-", "--assume-memory", "8", stdin=dump(*objects).decode())
        finally:
            sys.setprofile(None)
        return calls

    work(*large(10, 50))  # fills caches
    assert work(*large(200, 1000)) < 5 * work(*large(50, 250))


def test_the_workloads_of_a_dump_do_not_create_their_pods_again():
    spec = {"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "8"}}}]}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d", "uid": "u"},
        "spec": {"template": {"spec": spec}},
    }
    found = Simulated(node("n", 2, labels=labels(2, MIB)), deployment, pod("d-1", "n", gpu=1))
    assert found.used == {"n": [79, 0]}
    assert "kind Deployment, whose pods are in the files (1)" in found.said
    assert Simulated(node("n", 2, labels=labels(2, MIB)), deployment).used == {"n": [8, 0]}


def test_a_mistyped_annotation_of_a_new_pod_is_named():
    new = (
        b"kind: Pod\n"
        b"metadata: {name: a, annotations: {gpushare.aliyun.com/card-model: Tesla T4}}\n"
        b"spec: {containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}\n"
    )
    found = Simulated(node("n", 2, labels=labels(2, MIB)), files=[new])
    assert "did you mean gpushare.aliyun.com/card-models?" in found.said


def test_a_dump_that_ends_too_early_is_told():
    content = dump(node("n", 2, labels=labels(2, MIB))).decode()
    told = simulate("-", stdin=content[:-40], code=2)
    assert "stdin: the JSON ends too early, after" in told
