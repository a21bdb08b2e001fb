"""A container's own variables neither reserve nor limit memory of a GPU that pods share."""

import json

import grpc
import msgspec
import pytest

from deviceplugin.cdi.rules import Choice
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.objects.model import EnvVar, Node, NodeStatus, NodeSystemInfo, ObjectMeta
from tests.fakes.driver import card
from tests.fakes.kubelet import Rejected
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import FIRST, SECOND
from tests.integration.deviceplugin.test_injection import NVIDIA
from tests.integration.deviceplugin.test_late_binding import environment
from tests.waiting import eventually

pytestmark = pytest.mark.integration

ABLE = (card(0, limits_memory=True), card(1, 81_920, limits_memory=True))
CHOICES = {
    "late": Choice("late", "a test"),
    "early": Choice("early", "a test"),
    "both": Choice("early", "a test", names_cdi_too=True),
}
TWO = {"aliyun.com/gpu-count": "2"}
LIMITS = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")


def limits(plugin, kubelet, owner) -> tuple[str | None, ...]:
    found = environment(plugin, kubelet, owner, "app-0")
    return tuple(found.get(name) for name in LIMITS)


def setting(owner, name: str = LIMITS[0], value: str = "70000"):
    """The pod with a variable of its own in its container."""
    (container,) = owner.spec.containers
    containers = (msgspec.structs.replace(container, env=(EnvVar(name, value),)),)
    spec = msgspec.structs.replace(owner.spec, containers=containers)
    return NodePod.of(msgspec.structs.replace(owner, spec=spec))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("inject", ["auto", "runtime", "runtime-cdi"])
async def test_where_the_driver_can_every_container_reserves_nothing_and_may_use_the_whole_gpu(
    start, kubelet, folder, inject, choice
) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    plugin = await start(*ABLE, inject=inject, nvidia_cdi_dirs=(folder,))
    plugin.binding.now = CHOICES[choice]
    one, two = pod("a", 8, cards=(FIRST,)), pod("b", 8, cards=(FIRST, SECOND), labels=TWO)
    for owner, whole in ((one, "16276"), (two, "81920")):
        await kubelet.run(owner)
        assert limits(plugin, kubelet, owner) == ("0", whole)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("inject", ["auto", "runtime", "runtime-cdi"])
async def test_where_one_gpu_of_a_container_cannot_nothing_is_written(
    start, kubelet, folder, inject, choice
) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    plugin = await start(ABLE[0], card(1), inject=inject, nvidia_cdi_dirs=(folder,))
    plugin.binding.now = CHOICES[choice]
    for owner in (pod("a", 8, cards=(SECOND,)), pod("b", 8, cards=(FIRST, SECOND), labels=TWO)):
        await kubelet.run(owner)
        assert limits(plugin, kubelet, owner) == (None, None)


async def test_a_restarted_container_has_what_the_driver_can_now(start, kubelet) -> None:
    plugin = await start(*ABLE)
    wanted = pod("a", 8, cards=(FIRST,))
    await kubelet.run(wanted)
    plugin.driver.shown = (card(0), card(1, 81_920))
    await eventually(lambda: not plugin.cards.limits_memory(plugin.cards.inventory.cards))
    await kubelet.pre_start(wanted)
    assert limits(plugin, kubelet, wanted) == (None, None)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("choice", ["early", "both"])
async def test_early_binding_refuses_a_pod_that_sets_one_itself(
    start, kubelet, choice, name
) -> None:
    plugin = await start(*ABLE, binding="early")
    plugin.binding.now = CHOICES[choice]
    with pytest.raises(Rejected, match=f"container app-0 sets .*{name}.* remove the variable"):
        await kubelet.admit(setting(pod("a", 8, cards=(FIRST,)), name))


@pytest.mark.parametrize("inject", ["auto", "cdi"])
async def test_cri_o_refuses_a_pod_that_sets_one_itself_and_the_extender_learns_that(
    start, kubelet, folder, monkeypatch, inject
) -> None:
    monkeypatch.setattr("deviceplugin.allocation.injection.CHECK_SECONDS", 0.01)
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    plugin = await start(*ABLE, inject=inject, nvidia_cdi_dirs=(folder,))
    own = setting(pod("a", 8, cards=(FIRST,)))
    await kubelet.admit(own)  # nothing is known about the runtime yet
    info = NodeSystemInfo("cri-o://1.34.0", "v1.34.4")
    plugin.binding.node_seen(Node(ObjectMeta(name="n"), NodeStatus(node_info=info)))
    with pytest.raises(grpc.aio.AioRpcError, match="sets NVIDIA_GPU_MEMORY_REQUEST or"):
        await kubelet.pre_start(own)
    with pytest.raises(Rejected, match="sets NVIDIA_GPU_MEMORY_REQUEST or"):
        await kubelet.admit(setting(pod("b", 7, cards=(FIRST,)), LIMITS[1]))
    await eventually(lambda: plugin.cards.inventory.pod_variables_win)


async def test_containerd_overrules_a_pod_that_sets_one_itself(start, kubelet) -> None:
    plugin = await start(*ABLE)
    info = NodeSystemInfo("containerd://2.2.0", "v1.34.4")
    plugin.binding.node_seen(Node(ObjectMeta(name="n"), NodeStatus(node_info=info)))
    wanted = setting(pod("a", 8, cards=(FIRST,)))
    await kubelet.run(wanted)
    assert limits(plugin, kubelet, wanted) == ("0", "16276")
    assert not plugin.cards.inventory.pod_variables_win
