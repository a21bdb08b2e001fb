"""The startup taint is removed once the plugin serves; nothing else changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.lifecycle.startup_taint import StartupTaint, removal
from gpushare.contract import TAINT_NOT_READY
from gpushare.errors import ApiError
from gpushare.objects.model import Node, NodeSpec, ObjectMeta
from gpushare.objects.scheduling import Taint

OURS = Taint(TAINT_NOT_READY, "NoSchedule")
OTHER = Taint("example.com/other", "NoExecute", "x")


class Api:
    """``patches`` are those that landed."""

    def __init__(self) -> None:
        self.patches: list[Any] = []
        self.fails: ApiError | None = None

    async def change_node(self, name: str, operations) -> None:
        if self.fails is not None:
            raise self.fails
        self.patches.append((name, operations))


class Watched:
    """What the plugin sees of its node, and whether it serves."""

    def __init__(self) -> None:
        self.api = Api()
        self.node: Node | None = None
        self.why_not_ready: list[str] = []
        self.taint = StartupTaint(self.api, lambda: self.node, lambda: self.why_not_ready)

    def show(self, *taints: Taint, version: str = "1") -> None:
        self.node = Node(
            ObjectMeta(name="n", resource_version=version), spec=NodeSpec(None, taints)
        )


@pytest.fixture
def watched() -> Watched:
    return Watched()


def applied(operations: list[dict[str, Any]], taints: list[Taint]) -> list[Taint]:
    """What an API server makes of a JSON patch of tests and removals."""
    left = list(taints)
    for each in operations:
        place = int(each["path"].removeprefix("/spec/taints/").split("/")[0])
        if each["op"] == "test":
            assert left[place].key == each["value"]
        else:
            del left[place]
    return left


@given(st.lists(st.sampled_from([OURS, OTHER, Taint(TAINT_NOT_READY, "NoExecute")]), max_size=6))
def test_only_the_startup_taint_is_removed(taints: list[Taint]) -> None:
    node = Node(ObjectMeta(name="n"), spec=NodeSpec(None, tuple(taints)))
    left = [each for each in taints if each.key != TAINT_NOT_READY]
    assert applied(removal(node), taints) == left
    assert bool(removal(node)) == (left != taints)


async def test_the_taint_is_removed_once_the_plugin_serves(watched: Watched) -> None:
    await watched.taint.check()
    watched.show(OTHER, OURS)
    watched.why_not_ready = ["the kubelet does not read the device list"]
    await watched.taint.check()
    assert watched.api.patches == []
    watched.why_not_ready = []
    await watched.taint.check()
    ((name, operations),) = watched.api.patches
    assert name == "n"
    assert applied(operations, [OTHER, OURS]) == [OTHER]


async def test_the_taint_is_removed_again_if_it_is_set_again(watched: Watched) -> None:
    watched.show(OURS)
    await watched.taint.check()
    await watched.taint.check()
    assert len(watched.api.patches) == 1, "the watch has not shown it yet"
    watched.show(version="2")
    await watched.taint.check()
    watched.show(OURS, version="3")
    await watched.taint.check()
    assert len(watched.api.patches) == 2


async def test_a_rejected_patch_is_sent_again(watched: Watched) -> None:
    watched.show(OURS)
    watched.api.fails = ApiError("the list has changed", code=422)
    with pytest.raises(ApiError):
        await watched.taint.check()
    watched.api.fails = None
    await watched.taint.check()
    assert len(watched.api.patches) == 1
