"""Devices of Aliyun gpushare's plugin are listed exactly while their pod lives."""

from pathlib import Path

import pytest

from deviceplugin.allocation import allocate_response
from deviceplugin.allocation.older_plugin import Inheritance
from deviceplugin.cards.device_list import device_id
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import UnreadableCard
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.driver import card
from tests.fakes.kubelet import checkpoint
from tests.fakes.pods import pod

OLDER = [f"{card(0).uuid}-_-{number}" for number in range(3)]


class Node:
    def __init__(self, folder: Path) -> None:
        self.cards = NodeCards(Terms(1024), None)
        self.cards.seen([card(0)])
        self.cards.adopt(None)
        self.total = len(self.listed)
        self.pods = NodePods()
        self.checkpoint = folder / "checkpoint"
        self.inheritance = Inheritance(self.cards, self.pods, CheckpointFile(self.checkpoint))

    @property
    def listed(self) -> set[str]:
        return set(self._devices())

    @property
    def healthy(self) -> set[str]:
        return {name for name, health in self._devices().items() if health == "Healthy"}

    def _devices(self) -> dict[str, str]:
        sent = api_pb2.ListAndWatchResponse.FromString(self.cards.message or b"")
        return {device.ID: device.health for device in sent.devices}

    def holds(self, uid: str, ids: list[str] = OLDER) -> None:
        answer = allocate_response.early({"NVIDIA_VISIBLE_DEVICES": "0"}).SerializeToString()
        self.checkpoint.write_text(checkpoint({(uid, "main"): (ids, answer)}))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_inherited_devices_are_listed_while_their_pod_lives(node: Node) -> None:
    node.holds("uid-1")
    node.inheritance.check()
    assert set(OLDER) <= node.listed
    node.pods.replaced([pod("a", 3, uid="uid-1", started=True)])
    node.inheritance.check()
    assert set(OLDER) <= node.listed
    assert len(node.listed) == node.total


def test_a_gpu_has_its_own_units_again_when_the_pod_is_deleted(node: Node) -> None:
    own = node.listed
    node.holds("uid-1")
    node.inheritance.check()
    node.pods.replaced([])
    node.inheritance.check()
    assert node.listed == own
    assert node.cards.once_inherited == set(OLDER), "the kubelet may be giving them away just now"


def test_a_checkpoint_that_cannot_be_read_changes_nothing(node: Node) -> None:
    node.holds("uid-1")
    node.inheritance.check()
    before = node.listed
    node.checkpoint.write_text("{")
    node.inheritance.check()
    assert node.listed == before


def own_ids(node: Node, count: int) -> list[str]:
    tag = node.cards.inventory.cards[0].tag
    return [device_id(tag, unit) for unit in range(count)]


@pytest.mark.parametrize("older", [False, True])
def test_a_blocked_node_keeps_what_living_pods_hold_healthy_and_nothing_else(
    node: Node, older: bool
) -> None:
    """The kubelet rejects a pod for good at the next boot of the node if its devices are not."""
    held = OLDER if older else own_ids(node, 3)
    node.holds("uid-1", held)
    node.pods.replaced([pod("a", 3, uid="uid-1", started=True)])
    node.inheritance.check()
    node.cards.hold_unit("default/a counts in the old unit")
    assert node.healthy == set(held)
    assert len(node.listed) == node.total
    assert not node.cards.inventory.cards[0].is_healthy, "the extender places nothing there"
    node.pods.replaced([])
    node.inheritance.check()
    assert node.healthy == set()
    node.cards.set_block("unit", "")
    assert len(node.healthy) == node.total


def test_devices_of_an_unhealthy_gpu_are_unhealthy_under_a_block(node: Node) -> None:
    node.holds("uid-1", own_ids(node, 3))
    node.inheritance.check()
    node.cards.hold_unit("default/a counts in the old unit")
    assert len(node.healthy) == 3
    node.cards.seen([UnreadableCard(0, card(0).uuid, "GPU is lost", is_definite=True)])
    assert node.healthy == set()


def test_a_plugin_that_starts_with_another_unit_never_lists_held_devices_as_unhealthy(
    node: Node,
) -> None:
    held = own_ids(node, 3)
    node.holds("uid-1", held)
    later = NodeCards(Terms(256), node.cards.saved())
    Inheritance(later, NodePods(), CheckpointFile(node.checkpoint)).check()
    node.cards = later
    assert node.healthy == set(held)
