"""The free resources of a node."""

import pytest

from gpushare.errors import RequestError
from gpushare.objects.model import Node, NodeStatus, ObjectMeta
from gpushare.placement.node_resources import free_resources, insufficient


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
