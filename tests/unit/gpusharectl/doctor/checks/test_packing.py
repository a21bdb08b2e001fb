"""What is said about CPU of GPU nodes that others hold, and about settings that pack badly."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.objects.model import NodeSpec
from gpushare.objects.scheduling import Present, Taint
from gpusharectl.doctor.checks.findings import NOT_CHECKED, DoctorFinding
from gpusharectl.doctor.facts.cluster import Facts, Unknown
from gpusharectl.doctor.facts.node_cpu import NodeCpu, cpu_of_gpu_nodes, is_gpu
from gpusharectl.doctor.facts.seen import SeenPod
from tests.unit.gpusharectl.doctor.checks.test_findings import look
from tests.unit.gpusharectl.doctor.clusters import loaded, plain_node, well, with_status


def cluster(*pods: SeenPod, cores: str = "16") -> Facts:
    """Two GPU nodes; the pods with GPU memory request a core for every two units."""
    there = tuple(each for each in well().pods if each.metadata.namespace != "default")
    return well(
        nodes=(
            *well().nodes[:1],
            *(with_status(name, {}, {"cpu": cores}) for name in ("n1", "n2")),
        ),
        pods=(*there, loaded("train", "n1", cpu="4", gpu_mem="8"), *pods),
    )


def warned(facts: Facts) -> list[DoctorFinding]:
    return [each for each in look(facts) if each.kind.name == "GpuNodesShortOfCpu"]


def test_the_cores_that_strand_gpu_memory_are_counted_with_the_worst_nodes_first():
    """On n1 24 units are free, and 4 of 16 cores: enough for 8 of them. On n2 all are free."""
    (found,) = look(cluster(loaded("web", "n1", cpu="8"), loaded("api", "n2", cpu="2500m")))
    assert (found.kind.name, found.about) == ("GpuNodesShortOfCpu", "2 GPU nodes")
    assert found.found == (
        "pods without GPU hold 10.5 of 32 cores, so 1.3 of 4 GPUs are free and have no CPU: the "
        "component avoid-gpu-nodes would give back 0.0, for which nodes without GPU have free CPU; "
        "a taint would give back all, and pods without room elsewhere would be Pending"
    )
    assert found.details == (
        "n1: 8 of 16 cores; 1.0 of 2 GPUs have no CPU",
        "n2: 2.5 of 16 cores; 0.3 of 2 GPUs have no CPU",
    )
    assert "avoidGpuNodes: true" in found.fix


@pytest.mark.parametrize(
    ("plain", "pods", "given_back"),  # nodes of 8 cores; the free GPU memory lacks 10.5
    [
        (1, (), "avoid-gpu-nodes would give back 1.0"),
        (1, (loaded("db", "plain-0", cpu="4"),), "avoid-gpu-nodes would give back 0.5"),
        (2, (), "a taint or the component avoid-gpu-nodes would give these back"),
    ],
)
def test_the_component_gives_back_what_nodes_without_gpu_have_room_for(plain, pods, given_back):
    facts = cluster(loaded("web", "n1", cpu="8"), loaded("api", "n2", cpu="2500m"), *pods)
    nodes = (plain_node(f"plain-{number}") for number in range(plain))
    (found,) = warned(replace(facts, nodes=(*facts.nodes, *nodes)))
    assert given_back in found.found


@pytest.mark.parametrize(
    "spec", [NodeSpec(unschedulable=True), NodeSpec(taints=(Taint("own", "NoSchedule"),))]
)
def test_a_node_that_takes_no_pods_gives_nothing_back(spec):
    facts = cluster(loaded("web", "n1", cpu="8"), loaded("api", "n2", cpu="2500m"))
    closed = [msgspec.structs.replace(plain_node(f"plain-{n}"), spec=spec) for n in range(2)]
    (found,) = warned(replace(facts, nodes=(*facts.nodes, *closed)))
    assert "avoid-gpu-nodes would give back 0.0" in found.found


def test_a_node_of_which_a_pod_cannot_be_read_gives_nothing_back():
    odd = loaded("odd", "plain-0", cpu="many")
    facts = cluster(loaded("web", "n1", cpu="8"), loaded("api", "n2", cpu="2500m"), odd)
    (found,) = warned(replace(facts, nodes=(*facts.nodes, plain_node("plain-0"))))
    assert "avoid-gpu-nodes would give back 0.0" in found.found


@pytest.mark.parametrize(
    "holds",
    [
        pytest.param([], id="no other pod"),
        pytest.param([loaded("web", "n1", cpu="3")], id="less than one GPU is stranded"),
        pytest.param([loaded("log", "n1", "DaemonSet", cpu="12")], id="of a DaemonSet"),
        pytest.param([loaded("proxy", "n1", "Node", cpu="12")], id="a static pod"),
        pytest.param([loaded("more", "n1", cpu="12", gpu_mem="4")], id="it has GPU memory"),
        pytest.param([loaded("mig", "n1", cpu="12", **{"nvidia.com/mig-1g.5gb": "1"})]),
        pytest.param([loaded("web", "cp1", cpu="99")], id="on another node"),
        pytest.param([loaded("web", None, cpu="99")], id="Pending"),
    ],
)
def test_cores_that_strand_nothing_are_no_finding(holds):
    assert warned(cluster(*holds)) == []


def test_cores_that_are_held_beyond_what_gpu_pods_could_use_strand_nothing():
    assert warned(cluster(loaded("web", "n1", cpu="12"), cores="64")) == []


def test_where_pods_with_gpu_memory_request_no_cpu_nothing_lacks_it():
    facts = cluster(loaded("web", "n1", cpu="16"))
    bare = loaded("train", "n1", gpu_mem="8")
    assert (
        warned(replace(facts, pods=(*(p for p in facts.pods if "train" not in p.key), bare))) == []
    )


def test_a_claim_may_be_for_a_gpu():
    made = loaded("claims", "n1", cpu="12")
    spec = msgspec.structs.replace(made.spec, resource_claims=(Present(),))
    assert warned(cluster(msgspec.structs.replace(made, spec=spec))) == []


def test_a_pending_pod_that_no_node_can_grant_does_not_change_what_is_usual():
    held = loaded("web", "n1", cpu="12")
    refused = loaded("bytes", None, cpu="1", gpu_mem="8Gi")
    (one,), (two,) = warned(cluster(held)), warned(cluster(held, refused))
    assert one.found == two.found


def test_an_amount_that_cannot_be_read_is_not_checked():
    (found,) = look(cluster(loaded("odd", "n1", cpu="many")))
    assert (found.kind, found.about) == (NOT_CHECKED, "CPU of GPU nodes")
    assert "many" in found.found


@given(
    st.lists(
        st.builds(
            loaded,
            st.sampled_from(["a", "b"]),
            st.sampled_from(["n1", "n2", None]),
            st.sampled_from(["", "DaemonSet", "ReplicaSet"]),
            cpu=st.integers(0, 20_000).map(lambda cpu: f"{cpu}m"),
        ),
        max_size=6,
    )
)
def test_no_more_is_stranded_than_is_free_and_nothing_where_nothing_is_held(pods):
    free = {"n1": 24, "n2": 32}
    for each in cpu_of_gpu_nodes(cluster(*pods)):
        assert isinstance(each, NodeCpu)
        assert 0 <= each.stranded <= free[each.node]
        assert each.held or not each.stranded


@pytest.mark.parametrize(
    ("resource", "is_one"),
    [
        ("aliyun.com/gpu-mem", True),
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-3g.20gb", True),
        ("amd.com/gpu", True),
        ("cpu", False),
        ("example.com/fpga", False),
    ],
)
def test_gpus_of_every_product_are_gpus(resource, is_one):
    assert is_gpu(resource) == is_one


@pytest.mark.parametrize(
    ("section", "kinds"),
    [
        ({}, []),
        ({"node": "binpack", "candidates": 1}, []),
        ({"candidates": 4}, []),
        ({"candidates": 0}, ["CandidatesUnlimited"]),
        ({"node": "spread"}, ["NodePolicySpread"]),
        ({"node": "spread", "candidates": 0}, ["CandidatesUnlimited", "NodePolicySpread"]),
    ],
)
def test_settings_that_pack_badly_are_told(section: dict[str, Any], kinds):
    found = look(well(placement=section))
    assert [each.kind.name for each in found] == kinds
    assert all("policy." in each.found and "policy." in each.fix for each in found)


def test_settings_that_cannot_be_read_are_not_checked():
    (found,) = look(well(placement=Unknown("you lack the right to get configmaps")))
    assert found.kind == NOT_CHECKED
