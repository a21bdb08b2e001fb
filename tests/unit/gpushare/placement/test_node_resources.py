"""The free resources of a node."""

import pytest

from gpushare.errors import RequestError
from gpushare.objects.model import Node, NodeStatus, ObjectMeta
from gpushare.placement.node_resources import OfferedResources, free_resources, insufficient
from gpushare.planning.capacity import by_resources


def test_free_resources_are_allocatable_less_pods_and_holds():
    status = NodeStatus(allocatable={"cpu": "4", "memory": "8Gi", "pods": "3"})
    node = Node(ObjectMeta(name="n"), status)
    used = {"cpu": 1000, "memory": 2**30 * 1000, "pods": 1000}
    room = free_resources(node, used, {"cpu": 500, "memory": 2**30 * 1000, "other": 7})
    assert room == {"cpu": 2500, "memory": 6 * 2**30 * 1000, "pods": 2000}
    assert insufficient(room, {"cpu": 2500, "pods": 1000, "other": 0}) == []
    assert insufficient(room, {"cpu": 2501, "pods": 3000, "other": 1}) == ["cpu", "other", "pods"]
    with pytest.raises(RequestError, match="node n"):
        free_resources(Node(ObjectMeta(name="n"), NodeStatus(allocatable={"cpu": "?"})))


def test_a_request_of_nothing_fits_on_an_overcommitted_node():
    assert insufficient({"cpu": -5}, {"cpu": 0}) == []


def offering(name, **amounts):
    names = {key.replace("__", "/").replace("_", "."): much for key, much in amounts.items()}
    return Node(ObjectMeta(name=name), NodeStatus(allocatable=names))


@pytest.mark.parametrize(
    ("resource", "is_missing"),
    [
        ("example.com/licence", False),  # no node offers it: ignored, or served by DRA
        ("example.com/idle", False),  # 0 everywhere, as NodeResourcesFit reads it
        ("example.com/rdma", True),  # another node has it
        ("cpu", True),
        ("hugepages-2Mi", True),
        ("node.kubernetes.io/slots", True),
        ("aliyun.com/gpu-mem", True),
    ],
)
def test_only_a_foreign_resource_that_no_node_offers_is_left_to_kube_scheduler(
    resource, is_missing
):
    here, other = offering("here", example_com__idle="0"), offering("b", example_com__rdma="2")
    offered = OfferedResources([here, other])
    free = free_resources(here, offered=offered)
    assert insufficient(free, {resource: 1000}) == [resource] * is_missing
    assert bool(by_resources(free, ((resource, 1000),))) is not is_missing


def test_a_resource_is_judged_as_long_as_a_node_offers_it():
    offered = OfferedResources([offering("a"), offering("b", example_com__rdma="2")])
    changes = [
        (offered.put(offering("a", example_com__rdma="1")), False),
        (offered.put(offering("b")), False),
        (offered.drop("a"), True),
        (offered.drop("a"), False),
        (offered.put(offering("c", example_com__rdma="1", cpu="8")), True),
        (offered.put(offering("c", example_com__nic="1")), True),
    ]
    assert [found for found, _ in changes] == [wanted for _, wanted in changes]
    assert list(offered) == ["example.com/nic"]
