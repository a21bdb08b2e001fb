"""A changed memory unit waits for the last pod of the old one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from deviceplugin.cards import unit_change
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import Saved
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.cards.unit_change import UnitChange
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from gpushare.cards.model import Inventory
from tests.fakes.driver import card
from tests.fakes.kubelet import checkpoint
from tests.fakes.node_cards import FIRST, SECOND, Node
from tests.fakes.pods import pod
from tests.waiting import eventually, running

BEFORE = Saved(survey(None, [card(0)], Terms(1024)).inventory)


class Held:
    def __init__(self, folder: Path) -> None:
        self.cards = NodeCards(Terms(256), BEFORE)
        self.cards.seen([card(0)])
        self.pods = NodePods()
        self.checkpoint = folder / "checkpoint"
        self.hold = UnitChange(self.cards, self.pods, CheckpointFile(self.checkpoint))

    @property
    def unit(self) -> int:
        return self.cards.inventory.unit_mib


@pytest.fixture
async def held(tmp_path: Path, monkeypatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(unit_change, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(unit_change, "API_SECONDS", 0.1)
    made = Held(tmp_path)
    async with running(made.hold.run()):
        yield made


async def test_the_new_unit_applies_when_the_last_pod_of_the_old_one_is_deleted(held: Held) -> None:
    pods = [pod(f"p{number}", 1) for number in range(7)]
    held.pods.replaced([*pods, pod("other", 0)])
    await eventually(lambda: "(7: " in held.cards.why_blocked)
    assert "default/p0, default/p1, default/p2, default/p3, default/p4 and 2 more" in (
        held.cards.why_blocked
    )
    assert "--memory-unit=1024MiB" in held.cards.why_blocked
    assert held.cards.notices["unit"][0] == "MemoryUnitChanged"
    for each in pods[1:]:
        held.pods.deleted(each)
    await eventually(lambda: "(1: " in held.cards.why_blocked)
    assert held.unit == 1024
    assert "(7: " in held.cards.notices["unit"][1], "one Event, not one for each pod that goes"
    held.pods.deleted(pods[0])
    await eventually(lambda: held.unit == 256)
    assert held.cards.inventory.cards[0].is_healthy


async def test_pods_that_have_ended_hold_nothing(held: Held) -> None:
    ended = pod("ended", 1)
    ended = type(ended)(ended.metadata, ended.spec, type(ended.status)(phase="Succeeded"))
    held.pods.replaced([ended])
    await eventually(lambda: held.unit == 256)


async def test_without_the_api_server_the_kubelets_checkpoint_decides(held: Held) -> None:
    held.checkpoint.write_text(checkpoint({("u1", "c"): (["a0000"], b"")}))
    await eventually(lambda: "with uid u1" in held.cards.why_blocked)
    held.checkpoint.unlink()
    await eventually(lambda: held.unit == 256)


async def test_a_checkpoint_that_cannot_be_read_keeps_the_old_unit(
    held: Held, caplog, monkeypatch
) -> None:
    held.checkpoint.write_text("{")
    rounds = []
    monkeypatch.setattr(held.hold, "_holders", counted(held.hold._holders, rounds))
    await eventually(lambda: "the old memory unit stays" in caplog.text)
    assert held.unit == 1024
    assert blocked() == 1
    after = len(rounds)
    await eventually(lambda: len(rounds) > after + 2)
    assert caplog.text.count("the old memory unit stays") == 1, "one line, not one each round"
    held.checkpoint.unlink()
    await eventually(lambda: held.unit == 256)
    assert blocked() == 0


def counted(function, calls: list):
    def call(**words):
        calls.append(words)
        return function(**words)

    return call


def blocked() -> float | None:
    return REGISTRY.get_sample_value("gpushare_deviceplugin_blocked", {"name": "unit"})


def with_unit(unit: int) -> Inventory:
    return survey(None, [FIRST, SECOND], Terms(unit)).inventory


def test_a_changed_unit_blocks_the_node_until_it_applies() -> None:
    node = Node(Saved(with_unit(1024)), Terms(256))
    node.show(FIRST, SECOND)
    assert node.cards.unit_waiting == (1024, 256)
    assert node.offered == [False, False]
    assert "1024 to 256 MiB" in node.cards.why_blocked
    assert [c.units for c in node.cards.inventory.cards] == [15, 15]
    assert node.cards.saved().inventory.unit_mib == 1024
    assert node.trouble(FIRST.uuid) is None, "old pods may restart"
    node.cards.hold_unit("held by default/a")
    assert node.cards.notices["unit"] == ("MemoryUnitChanged", "held by default/a")
    node.cards.take_new_unit()
    assert node.offered == [True, True]
    assert [c.units for c in node.cards.inventory.cards] == [63, 63]
    assert node.cards.saved().inventory.unit_mib == 256
    assert not node.cards.why_blocked
    assert not node.cards.notices


def test_a_changed_unit_blocks_the_node_also_without_a_file() -> None:
    node = Node(None, Terms(256))
    node.show(FIRST, SECOND)
    assert node.offered == [True, True]
    node.cards.adopt(with_unit(1024))
    assert node.offered == [False, False]
    assert node.cards.inventory.unit_mib == 1024
