"""The binding follows the Node and the probe, and each change is published."""

import asyncio

from prometheus_client import REGISTRY

from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.rules import Probe
from gpushare.objects.model import Node, NodeStatus, NodeSystemInfo, ObjectMeta
from localcluster.wait import patient
from tests.waiting import eventually, running


def node(runtime: str, kubelet: str = "v1.34.4") -> Node:
    info = NodeSystemInfo(container_runtime_version=runtime, kubelet_version=kubelet)
    return Node(ObjectMeta(name="n"), NodeStatus(node_info=info))


class World:
    """A node, and a probe with a set answer."""

    def __init__(self, *, forced=None, last=None, needs_cdi=False, found=Probe.READ) -> None:
        self.found, self.probes, self.told = found, 0, []
        self.changed = asyncio.Event()
        self.binding = Binding(
            forced=forced,
            needs_cdi=needs_cdi,
            last=last,
            probe=self.probe,
            probe_seconds=0.01,
        )
        self.binding.on_change(self.tell)

    def probe(self) -> Probe:
        self.probes += 1
        return self.found

    def tell(self, name: str) -> None:
        self.told.append(name)
        self.changed.set()

    async def next(self) -> str:
        await asyncio.wait_for(self.changed.wait(), patient(5))
        self.changed.clear()
        return self.told[-1]


def shown() -> dict[str, float | None]:
    name = "gpushare_deviceplugin_binding"
    return {b: REGISTRY.get_sample_value(name, {"binding": b}) for b in ("late", "early")}


async def test_it_begins_as_it_was_and_early_on_a_new_node() -> None:
    assert World(last="late").binding.now.binding == "late"
    assert World().binding.now.binding == "early"
    assert shown() == {"late": 0, "early": 1}


async def test_an_upgraded_runtime_changes_the_binding_to_late() -> None:
    world = World(found=Probe.UNKNOWN)
    async with running(world.binding.run()):
        world.binding.node_seen(node("containerd://1.6.20"))
        world.binding.node_seen(node("containerd://2.2.9"))
        assert await world.next() == "late"
        assert shown() == {"late": 1, "early": 0}
        world.binding.node_seen(node("containerd://2.2.9", "v1.28.0"))
        assert await world.next() == "early"


async def test_an_uncertain_choice_is_probed_again_until_files_are_read() -> None:
    world, doubtful = World(last="late", found=Probe.UNREAD), World(found=Probe.UNREAD)
    async with running(world.binding.run(), doubtful.binding.run()):
        for each in (world, doubtful):
            each.binding.node_seen(node("containerd://2.2.9"))
        assert await world.next() == "early"
        assert world.binding.now.names_cdi_too
        world.found = Probe.READ
        assert await world.next() == "late"
        probes = world.probes
        at_first = doubtful.probes
        await eventually(lambda: doubtful.probes >= at_first + 5)
        assert world.probes == probes, "there is no doubt any more"


async def test_a_node_that_is_shown_again_unchanged_is_not_probed_again() -> None:
    world = World()
    async with running(world.binding.run()):
        world.binding.node_seen(node("containerd://2.2.9"))
        await world.next()
        probes = world.probes
        for _ in range(5):
            world.binding.node_seen(node("containerd://2.2.9"))
        world.binding.node_seen(Node(ObjectMeta(name="n")))
        for _ in range(10):
            await asyncio.sleep(0)
        world.binding.node_seen(node("containerd://1.6.20"))
        assert await world.next() == "early"
        assert world.probes == probes + 1
    assert world.told == ["late", "early"]


async def test_what_is_forced_is_neither_probed_nor_changed() -> None:
    world = World(forced="early")
    world.binding.node_seen(node("containerd://2.2.9"))
    await asyncio.wait_for(world.binding.run(), patient(5))
    assert (world.binding.now.binding, world.probes, world.told) == ("early", 0, [])


async def test_cdi_without_late_binding_is_a_reason_not_to_be_ready() -> None:
    assert World(needs_cdi=True).binding.why_not == ""
    assert World(forced="early").binding.why_not == ""
    text = World(forced="early", needs_cdi=True).binding.why_not
    assert "--binding=early is set" in text
    assert "--inject=runtime" in text
